"""One group: order, repeatability, sampling arguments, retries, and what ends it."""

import asyncio
import contextlib

import pytest

import whet
from whet.rollouts.groups import run_group
from whet.rollouts.limits import gather, rollout_limit, to_the_end
from whet.system import cancellation

TASK = {"question": "q", "answer": "a"}


def right(completion, answer):
    return float(completion[-1].content == answer)


def env(**kwargs):
    return whet.SingleTurnEnv(dataset=[TASK], rubric=whet.Rubric([right]), **kwargs)


def group(environment, script, size=2, args=None, **kwargs):
    client = script if isinstance(script, whet.Client) else whet.ScriptedClient(script)
    inputs = [environment.get_dataset()[0]] * size
    return asyncio.run(run_group(environment, inputs, client, "m", {} if args is None else args, **kwargs))


def test_states_come_back_in_the_order_of_the_inputs():
    async def later_first(sampling_args):
        for _ in range(5 - sampling_args["seed"]):
            await asyncio.sleep(0)
        return str(sampling_args["seed"])

    states = group(env(), later_first, 4, [{"seed": seed} for seed in range(4)])
    assert [state["completion"][0].content for state in states] == ["0", "1", "2", "3"]


def test_each_rollout_may_have_its_own_sampling_args():
    states = group(env(), lambda sampling_args: str(sampling_args["seed"]), 2, [{"seed": 7}, {"seed": 8}])
    assert [state["sampling_args"]["seed"] for state in states] == [7, 8]


def test_sampling_args_must_match_the_rollouts():
    with pytest.raises(ValueError, match="2 rollouts with 1"):
        group(env(), ["a"], 2, [{}])


def test_trajectory_ids_are_the_callers_or_all_different():
    assert [state["trajectory_id"] for state in group(env(), ["a"], trajectory_ids=["x", "y"])] == ["x", "y"]
    first, second = group(env(), ["a"])
    assert first["trajectory_id"] != second["trajectory_id"]


def test_without_scoring_the_scores_stay_empty():
    (state,) = group(env(), ["a"], 1, score=False)
    assert (state["reward"], state["metrics"], state["advantage"]) == (None, None, None)


def test_scoring_turned_off_gives_zero():
    (state,) = group(env(score_rollouts=False), ["a"], 1)
    assert (state["reward"], state["metrics"]) == (0.0, {})


def test_independent_scoring_has_no_advantage():
    states = group(env(), ["a"], independent_scoring=True)
    assert [(state["reward"], state["advantage"]) for state in states] == [(1.0, None)] * 2


def test_every_finished_rollout_is_announced_before_it_is_scored():
    seen = []
    group(env(), ["a"], on_rollout=lambda state: seen.append((state["completion"][0].content, state["reward"])))
    assert seen == [("a", None)] * 2


def test_the_order_of_events_depends_on_the_inputs_alone():
    def trace():
        events = []

        async def script(state):
            events.append(state["trajectory_id"])
            for _ in range(3 if state["trajectory_id"] in "ac" else 1):
                await asyncio.sleep(0)
            events.append(state["trajectory_id"])
            return "a"

        group(env(), script, 4, trajectory_ids=list("abcd"), limit=asyncio.Semaphore(2))
        return events

    assert trace() == trace()


def test_a_rollout_that_fails_for_outside_reasons_is_attempted_again():
    attempts = []

    def script(state):
        attempts.append(state["trajectory_id"])
        if len(attempts) == 1:
            raise whet.EmptyModelResponseError("nothing")
        return "a"

    states = group(env(), script, 2, max_retries=1, retry_delay=0)
    assert [state["reward"] for state in states] == [1.0, 1.0]
    assert len(attempts) == 3


def test_a_reward_that_fails_is_attempted_again_with_its_group():
    scored = []

    def flaky(completion):
        scored.append(1)
        if len(scored) == 1:
            raise ConnectionError("judge is down")
        return 1.0

    environment = whet.SingleTurnEnv(dataset=[TASK], rubric=whet.Rubric([flaky]))
    states = group(environment, ["a"], 2, max_retries=1, retry_delay=0)
    assert [state["reward"] for state in states] == [1.0, 1.0]
    assert len(scored) == 4


def test_retries_run_out_and_leave_the_error():
    (state,) = group(env(), [whet.EmptyModelResponseError("nothing")], 1, max_retries=2, retry_delay=0)
    assert isinstance(state["error"], whet.EmptyModelResponseError)


def test_the_environments_own_error_is_not_attempted_again():
    calls = []

    class Breaks(whet.MultiTurnEnv):
        async def env_response(self, messages, state, **kwargs):
            calls.append(1)
            raise RuntimeError

    group(Breaks(dataset=[TASK]), ["a"], 1, max_retries=3, retry_delay=0)
    assert calls == [1]


def test_a_mistake_of_the_users_ends_the_group_and_cleans_up_the_others():
    cleaned = []

    class Cleans(whet.SingleTurnEnv):
        @whet.cleanup
        async def note(self, state):
            cleaned.append(state["trajectory_id"])

    async def script(state):
        if state["trajectory_id"] == "b":
            raise whet.WhetError("no key")
        await asyncio.Event().wait()

    with pytest.raises(whet.WhetError, match="no key"):
        group(Cleans(dataset=[TASK]), script, 3, trajectory_ids=list("abc"))
    assert sorted(cleaned) == ["a", "b", "c"]


def test_rubric_cleanup_follows_scoring():
    order = []

    class Cleans(whet.Rubric):
        @whet.cleanup
        def note(self, state):
            order.append(state["reward"])

    group(whet.SingleTurnEnv(dataset=[TASK], rubric=Cleans([right])), ["a"])
    assert order == [1.0, 1.0]


def test_a_rubric_whose_own_code_raises_leaves_its_group_errored():
    class Breaks(whet.Rubric):
        async def score_group(self, states):
            raise LookupError("no table")

    states = group(whet.SingleTurnEnv(dataset=[TASK], rubric=whet.RubricGroup([Breaks()])), ["a"])
    assert [(state["reward"], type(state["error"])) for state in states] == [(None, whet.RewardError)] * 2
    assert "no table" in str(states[0]["error"])


def test_failing_rubric_cleanup_errors_only_its_rollout():
    cleaned = []

    class Breaks(whet.Rubric):
        @whet.cleanup(priority=1)
        def breaks(self, state):
            if state["trajectory_id"] == "a":
                raise OSError("still open")

        @whet.cleanup
        def note(self, state):
            cleaned.append(state["trajectory_id"])

    environment = whet.SingleTurnEnv(dataset=[TASK], rubric=Breaks([right]))
    states = group(environment, ["a"], trajectory_ids=["a", "b"])
    assert [(state["reward"], state["error"] is None) for state in states] == [(None, False), (1.0, True)]
    assert cleaned == ["a", "b"]


def test_no_limit_is_none():
    assert (rollout_limit(-1), rollout_limit(None), rollout_limit(0)) == (None, None, None)


def test_gather_waits_for_the_cancelled_before_it_fails():
    ended = []

    async def waits():
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0)
            ended.append(1)

    async def fails():
        await asyncio.sleep(0)
        raise ValueError("first")

    with pytest.raises(ValueError, match="first"):
        asyncio.run(gather([waits(), fails()]))
    assert ended == [1]


@pytest.mark.parametrize("outcome", ["returns", "raises"])
def test_work_to_the_end_outlives_a_cancellation(outcome):
    ended = []

    async def work():
        for _ in range(5):
            await asyncio.sleep(0)
        ended.append(1)
        if outcome == "raises":
            raise ValueError

    async def run():
        task = asyncio.ensure_future(to_the_end(work()))
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(run())
    assert ended == [1]


class Talks(whet.MultiTurnEnv):
    """Ends when it is told to, which nobody does."""

    async def env_response(self, messages, state, **kwargs):
        return [whet.UserMessage("go on")]


async def stalls_at_the_second_turn(turn):
    if turn:
        await asyncio.sleep(3600)
    return "first"


@pytest.mark.parametrize("in_a_group_of_environments", [False, True])
def test_rollout_timeout_keeps_transcript_and_scores_siblings(in_a_group_of_environments):
    talks = Talks(dataset=[TASK], rubric=whet.Rubric([right]))
    environment = whet.EnvGroup([env(), talks]) if in_a_group_of_environments else talks
    inputs = [environment.get_dataset()[-1]]
    client = whet.ScriptedClient(stalls_at_the_second_turn)
    (state,) = asyncio.run(run_group(environment, inputs, client, "m", {}, timeout=0.1))
    assert isinstance(state["error"], whet.Error)
    assert str(state["error"]) == "the rollout took longer than 0.1 s"
    assert [message.content for message in state["completion"]] == ["first"]
    assert (state["reward"], state["stop_condition"], state["is_completed"]) == (None, "has_error", True)
    assert state.get("info") == inputs[0].get("info")


def test_timeout_of_an_environment_without_progress():
    class Waits(whet.SingleTurnEnv):
        async def init_state(self, *args, **kwargs):
            await asyncio.sleep(3600)

    states = group(Waits(dataset=[TASK]), ["never asked"], timeout=0.05)
    assert [str(state["error"]) for state in states] == ["the rollout took longer than 0.05 s"] * 2


def test_a_time_out_of_the_environments_own_is_not_taken_for_ours():
    class TimesOut(whet.SingleTurnEnv):
        async def init_state(self, *args, **kwargs):
            raise TimeoutError("a server did not answer")

    (state,) = group(TimesOut(dataset=[TASK]), ["never asked"], 1, timeout=60.0)
    assert "a server did not answer" in str(state["error"])


def test_uncancellable_rollout_is_abandoned_at_its_timeout(monkeypatch):
    monkeypatch.setattr(cancellation, "GRACE_S", 0.05)

    class Stubborn(whet.SingleTurnEnv):
        async def init_state(self, *args, **kwargs):
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.Event().wait()
            await asyncio.Event().wait()  # until the loop is closed

    stubborn = Stubborn(dataset=[TASK])
    client = whet.ScriptedClient(["never asked"])
    (state,) = cancellation.run(run_group(stubborn, [TASK], client, "m", {}, timeout=0.05))
    assert str(state["error"]) == "the rollout took longer than 0.05 s"
