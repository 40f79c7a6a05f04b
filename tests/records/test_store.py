"""Rollouts on disk as the viewer lists and reads them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import whet
from whet.errors import RunError
from whet.records.files import LONG
from whet.records.heads import Filter, Sort
from whet.records.index import FileState, Index
from whet.records.search import Query
from whet.records.sources import RunSource
from whet.records.store import Store, open_store
from whet.rl.storage.run_directory import write_step


def row(example_id: Any = 0, reward: Any = 1.0, **fields: Any) -> dict[str, Any]:
    return {
        "example_id": example_id,
        "prompt": [{"role": "system", "content": "be brief"}, {"role": "user", "content": f"question\n {example_id}?"}],
        "completion": [{"role": "assistant", "content": "yes"}],
        "reward": reward,
        "error": None,
        "stop_condition": "done",
        "is_truncated": False,
        **fields,
    }


def failed(kind: str) -> dict[str, Any]:
    return {"error": {"error": kind, "error_chain_repr": f"{kind}('no')", "error_chain_str": kind}}


def evaluation(folder: Path, *lines: dict[str, Any] | str, **metadata: Any) -> Store:
    """A store of an evaluation with these lines, indexed to the end."""
    folder.mkdir(exist_ok=True)
    text = "".join(f"{line if isinstance(line, str) else json.dumps(line)}\n" for line in lines)
    (folder / "results.jsonl").write_text(text)
    if metadata:
        (folder / "metadata.json").write_text(json.dumps(metadata))
    store = open_store(folder)
    store.poll(float("inf"))
    return store


def run_with_steps(folder: Path, *steps: list[dict[str, Any]]) -> Path:
    (folder / "rollouts").mkdir(parents=True)
    (folder / "config.toml").write_text('model = "whet/tiny"\n[[env]]\nid = "echo"\n')
    for step, rows in enumerate(steps, start=1):
        write_step(folder / "rollouts", step, rows)
    return folder


def test_an_evaluation_is_listed_and_read_as_it_was_saved(tmp_path: Path) -> None:
    env = whet.SingleTurnEnv(
        dataset=[{"question": f"say {number}", "answer": str(number)} for number in range(3)],
        rubric=whet.Rubric([lambda completion, answer: float(completion[-1]["content"] == answer)]),
        env_id="echo",
    )
    results = env.evaluate_sync(
        whet.ScriptedClient(["1"] * 6),
        "scripted",
        rollouts_per_example=2,
        results_path=tmp_path / "a",
        save_results=True,
    )
    with open_store(tmp_path / "a") as store:
        heads = store.heads()
        assert [(head.environment, head.example_id, head.place, head.reward, head.turns) for head in heads] == [
            ("echo", 0, 0, 0.0, 1),
            ("echo", 0, 1, 0.0, 1),
            ("echo", 1, 0, 1.0, 1),
            ("echo", 1, 1, 1.0, 1),
            ("echo", 2, 0, 0.0, 1),
            ("echo", 2, 1, 0.0, 1),
        ]
        assert [head.question for head in heads[::2]] == ["say 0", "say 1", "say 2"]
        assert store.row(3) == json.loads(json.dumps(results["outputs"][3]))


def test_a_head_says_what_the_row_says(tmp_path: Path) -> None:
    store = evaluation(
        tmp_path,
        row(
            7,
            0.5,
            is_truncated=True,
            stop_condition="max_turns_reached",
            metrics={"num_turns": 7.0},  # a function of the environment's own may be called like that
            completion=[{"role": "assistant", "content": "x"}] * 3,
            timing={"total": 2.5},
            token_usage={"input_tokens": 90.0, "output_tokens": 10.0},
            **failed("ToolError"),
        ),
    )
    head = store.head(0)
    assert (head.example_id, head.reward, head.error, head.stop_condition) == (7, 0.5, "ToolError", "max_turns_reached")
    assert (head.truncated, head.turns, head.duration) == (True, 3, 2.5)
    assert (head.input_tokens, head.output_tokens) == (90, 10)
    assert (head.line, head.question, head.problem) == (1, "question 7?", None)


@pytest.mark.parametrize("reward", ["NaN", '"high"', "null", "[1]", "{}", "1e999999", "1" + 400 * "0"])
def test_a_reward_that_is_no_number_is_none(tmp_path: Path, reward: str) -> None:
    store = evaluation(tmp_path, f'{{"example_id": 0, "reward": {reward}}}', row())
    assert [store.head(0).reward in (None, float("inf")), store.head(1).reward] == [True, 1.0]


def test_a_row_of_another_shape_is_a_rollout_of_which_little_is_known(tmp_path: Path) -> None:
    odd = {"prompt": 3, "completion": {"a": 1}, "error": ["?"], "timing": [], "metrics": 1, "turns": "x", "group": {}}
    store = evaluation(tmp_path, odd, {})
    assert [(head.problem, head.error, head.turns) for head in store.heads()] == [(None, "Error", 0), (None, None, 0)]
    assert store.row(0) == odd


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ('{"reward": 1', "not JSON"),
        ("[1, 2]", "not an object, but a list"),
        ("null", "not an object, but null"),
        ("\0\0\0", "not JSON"),
        ("[" * 100_000, "nested too deeply"),
        ('{"reward": 1' + "0" * 5000 + "}", "thousands of digits"),
    ],
)
def test_a_damaged_line_is_listed_by_its_number_and_stops_nothing(tmp_path: Path, line: str, problem: str) -> None:
    store = evaluation(tmp_path, row(0), "", line, row(1))
    assert [(head.line, head.problem is None) for head in store.heads()] == [(1, True), (3, False), (4, True)]
    assert problem in str(store.head(1).problem)
    assert store.poll().damaged == 1
    with pytest.raises(RunError, match=r"results.jsonl, line 3: not"):
        store.row(1)
    assert store.text(1) == line
    assert store.row(2)["example_id"] == 1


def test_bytes_that_are_no_text_are_a_damaged_line(tmp_path: Path) -> None:
    (tmp_path / "results.jsonl").write_bytes(b'{"answer": "\xff\xfe"}\n{"reward": 1}\n')
    store = open_store(tmp_path)
    assert store.head(0).problem == "not JSON: not UTF-8 at byte 12"
    assert store.head(1).reward == 1


def test_half_characters_in_names_are_replaced(tmp_path: Path) -> None:
    store = evaluation(tmp_path, row(environment="e\ud800", stop_condition="s\udfff", example_id="x\ud800"))
    head = store.head(0)
    assert (head.environment, head.stop_condition, head.example_id) == ("e?", "s?", "x?")


def test_what_has_no_value_comes_last_in_either_order(tmp_path: Path) -> None:
    store = evaluation(tmp_path, row(0, None), row(1, 0.2), row(2, 0.9), row(3, 0.2), "damaged")
    up, down = (store.heads(sort=Sort("reward", descending=down)) for down in (False, True))
    assert list(up.numbers) == [1, 3, 2, 0, 4]
    assert list(down.numbers) == [2, 1, 3, 0, 4]


def test_names_are_sorted_by_their_letters_and_tasks_by_their_numbers(tmp_path: Path) -> None:
    store = evaluation(tmp_path, row(10, **failed("beta")), row(9), row(2, **failed("Alpha")), row("text"))
    assert list(store.heads(sort=Sort("error")).numbers) == [2, 0, 1, 3]
    assert list(store.heads(sort=Sort("example")).numbers) == [2, 1, 0, 3]
    assert list(store.heads(sort=Sort(descending=True)).numbers) == [3, 2, 1, 0]


@pytest.mark.parametrize(
    ("filter", "numbers"),
    [
        (Filter(), [0, 1, 2, 3, 4]),
        (Filter(failed=True), [1, 4]),
        (Filter(failed=False), [0, 2, 3]),
        (Filter(error="ToolError"), [1]),
        (Filter(error="Tool"), []),
        (Filter(stop_condition="done"), [0, 1, 3]),
        (Filter(truncated=True), [2]),
        (Filter(reward_from=0.5), [0, 2]),
        (Filter(reward_from=0.5, reward_to=0.9), [2]),
        (Filter(reward_to=0.4), [1]),
        (Filter(environment="mine"), [3]),
        (Filter(environment="echo"), [0, 1, 2]),
        (Filter(numbers=frozenset({2, 0, 99})), [0, 2]),
        (Filter(numbers=frozenset({2, 0}), truncated=False), [0]),
    ],
)
def test_a_filter_keeps_what_fits_all_of_it(tmp_path: Path, filter: Filter, numbers: list[int]) -> None:
    store = evaluation(
        tmp_path,
        row(0, 1.0),
        row(1, 0.0, **failed("ToolError")),
        row(2, 0.5, stop_condition="other", is_truncated=True),
        row(3, None, environment="mine"),
        "damaged",
        env_id="echo",
    )
    assert list(store.heads(filter).numbers) == numbers


def test_what_there_is_to_filter_by_is_counted(tmp_path: Path) -> None:
    store = evaluation(
        tmp_path, row(), row(**failed("A")), row(**failed("B")), row(**failed("B")), "damaged", env_id="echo"
    )
    assert store.counts("error") == {"B": 2, "A": 1}
    assert store.counts("stop_condition") == {"done": 4}
    assert store.counts("environment") == {"echo": 4}


def test_totals_leave_failed_rollouts_out_of_the_mean(tmp_path: Path) -> None:
    store = evaluation(tmp_path, row(0, 1.0), row(1, 0.5), row(2, 0.0, **failed("A")), row(3, None), "damaged")
    totals = store.totals()
    assert (totals.rollouts, totals.mean_reward, totals.failed, totals.truncated) == (5, 0.75, 2, 0)
    assert store.totals(Filter(reward_from=0.9)).mean_reward == 1.0
    assert store.totals(Filter(error="C")).mean_reward is None


def test_a_group_is_the_rollouts_of_one_task_wherever_they_stand(tmp_path: Path) -> None:
    store = evaluation(tmp_path, row(0), row(1), row(0, environment="other"), row("0"), row(1), row(0))
    assert store.group(0) == [0, 5]
    assert store.group(4) == [1, 4]
    assert store.group(2) == [2]
    assert store.group(3) == [3]
    assert [head.place for head in store.heads()] == [0, 0, 0, 0, 1, 1]


def test_greedy_and_sampled_rollouts_of_a_task_are_two_groups(tmp_path: Path) -> None:
    hot, greedy = {"group": "7", "sampling": "temperature 1"}, {"group": "7", "sampling": "greedy"}
    store = evaluation(tmp_path, row(7, **hot), row(7, **greedy), row(7, **hot), row(7, group="7"))
    assert store.group(0) == [0, 2]
    assert store.group(1) == [1]
    assert [head.place for head in store.heads()] == [0, 0, 1, 0]
    assert [head.sampling for head in store.heads()] == ["temperature 1", "greedy", "temperature 1", None]


def test_a_list_knows_where_a_rollout_stands(tmp_path: Path) -> None:
    store = evaluation(tmp_path, row(0, 0.1), row(1, 0.9), row(2, 0.5))
    heads = store.heads(Filter(reward_from=0.2), Sort("reward"))
    assert [heads.position(number) for number in range(3)] == [None, 1, 0]
    assert store.heads().position(2) == 2
    assert [head.number for head in heads[:1]] == [2]
    assert heads[-1].number == 1


def test_a_number_that_there_is_not_says_so(tmp_path: Path) -> None:
    store = evaluation(tmp_path, row())
    assert store.head(5).problem == "no longer there: the file was changed"
    assert store.group(5) == []
    with pytest.raises(RunError, match="rollout 5 is no longer there"):
        store.row(5)


def test_a_row_that_was_changed_since_is_not_shown_as_it_is_now(tmp_path: Path) -> None:
    store = evaluation(tmp_path, row(answer="aaa"), row())
    path = tmp_path / "results.jsonl"
    path.write_text(path.read_text().replace("aaa", "bbb"))
    with pytest.raises(RunError, match=r"line 1: the file was changed since it was listed"):
        store.row(0)
    path.unlink()
    with pytest.raises(RunError, match=r"line 2: the file was changed since it was listed"):
        store.row(1)


def test_a_long_line_is_listed_and_read_with_its_texts_cut(tmp_path: Path) -> None:
    text = "ü" * (LONG // 6 + 1)  # as \\u00fc
    store = evaluation(tmp_path, row(5, answer="short", completion=[{"role": "assistant", "content": text}]), row(6))
    assert (store.head(0).example_id, store.head(0).question) == (5, "question 5?")
    read = store.row(0)
    shown = read["completion"][0]["content"]
    assert len(shown) < 20_000
    assert shown.startswith("üüü")
    assert shown.endswith("bytes more]")
    assert read["answer"] == "short"
    assert read["left_out_bytes"] > LONG - 100_000
    assert store.row(1)["example_id"] == 6


def test_a_run_lists_its_files_in_the_order_they_were_written(tmp_path: Path) -> None:
    group = [row(group="1-0", environment="echo", advantage=value, turns=[]) for value in (0.5, -0.5)]
    run = run_with_steps(tmp_path / "run", group, [row(group="2-0", environment="echo", advantage=0.0)])
    for name in ("eval_before", "eval_step_000001", "eval_after"):
        (run / "rollouts" / f"{name}.jsonl").write_text(json.dumps(row(group="0", environment="echo")) + "\n")
    with open_store(run) as store:
        assert (store.source.kind, store.source.environment, store.source.model) == ("training", "echo", "whet/tiny")
        assert [(head.part, head.step, head.advantage) for head in store.heads()] == [
            ("eval_before", 0, None),
            ("step_000001", 1, 0.5),
            ("step_000001", 1, -0.5),
            ("eval_step_000001", 1, None),
            ("step_000002", 2, 0.0),
            ("eval_after", None, None),
        ]
        assert list(store.counts("part")) == [
            "eval_before", "step_000001", "eval_step_000001", "step_000002", "eval_after",
        ]  # fmt: skip
        assert list(store.heads(Filter(part="step_000001")).numbers) == [1, 2]
        assert store.group(1) == [1, 2]


def test_a_file_of_a_run_that_comes_later_stands_in_its_place(tmp_path: Path) -> None:
    run = run_with_steps(tmp_path / "run", [row(1)], [row(2)])
    with open_store(run) as store:
        (run / "rollouts" / "eval_before.jsonl").write_text(json.dumps(row(0)) + "\n")
        assert store.poll().rollouts == 3
        assert [head.example_id for head in store.heads()] == [0, 1, 2]
        assert store.head(0).example_id == 1  # whose number stays
        assert [head.example_id for head in store.heads(sort=Sort(descending=True))] == [2, 1, 0]


def test_one_file_of_a_run_can_be_looked_at(tmp_path: Path) -> None:
    run = run_with_steps(tmp_path / "run", [row(1)], [row(2), row(3)])
    with open_store(run / "rollouts" / "step_000002.jsonl") as store:
        assert [(head.example_id, head.step) for head in store.heads()] == [(2, 2), (3, 2)]
        assert store.row(1)["example_id"] == 3


def test_a_run_or_an_evaluation_without_rollouts_yet_is_an_empty_list(tmp_path: Path) -> None:
    run = run_with_steps(tmp_path / "run")
    (run / "rollouts").rmdir()
    begun = tmp_path / "begun"
    begun.mkdir()
    (begun / "metadata.json").write_text('{"env_id": "echo"}')
    for path in (run, begun):
        with open_store(path) as store:
            assert len(store.heads()) == 0
            assert store.poll().complete
            assert store.totals().mean_reward is None
            assert list(store.search("x")) == []


@pytest.mark.parametrize("name", ["missing", "empty", "notes.txt"])
def test_path_without_runs_is_an_error_that_says_what_to_name(tmp_path: Path, name: str) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "notes.txt").write_text("x")
    with pytest.raises(RunError, match=name) as caught:
        open_store(tmp_path / name)
    assert "\n" not in str(caught.value)


def test_a_page_is_a_part_of_the_list(tmp_path: Path) -> None:
    rewards = [0.5, None, 0.1, 0.9, 0.5, 0.3]
    with evaluation(tmp_path / "one", *(row(example, reward) for example, reward in enumerate(rewards))) as store:
        for sort in (Sort(), Sort("reward"), Sort("reward", descending=True)):
            for filter in (Filter(), Filter(reward_to=0.5), Filter(below=4)):
                whole = list(store.heads(filter, sort).numbers)
                pages = [store.page(filter, sort, start, 2) for start in range(0, 8, 2)]
                assert [number for page in pages for number in page] == whole


def test_search_in_pieces_finds_what_a_whole_search_finds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("whet.records.store.SEARCHED_AT_ONCE", 2)
    said = [{"answer": "needle"} if example % 3 == 0 else {} for example in range(8)]
    lines = [row(example, 1.0, **more) for example, more in enumerate(said)]
    with evaluation(tmp_path / "one", *lines, "no rollout") as store:
        found, looked, pieces = [], 0, 0
        while looked < 9:
            numbers, looked = store.search_some(Query("NEEDLE"), looked, 0)
            found += numbers
            pieces += 1
        *_, last = store.search("needle")
        assert (found, pieces) == (last.numbers, 5) == ([0, 3, 6], 5)
        assert store.search_some(Query("needle"), 9, 0) == ([], 9)


def test_rollouts_of_a_directory_that_is_not_trusted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    other, run = tmp_path / "other", tmp_path / "run"
    for folder in (other, run):
        write_step(folder / "rollouts", 1, [row()])
    planted = Index(run / "rollouts" / ".index")  # an index that names a file elsewhere
    part = "../../other/rollouts/step_000001"
    with planted.writing():
        planted.add(FileState(part, 1), [(1, 0, 100, 0, 0, *[None] * 16)], damaged=0)
    planted.close()
    (run / "rollouts" / "step_000002.jsonl").symlink_to(other / "rollouts" / "step_000001.jsonl")
    with Store(RunSource(run, "training", run / "rollouts"), root=run) as store:
        assert store.poll(5).rollouts == 1
        assert [head.part for head in store.heads()] == ["step_000001"]
        assert store.index_path is not None
        assert store.index_path.is_relative_to(tmp_path / "cache")
        (run / "rollouts" / "step_000001.jsonl").unlink()
        (run / "rollouts" / "step_000001.jsonl").symlink_to(other / "rollouts" / "step_000001.jsonl")
        with pytest.raises(RunError, match="symbolic links"):
            store.row(0)
        with pytest.raises(RunError, match="symbolic links"):
            store.search_some(Query("yes"), 0, 0)
