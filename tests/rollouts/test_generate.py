"""Many groups: results, resuming, progress, cancellation."""

import asyncio
import json
import threading

import pytest

import whet
from whet.records.directory import load_metadata
from whet.rollouts import pace
from whet.rollouts.row_log import load_outputs


def right(completion, answer):
    return float(completion[-1].content == answer)


def make_env(count=4, **kwargs):
    rows = [{"question": str(index), "answer": str(index)} for index in range(count)]
    return whet.SingleTurnEnv(dataset=rows, rubric=whet.Rubric([right]), env_id="echo", **kwargs)


class Counting(whet.ScriptedClient):
    def __init__(self, fail_at=None):
        self.fail_at = fail_at
        super().__init__(self.answer)

    def answer(self, prompt):
        if self.fail_at is not None and self.calls > self.fail_at:
            raise whet.WhetError("no key")
        return prompt[-1].content


def test_rows_are_sorted_by_example_and_summed_up():
    results = make_env().evaluate_sync(Counting(), "m", {"temperature": 0.0}, num_examples=3, rollouts_per_example=2)
    assert [output["example_id"] for output in results["outputs"]] == [0, 0, 1, 1, 2, 2]
    metadata = results["metadata"]
    assert (metadata["env_id"], metadata["num_examples"], metadata["rollouts_per_example"]) == ("echo", 3, 2)
    assert (metadata["avg_reward"], metadata["pass_at_k"]) == (1.0, {"1": 1.0, "2": 1.0})
    assert metadata["sampling_args"] == {"temperature": 0.0}
    assert metadata["version_info"] == {"whet": whet.__version__}


def test_sampling_args_of_the_call_go_over_those_of_the_environment():
    env = make_env(sampling_args={"temperature": 1.0, "top_p": 0.9})
    metadata = env.evaluate_sync(Counting(), "m", {"temperature": 0.5})["metadata"]
    assert metadata["sampling_args"] == {"temperature": 0.5, "top_p": 0.9}


def test_the_eval_dataset_is_used_where_there_is_one():
    env = whet.SingleTurnEnv(dataset=[{"question": "train"}], eval_dataset=[{"question": "eval"}])
    assert env.evaluate_sync(Counting(), "m")["outputs"][0]["completion"][0]["content"] == "eval"


def test_results_are_written_as_rows_and_metadata(tmp_path):
    results = make_env().evaluate_sync(Counting(), "m", results_path=tmp_path, state_columns=["trajectory_id"])
    assert load_outputs(tmp_path) == json.loads(json.dumps(results["outputs"]))
    assert load_metadata(tmp_path)["avg_reward"] == 1.0
    assert load_outputs(tmp_path)[0]["trajectory_id"]


def test_a_run_that_broke_off_is_continued_where_it_stopped(tmp_path):
    with pytest.raises(whet.WhetError, match="no key"):
        make_env().evaluate_sync(Counting(fail_at=2), "m", max_concurrent=1, results_path=tmp_path)
    assert len(load_outputs(tmp_path)) == 2
    client = Counting()
    results = make_env().evaluate_sync(client, "m", results_path=tmp_path)
    assert client.calls == 2
    assert [output["example_id"] for output in results["outputs"]] == [0, 1, 2, 3]
    assert results["metadata"]["avg_reward"] == 1.0


def test_results_of_another_model_are_not_continued(tmp_path):
    make_env().evaluate_sync(Counting(), "m", results_path=tmp_path)
    with pytest.raises(whet.WhetError, match="model is 'm' there and 'other' now"):
        make_env().evaluate_sync(Counting(), "other", results_path=tmp_path)


def test_results_of_more_examples_are_not_continued(tmp_path):
    make_env(3).evaluate_sync(Counting(), "m", results_path=tmp_path)
    with pytest.raises(whet.WhetError, match="num_examples is 3 there and 2 now"):
        make_env(3).evaluate_sync(Counting(), "m", num_examples=2, results_path=tmp_path)


def test_progress_is_told_with_rows_and_metadata():
    seen, started, lines = [], [], []
    make_env(2).evaluate_sync(
        Counting(),
        "m",
        rollouts_per_example=2,
        on_start=lambda rows, groups: started.append((len(rows), [len(group) for group in groups])),
        on_progress=[lambda outputs, new, metadata: seen.append((len(outputs), len(new), metadata["avg_reward"]))],
        on_log=lines.append,
    )
    assert started == [(4, [2, 2])]
    assert seen == [(2, 2, 1.0), (4, 2, 1.0)]


def test_inputs_without_a_prompt_are_refused():
    with pytest.raises(whet.WhetError, match="input 0 has no prompt"):
        make_env().generate_sync([{"question": "?"}], Counting(), "m")


def test_something_that_is_no_client_is_refused():
    with pytest.raises(whet.WhetError, match="client is str"):
        make_env().evaluate_sync("http://x", "m")


def test_the_synchronous_form_works_inside_a_running_loop():
    async def notebook():
        return make_env().evaluate_sync(Counting(), "m")["metadata"]["avg_reward"]

    assert asyncio.run(notebook()) == 1.0
    assert not any(thread.name == "whet-run-sync" for thread in threading.enumerate())


def test_the_event_loop_gets_its_turn_between_groups(monkeypatch):
    monkeypatch.setattr(pace, "SLICE_S", 0.0)

    async def run():
        turns = 0

        async def heartbeat():
            nonlocal turns
            while True:
                turns += 1
                await asyncio.sleep(0)

        beating = asyncio.ensure_future(heartbeat())
        await make_env(50).evaluate(Counting(), "m")
        beating.cancel()
        return turns

    assert asyncio.run(run()) >= 25


def test_cancelling_cancels_the_rollouts_and_cleans_them_up():
    cleaned = []

    class Cleans(whet.SingleTurnEnv):
        @whet.cleanup
        async def note(self, state):
            cleaned.append(state["example_id"])

    async def forever(prompt):
        await asyncio.Event().wait()

    async def run():
        env = Cleans(dataset=[{"question": "?"}] * 3)
        task = asyncio.ensure_future(env.evaluate(whet.ScriptedClient(forever), "m"))
        for _ in range(20):
            await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(run())
    assert sorted(cleaned) == [0, 1, 2]


def test_setters_set():
    env = make_env()
    env.set_kwargs(max_seq_len=5, score_rollouts=False, level=3, max_total_completion_tokens=9)
    assert (env.max_seq_len, env.score_rollouts, env.level, env.max_total_completion_tokens) == (5, False, 3, 9)
