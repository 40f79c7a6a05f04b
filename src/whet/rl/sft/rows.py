"""Rows of data: where they are read from, and what a row means.

They are read from JSON lines, JSON, Parquet, saved datasets, evaluations, training runs and the Hugging Face hub. Every
row keeps where it came from, so that a bad one can be named.

A row is a conversation to imitate, and the token sequences of a rollout in which the model said it:

    {"messages": [...], "tools": [...]}               every assistant message
    {"prompt": [...] or "...", "completion": ...}     the assistant messages of the completion; text is a user's and
                                                      the assistant's

An assistant message with `"weight": 0` carries none. `tools` are in OpenAI's form or plain, or JSON text of either.

Every answer is a turn: its prompt is what an engine would have been given (the turn before, extended, or the whole
conversation rendered where the format cannot extend it), its completion what the model would have sampled. Turns
become sequences by `data/batch.py`, as rollouts do, so what is imitated is what the model is shown later.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Self, cast

from whet.config import read_toml
from whet.errors import DatasetError, MissingExtraError, ModelError, RunError
from whet.inference.rendering.writing import answer_ids
from whet.messages import as_message, whole_characters
from whet.records.directory import RESULTS, RUN_CONFIG
from whet.rl.data.batch import TokenSequence, sequences_of
from whet.rollouts.row_log import load_outputs
from whet.rollouts.token_rows import read_rollouts
from whet.types import AssistantMessage, Messages, TextMessage, Tool, TrajectoryStep, UserMessage

if TYPE_CHECKING:
    from whet.inference.rendering.chat_renderer import ChatRenderer

FILES = (".jsonl", ".json", ".parquet")


@dataclass(frozen=True, slots=True)
class Row:
    where: str  # "train.jsonl, line 3"
    fields: Mapping[str, Any]
    number: int = 0  # its position in the source, from 1, by which the ledger names it


@dataclass(frozen=True, slots=True)
class DataSource:
    """Rows, and of what kind they are."""

    rows: list[Row]
    rollouts: bool = False  # what a model said, with its reward, good or bad
    sampled_by: str | None = None  # of rollouts with tokens: the model whose tokens they are

    @classmethod
    def of(cls, rows: Iterable[Row], *, rollouts: bool = False, sampled_by: str | None = None) -> Self:
        """With its rows numbered."""
        return cls([replace(row, number=number) for number, row in enumerate(rows, start=1)], rollouts, sampled_by)


def read_path(path: Path, split: str) -> DataSource:
    """The rows of the file or data set at `path`. Raises `DatasetError`."""
    if path.is_file():
        if split != "train":
            raise DatasetError(f"[data] split = {split!r} would have no effect: {path} is a file")
        return DataSource.of(_file(path))
    check_path(path)
    try:
        if (path / "rollouts").is_dir() and (path / RUN_CONFIG).is_file():
            model = read_toml(path / RUN_CONFIG).get("model")
            return DataSource.of(_trained(path), rollouts=True, sampled_by=str(model))
        if evaluations := sorted(results.parent for results in path.rglob(RESULTS)):
            rows = (row for evaluation in evaluations for row in _evaluated(evaluation))
            return DataSource.of(rows, rollouts=True)
    except RunError as error:
        raise DatasetError(str(error)) from None
    if (path / "state.json").is_file() or (path / "dataset_dict.json").is_file():
        return DataSource.of(_with_datasets(lambda datasets: datasets.load_from_disk(str(path)), str(path), split))
    files = sorted(file for file in path.iterdir() if file.suffix in FILES)
    if not files:
        raise DatasetError(
            f"{path} holds no data: no {', '.join(FILES)} file, no saved dataset, no {RESULTS} of an evaluation and no "
            "rollouts of a run"
        )
    return DataSource.of(row for file in files for row in _file(file))


def check_path(path: Path) -> None:
    """Raise `DatasetError` where nothing exists at `path`."""
    if not path.is_file() and not path.is_dir():
        raise DatasetError(f"{path}: there is no such file or directory")


def read_dataset(name: str, split: str) -> DataSource:
    """A dataset of the Hugging Face hub. Raises `DatasetError`."""
    return DataSource.of(_with_datasets(lambda datasets: datasets.load_dataset(name, split=split), name, split))


def _file(path: Path) -> Iterator[Row]:
    if path.suffix not in FILES:
        raise DatasetError(f"{path}: give a {', '.join(FILES)} file, or a directory")
    try:
        if path.suffix == ".parquet":
            yield from _named(path, _parquet(path))
        elif path.suffix == ".json":
            content = json.loads(path.read_text(encoding="utf-8-sig"))
            if not isinstance(content, list):
                raise DatasetError(f"{path} should hold a list of rows, not {type(content).__name__}")
            yield from _named(path, content)
        else:
            with path.open(encoding="utf-8-sig") as file:
                for number, line in enumerate(file, start=1):
                    if line.strip():
                        yield _row(f"{path}, line {number}", _json_rows(line, f"{path}, line {number}"))
    except OSError as error:
        raise DatasetError(f"{path}: cannot be read ({error.strerror or error})") from None
    except UnicodeDecodeError as error:
        raise DatasetError(f"{path}: not UTF-8 text ({error.reason} at byte {error.start})") from None
    except ValueError as error:
        raise DatasetError(f"{path}: not JSON ({error})") from None


def _named(path: Path, rows: Iterable[Any]) -> Iterator[Row]:
    for number, row in enumerate(rows, start=1):
        yield _row(f"{path}, row {number}", row)


def _row(where: str, fields: Any) -> Row:
    if not isinstance(fields, Mapping):
        raise DatasetError(f"{where}: expected an object, found {type(fields).__name__}")
    return Row(where, fields)


def _json_rows(line: str, where: str) -> Any:
    try:
        return json.loads(line)
    except ValueError as error:
        raise DatasetError(f"{where}: not JSON ({error})") from None


def _parquet(path: Path) -> list[dict[str, Any]]:
    try:
        import pyarrow
        from pyarrow import parquet
    except ModuleNotFoundError as error:
        raise MissingExtraError("reading Parquet", "datasets") from error
    try:
        rows: list[dict[str, Any]] = parquet.read_table(path).to_pylist()
    except pyarrow.ArrowInvalid as error:
        raise DatasetError(f"{path}: not a Parquet file ({str(error).partition(chr(10))[0]})") from None
    return rows


def _evaluated(evaluation: Path) -> Iterator[Row]:
    for number, fields in enumerate(load_outputs(evaluation), start=1):
        yield Row(f"{evaluation / RESULTS}, rollout {number}", fields)


def _trained(run: Path) -> Iterator[Row]:
    """The trained rollouts of a run, those of evaluations left alone."""
    for file in sorted((run / "rollouts").glob("step_*.jsonl")):
        for number, fields in enumerate(read_rollouts(file), start=1):
            yield Row(f"{file}, line {number}", fields)


def _with_datasets(load: Callable[[Any], Any], name: str, split: str) -> list[Row]:
    try:
        import datasets
    except ModuleNotFoundError as error:
        raise MissingExtraError(f"reading {name}", "datasets") from error
    try:
        dataset = load(datasets)
    except Exception as error:  # the library raises whatever its many backends do
        reason = str(error).strip().partition("\n")[0] or type(error).__name__
        raise DatasetError(f"{name}: the dataset cannot be loaded ({reason})") from None
    if isinstance(dataset, Mapping):
        if split not in dataset:
            raise DatasetError(f"{name} has no split {split!r}; it has {', '.join(map(str, dataset))}")
        dataset = dataset[split]
    return [Row(f"{name}, row {number}", fields) for number, fields in enumerate(dataset, start=1)]


TOOL_KEYS = ("tools", "tool_defs")


@dataclass(frozen=True, slots=True)
class TrainingConversation:
    messages: Messages
    tools: list[Tool]
    trained: frozenset[int]  # indices of the messages that carry loss, all of them the assistant's

    @property
    def answers(self) -> list[int]:
        """Places of the assistant's messages."""
        return [index for index, message in enumerate(self.messages) if message["role"] == "assistant"]


def conversation_of(row: Mapping[str, Any], train_on: Literal["assistant", "last"]) -> TrainingConversation:
    """Raises `DatasetError`, without saying where the row came from."""
    messages, start = _messages(row)
    weights = [message.pop("weight", 1) if message["role"] == "assistant" else 0 for message in messages]
    for weight in weights:
        if weight not in (0, 1):
            raise DatasetError(f"the weight of an assistant message is 0 or 1, not {weight!r}")
    answers = [index for index, weight in enumerate(weights) if weight and index >= start]
    if not answers:
        where = "the completion" if start else "the conversation"
        raise DatasetError(f"{where} has no assistant message that carries loss")
    if answers[0] == 0:
        raise DatasetError("the conversation begins with the assistant; there is nothing to answer")
    return TrainingConversation(messages, _tools(row), frozenset(answers if train_on == "assistant" else answers[-1:]))


def _messages(row: Mapping[str, Any]) -> tuple[Messages, int]:
    """All messages, and the index of the first that may carry loss."""
    if row.get("messages") is not None:
        return _read(row["messages"], "messages"), 0
    if row.get("prompt") is None or row.get("completion") is None:
        columns = ", ".join(map(str, row)) or "nothing"
        raise DatasetError(f"expected messages, or prompt and completion; the row has {columns}")
    prompt, completion = row["prompt"], row["completion"]
    before = [UserMessage(prompt)] if isinstance(prompt, str) else _read(prompt, "prompt")
    after = [AssistantMessage(completion)] if isinstance(completion, str) else _read(completion, "completion")
    return [*before, *after], len(before)


def _read(value: Any, name: str) -> Messages:
    if isinstance(value, str):
        value = _json(value, name)
    if isinstance(value, Mapping):
        value = [value]
    if not isinstance(value, Sequence) or isinstance(value, str | bytes):
        raise DatasetError(f"{name} should be a list of messages, not {type(value).__name__}")
    messages: Messages = []
    for index, item in enumerate(value):
        # A table has every column in every row: a field that is null is one that the message does not have.
        given = {key: field for key, field in item.items() if field is not None} if isinstance(item, Mapping) else item
        try:
            messages.append(as_message(given, f"{name}[{index}]"))
        except (TypeError, ValueError) as error:
            raise DatasetError(str(error)) from None
        if isinstance(messages[-1], TextMessage):
            raise DatasetError(f"{name}[{index}] is plain text; text is trained with [data] text = true")
    return messages


def _tools(row: Mapping[str, Any]) -> list[Tool]:
    given: Any = next((row[key] for key in TOOL_KEYS if row.get(key)), [])
    if isinstance(given, str):
        given = _json(given, "tools")
    if not isinstance(given, Sequence) or isinstance(given, str):
        raise DatasetError(f"tools should be a list, not {type(given).__name__}")
    return [_tool(item, index) for index, item in enumerate(given)]


def _tool(item: Any, index: int) -> Tool:
    if isinstance(item, str):
        item = _json(item, f"tools[{index}]")
    if isinstance(item, Mapping) and isinstance(item.get("function"), Mapping):
        item = item["function"]
    if not isinstance(item, Mapping) or not isinstance(item.get("name"), str):
        raise DatasetError(f"tools[{index}] should be a tool with a name, a description and parameters")
    parameters = item.get("parameters")
    if isinstance(parameters, str):
        parameters = _json(parameters, f"tools[{index}].parameters")
    return Tool(item["name"], str(item.get("description") or ""), dict(parameters or {"type": "object"}))


def _json(text: str, name: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        raise DatasetError(f"{name} is text that is not JSON: {text[:60]!r}") from None


def conversation_tokens(
    conversation: TrainingConversation, renderer: ChatRenderer, *, enable_thinking: bool | None, name: str
) -> list[TokenSequence]:
    """One sequence, or several where the format cannot continue an answer. Raises `DatasetError`."""
    messages, tools = conversation.messages, conversation.tools or None
    turns: list[dict[str, Any]] = []
    last = max(conversation.trained)
    before: int | None = None
    for index in (index for index in conversation.answers if 0 < index <= last):
        try:
            prompt = None
            if before is not None and before + 1 < index:
                earlier = turns[-1]["prompt_ids"], turns[-1]["completion_ids"]
                new = messages[before + 1 : index]
                prompt = renderer.extend(*earlier, messages[: before + 1], new, tools, enable_thinking=enable_thinking)
            if prompt is None:
                prompt = renderer.render(messages[:index], tools, enable_thinking=enable_thinking)
            answer = answer_ids(
                renderer,
                messages[:index],
                cast(AssistantMessage, messages[index]),
                tools,
                enable_thinking=enable_thinking,
            )
        except ModelError as error:
            raise DatasetError(f"message {index}: {error}") from None
        turns.append(_turn(prompt, answer, carries_loss=index in conversation.trained))
        before = index
    return _sequences(turns, name)


def text_tokens(prompt: Any, completion: Any, renderer: ChatRenderer, *, name: str) -> list[TokenSequence]:
    """Plain text and its continuation, ended by the model's end-of-text token. Raises `DatasetError`."""
    if not isinstance(prompt, str) or not isinstance(completion, str) or not prompt or not completion:
        raise DatasetError("with [data] text = true, prompt and completion should each be text that is not empty")
    end = renderer.tokenizer.eos_token_id
    if end is None:
        raise DatasetError("the model's tokenizer has no end-of-text token, so a completion could not end")
    prompt_ids = renderer.tokenizer.encode(whole_characters(prompt), add_special_tokens=True)
    answer = renderer.tokenizer.encode(whole_characters(completion), add_special_tokens=False)
    return _sequences([_turn(prompt_ids, [*answer, end], carries_loss=True)], name)


def recorded_tokens(turns: Sequence[dict[str, Any]], *, name: str) -> list[TokenSequence]:
    """The very tokens of a recorded rollout, as a trainer of the policy that sampled them saw them."""
    return _sequences(turns, name)


def _turn(prompt: list[int], answer: list[int], *, carries_loss: bool) -> dict[str, Any]:
    return {
        "prompt_ids": prompt,
        "prompt_mask": [0] * len(prompt),
        "completion_ids": answer,
        "completion_mask": [int(carries_loss)] * len(answer),
        "completion_logprobs": [0.0] * len(answer),
    }


def _sequences(turns: Sequence[dict[str, Any]], name: str) -> list[TokenSequence]:
    steps = [cast(TrajectoryStep, {"tokens": turn}) for turn in turns]
    return [sequence for sequence in sequences_of(steps, temperature=1.0, rollout=name) if sequence.trained.any()]
