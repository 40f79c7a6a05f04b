"""`load_example_dataset(name)`: well-known data sets of the Hugging Face Hub as `question` and `answer`.

For first steps and for environments written for 0.1, with the names, splits and columns that `verifiers` 0.1.14 gives
them. The rows are downloaded by the `datasets` package, which keeps them in its cache.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from whet.envs.config.arguments import nearest
from whet.errors import ConfigError, DatasetError, MissingExtraError
from whet.parsers.parser import extract_boxed_answer, extract_hash_answer

if TYPE_CHECKING:
    from datasets import Dataset

Row = Mapping[str, Any]
LETTERS = "ABCDEFGHIJ"
CODE_PROMPT = "Solve the following coding problem using the programming language python:"


@dataclass(frozen=True, slots=True)
class ExampleSource:
    """The repository of a dataset, its default split, and the function that makes a task from a row.

    `task` takes the row and a random generator that depends only on the seed and the row's index.
    """

    path: str
    split: str
    task: Callable[[Row, random.Random], tuple[Any, Any]]
    configs: tuple[str | None, ...] = (None,)
    keep: Callable[[Row], bool] | None = None


def load_example_dataset(name: str = "gsm8k", split: str | None = None, n: int | None = None, seed: int = 0) -> Dataset:
    """A data set with the columns `question` and `answer`.

    Args:
        name: aime2024, aime2025, amc2023, gpqa_diamond, gpqa_main, gsm8k, math, math500, mmlu, mmlu_pro, openbookqa,
            openrs, openrs_easy, openrs_hard or prime_code.
        split: a split of that data set; otherwise the usual one (`test` of gsm8k, `train` of math).
        n: this many rows, drawn by `seed`; None = all, in their own order.
        seed: of the drawing, and of the order of choices in gpqa.

    Raises `ConfigError` for an unknown name, `DatasetError` if the rows cannot be loaded.
    """
    if name not in SOURCES:
        raise ConfigError(f"there is no example data set '{name}'.{nearest(name, SOURCES)}")
    try:
        from datasets import concatenate_datasets
    except ImportError as error:
        raise MissingExtraError("load_example_dataset", "datasets") from error
    source = SOURCES[name]
    dataset = concatenate_datasets([_download(name, source, config, split) for config in source.configs])
    if source.keep is not None:
        dataset = dataset.filter(source.keep)
    if n is not None and n > 0:
        dataset = dataset.shuffle(seed=seed).select(range(min(n, len(dataset))))

    def task(row: Row, index: int) -> dict[str, Any]:
        question, answer = source.task(row, random.Random(f"{seed} {index}"))
        return {"question": question, "answer": answer}

    tasks = dataset.map(task, with_indices=True, remove_columns=dataset.column_names)
    return tasks.select_columns(["question", "answer"])


def _download(name: str, source: ExampleSource, config: str | None, split: str | None) -> Dataset:
    from datasets import Dataset, load_dataset

    split = split or source.split
    where = f"{source.path}{f' ({config})' if config else ''}, split '{split}'"
    try:
        loaded = load_dataset(source.path, config, split=split)
    except Exception as error:  # of the network, the hub, the disk or the data
        raise DatasetError(
            f"example data set '{name}' ({where}) cannot be loaded: {type(error).__name__}: {_first_line(error)} "
            "It is downloaded from the Hugging Face Hub: check the connection (HF_ENDPOINT names a mirror, HF_HOME a "
            "cache that has it already); where it is gated, accept its terms there and set HF_TOKEN."
        ) from error
    assert isinstance(loaded, Dataset)
    return loaded


def _first_line(error: Exception) -> str:
    line = next(iter(str(error).strip().splitlines()), "").strip()
    return line if line.endswith(".") else f"{line}."


def _columns(question: str, answer: str, read: Callable[[Any], Any] = lambda value: value) -> Callable[..., Any]:
    """A task from two columns."""
    return lambda row, _: (row[question], read(row[answer]))


def _gpqa(row: Row, rng: random.Random) -> tuple[str, str]:
    texts = [row["Correct Answer"], *(row[f"Incorrect Answer {number}"] for number in (1, 2, 3))]
    order = rng.sample(range(4), 4)
    choices = "\n".join(f"{letter}: {texts[index]}" for letter, index in zip("ABCD", order, strict=True))
    return f"Question: {row['Question']}\n\n{choices}", "ABCD"[order.index(0)]


def _mmlu(row: Row, _: random.Random) -> tuple[str, str]:
    return _choices(row["question"], row["choices"]), LETTERS[row["answer"]]


def _mmlu_pro(row: Row, _: random.Random) -> tuple[str, str]:
    return _choices(row["question"], row["options"]), row["answer"]


def _choices(question: str, options: list[str]) -> str:
    lettered = "".join(f"\n{letter}: {option}" for letter, option in zip(LETTERS, options, strict=False))
    return f"Question: {question}\n{lettered}"


def _openbookqa(row: Row, _: random.Random) -> tuple[str, str]:
    choices = zip(row["choices"]["label"], row["choices"]["text"], strict=True)
    listed = "\n".join(f"{label}. {text}" for label, text in choices)
    return f"Question: {row['question_stem']}\n\nChoices:\n{listed}", row["answerKey"]


def _digits(text: str) -> str:
    """`336^\\circ` is 336."""
    return "".join(character for character in text if character.isdigit() or character == ".")


def _level(level: str) -> Callable[[Row], bool]:
    return lambda row: bool(row["level"] == level)


_PROBLEM = _columns("problem", "answer")

SOURCES: dict[str, ExampleSource] = {
    "aime2024": ExampleSource(
        "HuggingFaceH4/aime_2024", "train", _columns("problem", "answer", lambda text: str(int(text)))
    ),
    "aime2025": ExampleSource(
        "opencompass/AIME2025", "test", _columns("question", "answer", _digits), ("AIME2025-I", "AIME2025-II")
    ),
    "amc2023": ExampleSource("knoveleng/AMC-23", "train", _PROBLEM),
    "gpqa_diamond": ExampleSource("Idavidrein/gpqa", "train", _gpqa, ("gpqa_diamond",)),
    "gpqa_main": ExampleSource("Idavidrein/gpqa", "train", _gpqa, ("gpqa_main",)),
    "gsm8k": ExampleSource("openai/gsm8k", "test", _columns("question", "answer", extract_hash_answer), ("main",)),
    "math": ExampleSource(
        "chiayewken/competition_math", "train", _columns("problem", "solution", extract_boxed_answer)
    ),
    "math500": ExampleSource("HuggingFaceH4/MATH-500", "test", _PROBLEM),
    "mmlu": ExampleSource("cais/mmlu", "dev", _mmlu, ("all",)),
    "mmlu_pro": ExampleSource("TIGER-Lab/MMLU-Pro", "validation", _mmlu_pro),
    "openbookqa": ExampleSource("allenai/openbookqa", "train", _openbookqa, ("main",)),
    "openrs": ExampleSource("knoveleng/open-rs", "train", _PROBLEM),
    "openrs_easy": ExampleSource("knoveleng/open-rs", "train", _PROBLEM, keep=_level("Easy")),
    "openrs_hard": ExampleSource("knoveleng/open-rs", "train", _PROBLEM, keep=_level("Hard")),
    "prime_code": ExampleSource(
        "PrimeIntellect/verifiable-coding-problems",
        "train",
        _columns("prompt", "verification_info"),
        keep=lambda row: str(row["prompt"]).startswith(CODE_PROMPT),
    ),
}
