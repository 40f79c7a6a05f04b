"""Contract of the environment library: results on disk.

1. `results.jsonl` has a row per rollout with example_id, prompt, completion, answer, info, reward, metrics, timing,
   is_completed, is_truncated, stop_condition, error, tool_defs and token_usage.
2. Metrics are below `metrics`, so that none can take the place of a field; `row[name]` of returned rows reads one too.
3. `state_columns` stand in the row; a value that JSON cannot hold is an error that names the column.
4. Times are seconds: setup, generation, scoring, model, env, total, overhead.
5. `metadata.json` has env_id, env_args, model, base_url, num_examples, rollouts_per_example, sampling_args, date, time,
   avg_reward, avg_metrics, avg_error, pass_at_k, pass_all_k, pass_threshold, usage, version_info, state_columns, tools.
6. Rows are appended as rollouts finish.
7. A torn last line is dropped on resume, and that rollout is made again.
8. An errored rollout has its error with its causes, and no reward.
9. Averages leave errored rollouts out and say how many there were.
10. pass@k and pass^k are the unbiased estimates, at k = 1, 2, 4, ...
11. Tool calls are kept as JSON text, one for each.
12. Results of another environment, model or number of rollouts are not continued.
"""

import asyncio
import json

import pytest

import whet

ROWS = [{"question": str(index), "answer": str(index), "info": {"n": index}} for index in range(3)]
IN_A_ROW = {
    *("example_id", "prompt", "completion", "answer", "info", "reward", "metrics", "timing", "is_completed"),
    *("is_truncated", "stop_condition", "error", "tool_defs", "token_usage"),
}
IN_METADATA = {
    *(
        "env_id",
        "env_args",
        "model",
        "base_url",
        "num_examples",
        "rollouts_per_example",
        "sampling_args",
        "date",
        "time",
    ),
    *("avg_reward", "avg_metrics", "avg_error", "pass_at_k", "pass_all_k", "pass_threshold", "usage", "version_info"),
    *("state_columns", "tools"),
}


def right(completion, answer):
    return float(completion[-1].content == answer)


def make(**kwargs):
    return whet.SingleTurnEnv(dataset=ROWS, rubric=whet.Rubric([right]), env_id="e", env_args={"x": 1}, **kwargs)


def echo(prompt):
    usage = whet.Usage(prompt_tokens=3, completion_tokens=2)
    return whet.Response("1", "m", whet.ResponseMessage(prompt[-1].content, finish_reason="stop"), usage)


def run(tmp_path, env=None, script=echo, **kwargs):
    (env or make()).evaluate_sync(whet.ScriptedClient(script), "m", results_path=tmp_path, **kwargs)
    rows = [json.loads(line) for line in (tmp_path / "results.jsonl").read_text().splitlines()]
    return rows, json.loads((tmp_path / "metadata.json").read_text())


def test_1_the_fields_of_a_row(tmp_path):
    rows, _ = run(tmp_path)
    assert len(rows) == 3
    for index, row in enumerate(rows):
        assert set(row) >= IN_A_ROW
        assert (row["example_id"], row["answer"], row["info"]) == (index, str(index), {"n": index})
        assert row["prompt"] == [{"role": "user", "content": str(index)}]
        assert row["completion"] == [{"role": "assistant", "content": str(index)}]
        assert (row["reward"], row["is_completed"], row["is_truncated"], row["error"]) == (1.0, True, False, None)
        assert (row["stop_condition"], row["tool_defs"]) == ("max_turns_reached", [])
        assert row["token_usage"] == {
            "input_tokens": 3.0,
            "output_tokens": 2.0,
            "final_input_tokens": 3.0,
            "final_output_tokens": 2.0,
        }


def test_2_metrics_are_below_metrics(tmp_path):
    rows, _ = run(tmp_path)
    assert rows[0]["metrics"] == {"right": 1.0, "num_turns": 1.0}
    assert not {"right", "num_turns"} & rows[0].keys()
    (returned, *_) = make().evaluate_sync(whet.ScriptedClient(echo), "m")["outputs"]
    assert (returned["right"], returned["num_turns"]) == (1.0, 1.0)


def test_3_state_columns(tmp_path):
    class Env(whet.SingleTurnEnv):
        async def setup_state(self, state):
            state["board"] = {"cells": [1, None]}
            state["socket"] = object()

    env = Env(dataset=ROWS)
    rows, metadata = run(tmp_path / "a", env, state_columns=["board"])
    assert (rows[0]["board"], metadata["state_columns"]) == ({"cells": [1, None]}, ["board"])
    with pytest.raises(whet.WhetError, match="state column 'socket' holds a object"):
        run(tmp_path / "b", env, state_columns=["socket"])


def test_4_times_are_seconds(tmp_path):
    class Env(whet.MultiTurnEnv):
        async def env_response(self, messages, state, **kwargs):
            return [whet.UserMessage("more")]

    rows, _ = run(tmp_path, Env(dataset=ROWS, max_turns=2))
    timing = rows[0]["timing"]
    assert set(timing) >= {"setup", "generation", "scoring", "model", "env", "total", "overhead"}
    for phase in ("setup", "generation", "scoring"):
        assert timing[phase]["duration"] == pytest.approx(timing[phase]["end"] - timing[phase]["start"])
    assert (len(timing["model"]["spans"]), len(timing["env"]["spans"])) == (2, 1)
    assert timing["total"] == pytest.approx(timing["scoring"]["end"] - timing["generation"]["start"])


def test_5_the_fields_of_the_metadata(tmp_path):
    _, metadata = run(tmp_path, sampling_args={"temperature": 0.5}, rollouts_per_example=2)
    assert set(metadata) >= IN_METADATA
    assert (metadata["env_id"], metadata["env_args"], metadata["model"]) == ("e", {"x": 1}, "m")
    assert (metadata["num_examples"], metadata["rollouts_per_example"]) == (3, 2)
    assert (metadata["sampling_args"], metadata["avg_reward"]) == ({"temperature": 0.5}, 1.0)
    assert metadata["avg_metrics"] == {"right": 1.0, "num_turns": 1.0}
    assert metadata["usage"]["output_tokens"] == 2.0
    assert metadata["version_info"] == {"whet": whet.__version__}


def test_6_rows_are_appended_as_they_finish(tmp_path):
    """The last rollout waits until the rows of all others are in the file."""
    path = tmp_path / "results.jsonl"

    async def answer(prompt):
        if prompt[-1].content == "2":
            while not (path.exists() and path.read_text().count("\n") == 2):
                await asyncio.sleep(0)
        return "x"

    rows, _ = run(tmp_path, script=answer)
    assert len(rows) == 3


def test_7_a_torn_last_line_is_made_again(tmp_path):
    run(tmp_path)
    path = tmp_path / "results.jsonl"
    path.write_bytes(path.read_bytes()[:-20])
    asked = []
    rows, _ = run(tmp_path, script=lambda prompt: asked.append(prompt[-1].content) or echo(prompt))
    assert asked == ["2"]
    assert [row["example_id"] for row in rows] == [0, 1, 2]


def fails_on_1(prompt):
    if prompt[-1].content == "1":
        try:
            raise TimeoutError("too slow")
        except TimeoutError as cause:
            error = whet.InfraError("host gone")
            error.__cause__ = cause
            raise error from cause
    return echo(prompt)


def test_8_an_error_with_its_causes(tmp_path):
    rows, _ = run(tmp_path, script=fails_on_1)
    bad = rows[1]
    assert (bad["reward"], bad["stop_condition"]) == (None, "has_error")
    assert bad["error"]["error"] == "InfraError"
    assert bad["error"]["error_chain_str"] == "InfraError -> TimeoutError"
    assert bad["error_chain"] == "InfraError('host gone') -> TimeoutError('too slow')"


def test_9_averages_leave_errored_rollouts_out(tmp_path):
    _, metadata = run(tmp_path, script=fails_on_1)
    assert (metadata["avg_reward"], metadata["avg_error"], metadata["num_errors"]) == (1.0, pytest.approx(1 / 3), 1)
    assert metadata["avg_metrics"]["right"] == 1.0


def test_10_pass_at_k(tmp_path):
    answers = iter(["0", "x", "x", "x"])
    env = whet.SingleTurnEnv(dataset=ROWS[:1], rubric=whet.Rubric([right]))
    _, metadata = run(tmp_path, env, script=lambda: next(answers), rollouts_per_example=4)
    assert metadata["pass_at_k"] == {"1": 0.25, "2": 0.5, "4": 1.0}
    assert metadata["pass_all_k"] == {"1": 0.25, "2": 0.0, "4": 0.0}


def test_11_tool_calls_are_json_text(tmp_path):
    def look(where: str) -> str:
        """Look."""
        return where

    env = whet.ToolEnv(tools=[look], dataset=ROWS[:1])
    call = {"id": "1", "name": "look", "arguments": '{"where": "up"}'}
    rows, metadata = run(tmp_path, env, script=[{"content": None, "tool_calls": [call]}, "done"])
    assert rows[0]["completion"][0] == {"role": "assistant", "content": "", "tool_calls": [json.dumps(call)]}
    assert [tool["name"] for tool in rows[0]["tool_defs"]] == ["look"]
    assert metadata["tools"] == rows[0]["tool_defs"]


@pytest.mark.parametrize("changed", ["environment", "model", "rollouts"])
def test_12_other_results_are_not_continued(tmp_path, changed):
    run(tmp_path)
    env = make()
    if changed == "environment":
        env.env_id = "other"
    with pytest.raises(whet.WhetError, match="Give a new results_path"):
        env.evaluate_sync(
            whet.ScriptedClient(echo),
            "other" if changed == "model" else "m",
            results_path=tmp_path,
            rollouts_per_example=2 if changed == "rollouts" else 1,
        )
