"""Example data sets, loaded by the real `datasets` package: from folders in the place of the hub's, and from no hub."""

import json
import sys

import pytest

import whet
from whet.envs.example_datasets import CODE_PROMPT, SOURCES

ROWS = {
    "aime2024": [{"problem": "p", "answer": "025"}],
    "aime2025": [{"question": "q", "answer": "336^\\circ"}],
    "amc2023": [{"problem": "p", "answer": "7"}],
    "gsm8k": [{"question": f"q{i}", "answer": f"because\n#### {i}"} for i in range(20)],
    "math": [{"problem": "p", "solution": "so \\boxed{\\frac{1}{2}}."}],
    "math500": [{"problem": "p", "answer": "x"}],
    "mmlu": [{"question": "q", "choices": ["w", "x", "y", "z"], "answer": 2}],
    "mmlu_pro": [{"question": "q", "options": ["w", "x"], "answer": "B"}],
    "openbookqa": [{"question_stem": "q", "choices": {"text": ["w", "x"], "label": ["A", "B"]}, "answerKey": "B"}],
    "openrs": [{"problem": level, "answer": "1", "level": level} for level in ("Easy", "Hard", "Easy")],
    "prime_code": [
        {"prompt": f"{CODE_PROMPT} add", "verification_info": "{}"},
        {"prompt": "Solve it in rust", "verification_info": "{}"},
    ],
    "gpqa_diamond": [
        {"Question": f"q{i}", "Correct Answer": "right", **{f"Incorrect Answer {n}": f"wrong {n}" for n in (1, 2, 3)}}
        for i in range(8)
    ],
}
TASKS = {
    "aime2024": ("p", "25"),
    "aime2025": ("q", "336"),
    "amc2023": ("p", "7"),
    "gsm8k": ("q0", "0"),
    "math": ("p", "\\frac{1}{2}"),
    "math500": ("p", "x"),
    "mmlu": ("Question: q\n\nA: w\nB: x\nC: y\nD: z", "C"),
    "mmlu_pro": ("Question: q\n\nA: w\nB: x", "B"),
    "openbookqa": ("Question: q\n\nChoices:\nA. w\nB. x", "B"),
    "openrs": ("Easy", "1"),
    "prime_code": (f"{CODE_PROMPT} add", "{}"),
}


@pytest.fixture(autouse=True)
def no_hub(tmp_path, monkeypatch):
    """The hub cannot be reached, and what is downloaded would go to a folder of its own."""
    datasets = pytest.importorskip("datasets")
    import huggingface_hub.constants

    monkeypatch.setattr(datasets.config, "HF_DATASETS_OFFLINE", True)
    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def folder(tmp_path):
    """Rows in the place where the `datasets` package looks first: a folder of the data set's name."""

    def write(name, split=None):
        source = SOURCES[name]
        place = tmp_path / source.path
        place.mkdir(parents=True)
        (place / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in ROWS[name]))
        configs = [
            {"config_name": config or "default", "data_files": [{"split": split or source.split, "path": "rows.jsonl"}]}
            for config in source.configs
        ]
        (place / "README.md").write_text(f"---\nconfigs: {json.dumps(configs)}\n---\n")

    return write


@pytest.mark.parametrize("name", TASKS)
def test_a_row_is_a_question_and_an_answer(folder, name):
    folder(name)
    dataset = whet.load_example_dataset(name)
    assert dataset.column_names == ["question", "answer"]
    assert (dataset[0]["question"], dataset[0]["answer"]) == TASKS[name]


def test_data_sets_of_two_parts_are_joined_and_others_thinned_out(folder):
    folder("aime2025")
    folder("openrs")
    folder("prime_code")
    assert len(whet.load_example_dataset("aime2025")) == 2
    assert whet.load_example_dataset("openrs_easy")["question"][:] == ["Easy", "Easy"]
    assert whet.load_example_dataset("openrs_hard")["question"][:] == ["Hard"]
    assert len(whet.load_example_dataset("prime_code")) == 1


def test_rows_are_drawn_by_the_seed(folder):
    folder("gsm8k")
    drawn = whet.load_example_dataset(n=5, seed=1)["answer"][:]
    assert len(drawn) == 5
    assert whet.load_example_dataset(n=5, seed=1)["answer"][:] == drawn
    assert whet.load_example_dataset(n=5, seed=2)["answer"][:] != drawn
    assert len(whet.load_example_dataset(n=500)) == 20


def test_the_choices_of_gpqa_are_shuffled_by_the_seed_and_the_answer_goes_with_them(folder):
    folder("gpqa_diamond")
    rows = whet.load_example_dataset("gpqa_diamond").to_list()
    assert all(f"{row['answer']}: right" in row["question"] for row in rows)
    assert len({row["answer"] for row in rows}) > 1
    assert whet.load_example_dataset("gpqa_diamond").to_list() == rows


def test_it_is_a_dataset_for_an_environment(folder):
    folder("gsm8k")
    env = whet.SingleTurnEnv(dataset=lambda: whet.load_example_dataset("gsm8k", n=3))
    assert [len(row["prompt"]) for row in env.get_dataset()] == [1, 1, 1]


def test_without_the_hub_it_says_what_could_not_be_loaded_and_what_to_do():
    with pytest.raises(whet.WhetError) as caught:
        whet.load_example_dataset("gsm8k", split="train")
    message = str(caught.value)
    assert "example data set 'gsm8k' (openai/gsm8k (main), split 'train') cannot be loaded" in message
    assert "HF_HOME" in message
    assert "HF_TOKEN" in message
    assert "\n" not in message


def test_a_split_that_there_is_not_is_said(folder):
    folder("gsm8k")
    with pytest.raises(whet.WhetError, match=r"split 'tset'\) cannot be loaded: .*tset"):
        whet.load_example_dataset("gsm8k", split="tset")


def test_another_name_suggests_the_right_one():
    with pytest.raises(whet.WhetError, match=r"no example data set 'gsm8'\. Did you mean 'gsm8k'"):
        whet.load_example_dataset("gsm8")


def test_without_the_package_it_says_which_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(whet.WhetError, match=r"pip install 'whet\[datasets\]'"):
        whet.load_example_dataset()
