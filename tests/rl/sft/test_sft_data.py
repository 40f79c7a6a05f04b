"""From files to sequences: every kind of source, bad rows by name, what is left out counted, validation held out."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from whet.errors import DatasetError
from whet.evals.stored.export import export
from whet.inference.rendering.chat_renderer import ChatRenderer
from whet.rl.sft.config import SftConfig
from whet.rl.sft.data import SftData, load_data
from whet.rl.storage.run_directory import write_step

CONTEXT = 1024
Load = Callable[..., SftData]


@pytest.fixture
def load(renderer: ChatRenderer) -> Load:
    def load(path: Path, *, context: int = CONTEXT, **sections: Any) -> SftData:
        data = {"path": path, **sections.pop("data", {})}
        return load_data(SftConfig(name="run", data=data, **sections), renderer, context=context)

    return load


def said(data: SftData, renderer: ChatRenderer) -> list[str]:
    """What carries loss, as text."""
    sequences = [sequence for example in data.train for sequence in example.sequences]
    return [renderer.decode(sequence.ids[sequence.trained].tolist()) for sequence in sequences]


def test_only_the_answers_of_a_file_carry_loss(load: Load, write_rows: Any, renderer: ChatRenderer) -> None:
    assert said(load(write_rows(3)), renderer) == [f"{number}<|im_end|>" for number in (1, 2, 3)]


def test_a_byte_order_mark_is_no_part_of_the_first_row(load: Load, write_rows: Any, tmp_path: Path) -> None:
    lines = write_rows(3)
    rows = [json.loads(line) for line in lines.read_text().splitlines()]
    files = {"a.jsonl": lines.read_text(), "a.json": json.dumps(rows)}
    for name, text in files.items():
        (tmp_path / name).write_text("\ufeff" + text, encoding="utf-8")
        assert load(tmp_path / name).fingerprint == load(lines).fingerprint


def test_json_parquet_and_a_folder_of_files_hold_the_same_rows(load: Load, write_rows: Any, tmp_path: Path) -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    import pyarrow

    lines = write_rows(3)
    rows = [json.loads(line) for line in lines.read_text().splitlines()]
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "rows.json").write_text(json.dumps(rows))
    parquet.write_table(pyarrow.Table.from_pylist(rows), tmp_path / "rows.parquet")
    prints = {load(path).fingerprint for path in (lines, tmp_path / "folder", tmp_path / "rows.parquet")}
    assert len(prints) == 1


def test_a_saved_dataset_is_read_by_its_split(load: Load, write_rows: Any, tmp_path: Path) -> None:
    datasets = pytest.importorskip("datasets")
    rows = [json.loads(line) for line in write_rows(3).read_text().splitlines()]
    datasets.DatasetDict({"train": datasets.Dataset.from_list(rows)}).save_to_disk(tmp_path / "saved")
    assert load(tmp_path / "saved").fingerprint == load(tmp_path / "rows.jsonl").fingerprint
    with pytest.raises(DatasetError, match="no split 'test'; it has train"):
        load(tmp_path / "saved", data={"split": "test"})


def test_plain_text_ends_with_the_token_that_ends_texts(load: Load, write_rows: Any, renderer: ChatRenderer) -> None:
    data = load(write_rows([{"prompt": "The sky is", "completion": " blue."}]), data={"text": True})
    assert said(data, renderer) == [f" blue.{renderer.tokenizer.eos_token}"]
    assert renderer.decode(data.train[0].sequences[0].ids.tolist()).startswith("The sky is blue.")


def rollout(reward: float, answer: str, error: dict[str, Any] | None = None) -> dict[str, Any]:
    asked, answered = {"role": "user", "content": "Hi"}, {"role": "assistant", "content": answer}
    return {"prompt": [asked], "completion": [answered], "reward": reward, "error": error, "tool_defs": []}


@pytest.fixture
def evaluation(tmp_path: Path) -> Path:
    rows = [rollout(1.0, "good"), rollout(0.0, "bad"), rollout(0.5, "fair"), rollout(0.0, "", {"error": "ToolError"})]
    (tmp_path / "eval").mkdir()
    (tmp_path / "eval" / "results.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return tmp_path / "eval"


def test_good_rollouts_of_an_evaluation_are_kept_and_the_others_counted(
    load: Load, evaluation: Path, renderer: ChatRenderer
) -> None:
    data = load(evaluation, data={"min_reward": 0.5})
    assert said(data, renderer) == ["good<|im_end|>", "fair<|im_end|>"]
    assert data.notes == ["1 row left out: reward below 0.5", "1 row left out: the rollout failed"]


def test_the_best_of_each_task_are_kept_from_an_evaluation_and_from_what_it_exports(
    load: Load, evaluation: Path, renderer: ChatRenderer, tmp_path: Path
) -> None:
    rows = [json.loads(line) for line in (evaluation / "results.jsonl").read_text().splitlines()]
    tasks = [{**row, "example_id": number % 2, "metrics": {}} for number, row in enumerate(rows)]
    (evaluation / "results.jsonl").write_text("".join(json.dumps(row) + "\n" for row in tasks))
    best = load(evaluation, data={"best_per_example": 1})
    assert said(best, renderer) == ["good<|im_end|>", "bad<|im_end|>"]
    assert best.notes[-1] == "1 row left out: not among the best 1 of their task"
    assert said(load(evaluation, data={"best_per_example": 2, "min_reward": 0.5}), renderer) == [
        "good<|im_end|>",
        "fair<|im_end|>",
    ]
    export(evaluation, "sft", tmp_path / "best.jsonl", best_per_example=1)
    assert load(tmp_path / "best.jsonl").fingerprint == best.fingerprint


def test_rows_that_do_not_say_their_task_have_no_best(load: Load, evaluation: Path) -> None:
    with pytest.raises(DatasetError, match=r"rollout 1: rollouts of one task are compared"):
        load(evaluation, data={"best_per_example": 1})


def test_rollouts_are_not_imitated_good_and_bad(load: Load, evaluation: Path) -> None:
    with pytest.raises(DatasetError, match=r"Say which to imitate with \[data\] min_reward"):
        load(evaluation)


def test_rollouts_of_a_run_are_trained_with_the_very_tokens_that_were_sampled(load: Load, tmp_path: Path) -> None:
    ids = [7, 3, 9]
    turn = {"prompt_start": 0, "prompt_ids": [5, 6], "completion_ids": ids, "completion_logprobs": [-0.1] * 3}
    run = tmp_path / "run"
    write_step(run / "rollouts", 1, [{**rollout(1.0, "x"), "turns": [turn]}, {**rollout(0.0, "y"), "turns": [turn]}])
    (run / "config.toml").write_text('model = "whet/tiny"\n')
    (example,) = load(run, data={"min_reward": 1.0}).train
    (sequence,) = example.sequences
    assert sequence.ids.tolist() == [5, 6, *ids]
    assert sequence.trained.tolist() == [False, False, True, True, True]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("{\n", r"rows.jsonl, line 1: not JSON"),
        ('\n{"text": "a"}\n', r"1 of 1 rows cannot be used.\n  .*rows.jsonl, line 2: expected messages"),
        ("[1]\n", "line 1: expected an object, found list"),
        ("", "there is no row in it"),
        (
            '{"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "<|im_end|>"}]}\n',
            "line 1: .*ends a turn",
        ),
    ],
)
def test_a_bad_row_is_named_by_file_and_line(load: Load, tmp_path: Path, text: str, says: str) -> None:
    (tmp_path / "rows.jsonl").write_text(text)
    with pytest.raises(DatasetError, match=says):
        load(tmp_path / "rows.jsonl")


def test_many_bad_rows_are_counted_and_the_first_named(load: Load, write_rows: Any) -> None:
    with pytest.raises(DatasetError, match=r"8 of 8 rows cannot be used(.|\n)*line 5(.|\n)*and 3 more$"):
        load(write_rows([{"text": "a"}] * 8))


def test_a_path_that_leads_nowhere_is_named(load: Load, tmp_path: Path) -> None:
    with pytest.raises(DatasetError, match=r"nowhere.jsonl: there is no such file"):
        load(tmp_path / "nowhere.jsonl")
    (tmp_path / "empty").mkdir()
    with pytest.raises(DatasetError, match="holds no data"):
        load(tmp_path / "empty")


LONG = {"messages": [{"role": "user", "content": "Count."}, {"role": "assistant", "content": "1 " * 60}]}


def test_rows_that_are_too_long_are_refused_by_name(load: Load, write_rows: Any) -> None:
    path = write_rows([LONG, {"prompt": "a", "completion": "b"}])
    with pytest.raises(DatasetError, match=r"1 of 2 rows have more than 100 tokens(.|\n)*line 1: \d+ tokens"):
        load(path, context=100)


@pytest.mark.parametrize(("way", "rows"), [("cut", 2), ("skip", 1)])
def test_or_cut_or_left_out_and_counted(load: Load, write_rows: Any, way: str, rows: int) -> None:
    path = write_rows([LONG, {"prompt": "a", "completion": "b"}])
    data = load(path, data={"max_length": 100, "too_long": way})
    assert len(data.train) == rows
    assert max(example.tokens for example in data.train) <= 100
    assert data.notes[0].startswith("1 row ")


def test_validation_is_a_share_of_the_rows_and_none_of_it_is_trained(load: Load, write_rows: Any) -> None:
    path = write_rows(20)
    data, again, other = (load(path, validation={"fraction": 0.2}, seed=seed) for seed in (0, 0, 1))
    numbers = {example.number for example in data.validation}
    assert (len(numbers), len(data.train)) == (4, 16)
    assert not numbers & {example.number for example in data.train}
    assert numbers == {example.number for example in again.validation}
    assert numbers != {example.number for example in other.validation}


def test_equal_rows_are_on_the_same_side(load: Load, write_rows: Any) -> None:
    rows = [{"prompt": f"{number % 5}", "completion": "b"} for number in range(20)]
    data = load(write_rows(rows), validation={"fraction": 0.4})
    contents = [{example.content for example in side} for side in (data.train, data.validation)]
    assert not contents[0] & contents[1]
    assert len(data.validation) == 8


def test_rows_that_are_in_the_validation_file_are_not_trained(load: Load, write_rows: Any) -> None:
    held_out = write_rows(2, "held_out.jsonl")
    data = load(write_rows(5), validation={"path": held_out})
    assert [example.number for example in data.train] == [3, 4, 5]
    assert data.notes == ["2 rows left out of training: the same row is in validation"]


def test_the_fingerprint_is_that_of_what_is_trained(load: Load, write_rows: Any) -> None:
    first = load(write_rows(3)).fingerprint
    assert load(write_rows(3)).fingerprint == first
    assert load(write_rows(4)).fingerprint != first
