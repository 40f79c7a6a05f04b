"""Result rows and the files they stand in."""

import json
import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

import whet
from whet.records.directory import RESULTS, load_metadata
from whet.rollouts.results import save_metadata, state_to_output
from whet.rollouts.row_log import append_rows, load_outputs
from whet.rollouts.totals import Totals
from whet.system.files import cut_torn_line
from whet.types import AssistantMessage, RolloutOutput, RolloutTiming, State, Tool, ToolCall, UserMessage


def state(**fields):
    row = {"prompt": [UserMessage("q")], "example_id": 3, "answer": "a", "info": {"n": 1}}
    return State(
        input=row, completion=[AssistantMessage("x")], reward=0.5, metrics={"right": 0.5}, error=None,
        is_completed=True, is_truncated=False, stop_condition="max_turns_reached", tool_defs=[], trajectory=[],
        timing=RolloutTiming(), **fields,
    )  # fmt: skip


def row(example_id, reward, **fields):
    metrics = {} if reward is None else {"m": reward}
    return RolloutOutput(example_id=example_id, reward=reward, metrics=metrics, **fields)


def test_a_row_has_the_promised_fields_and_is_json():
    output = json.loads(json.dumps(state_to_output(state())))
    assert output["prompt"] == [{"role": "user", "content": "q"}]
    assert output["completion"] == [{"role": "assistant", "content": "x"}]
    assert (output["example_id"], output["answer"], output["info"]) == (3, "a", {"n": 1})
    assert (output["reward"], output["metrics"]) == (0.5, {"right": 0.5})
    assert "right" not in output
    assert output["stop_condition"] == "max_turns_reached"
    assert {"setup", "generation", "scoring", "model", "env", "total", "overhead"} <= set(output["timing"])
    assert "token_usage" not in output


def test_tool_calls_are_kept_as_json_text_and_tools_without_empty_fields():
    call = ToolCall(id="1", name="t", arguments="{}")
    one = state()
    one["completion"] = [AssistantMessage(None, tool_calls=[call])]
    one["tool_defs"] = [Tool("t", "d", {}, strict=None)]
    output = state_to_output(one)
    assert output["completion"] == [{"role": "assistant", "content": "", "tool_calls": [json.dumps(call)]}]
    assert output["tool_defs"] == [{"name": "t", "description": "d", "parameters": {}}]


def test_an_error_is_told_with_its_causes():
    one = state()
    one["error"] = whet.ToolCallError("outer")
    one["error"].__cause__ = ValueError("inner")
    output = state_to_output(one)
    assert output["error"]["error"] == "ToolCallError"
    assert output["error_chain"] == "ToolCallError('outer') -> ValueError('inner')"
    assert output["long_error_chain"] == "ToolCallError -> ValueError"


def test_state_columns_are_added_and_must_be_json():
    output = state_to_output(state(extra={"a": [1, None]}), ["extra", "missing"])
    assert (output["extra"], output["missing"]) == ({"a": [1, None]}, None)
    with pytest.raises(whet.WhetError, match="state column 'extra' holds a set"):
        state_to_output(state(extra={"a": {1}}), ["extra"])


def test_rows_are_appended_and_read_back(tmp_path):
    append_rows(tmp_path / "new", [row(0, 1.0)])
    append_rows(tmp_path / "new", [row(1, None)])
    assert [output["example_id"] for output in load_outputs(tmp_path / "new")] == [0, 1]


@given(cut=st.integers(1, 200))
def test_a_torn_last_line_is_dropped_and_appending_goes_on(tmp_path_factory, cut):
    directory = tmp_path_factory.mktemp("torn")
    append_rows(directory, [row(index, 1.0, text="é" * 5) for index in range(3)])
    size = (directory / RESULTS).stat().st_size
    os.truncate(directory / RESULTS, max(0, size - cut))
    kept = [output["example_id"] for output in load_outputs(directory)]
    append_rows(directory, [row(9, 1.0)])
    assert [output["example_id"] for output in load_outputs(directory)] == [*kept, 9]
    assert kept == [0, 1, 2][: len(kept)]


def test_a_torn_line_longer_than_a_block_is_dropped(tmp_path):
    path = tmp_path / "results.jsonl"
    path.write_text('{"a": 1}\n{"b": "' + "x" * 200_000)
    cut_torn_line(path)
    assert path.read_text() == '{"a": 1}\n'


def test_a_broken_line_in_the_middle_is_an_error_that_names_it(tmp_path):
    (tmp_path / "results.jsonl").write_text('{"a": 1}\n{"b"\n{"c": 1}\n')
    with pytest.raises(whet.WhetError, match=r"results.jsonl: the line at byte 9 is not JSON"):
        load_outputs(tmp_path)


def test_metadata_is_replaced_whole(tmp_path):
    save_metadata(tmp_path, {"a": 1, "path_to_save": "x"})
    assert load_metadata(tmp_path) == {"a": 1}
    assert sorted(path.name for path in tmp_path.iterdir()) == ["metadata.json"]


def test_a_directory_that_cannot_be_written_is_one_clear_line(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(whet.WhetError, match="cannot write results"):
        append_rows(tmp_path / "file" / "below", [])


def test_averages_leave_errored_rollouts_out_and_count_them():
    totals = Totals(1, 0.5)
    totals.add([row(0, 1.0), row(1, 0.0), row(2, None, error={"error": "X"})])
    averages = totals.averages()
    assert (averages["avg_reward"], averages["avg_metrics"]) == (0.5, {"m": 0.5})
    assert (averages["avg_error"], averages["num_errors"]) == (pytest.approx(1 / 3), 1)


def test_no_rollout_has_no_average():
    assert Totals(1, 0.5).averages()["avg_reward"] is None


def test_pass_at_k_of_four_attempts_of_which_one_passed():
    totals = Totals(4, 0.5)
    totals.add([row(0, reward) for reward in (1.0, 0.0, 0.2, 0.4)])
    averages = totals.averages()
    assert averages["pass_at_k"] == {"1": 0.25, "2": 0.5, "4": 1.0}
    assert averages["pass_all_k"] == {"1": 0.25, "2": 0.0, "4": 0.0}


def test_pass_at_k_waits_for_all_attempts_of_a_task():
    totals = Totals(2, 0.5)
    totals.add([row(0, 1.0), row(1, 1.0), row(1, 0.0)])
    assert totals.averages()["pass_at_k"] == {"1": 0.5, "2": 1.0}
