"""Scores: of one rollout, of a group, and the order in which everything runs."""

import asyncio

import pytest

import whet
from whet.errors import ConfigError
from whet.rollouts.groups import run_group


def answers(*texts: str):
    """A model that gives these answers, one for each rollout of a group."""
    given = iter(texts)
    return lambda prompt: next(given)


def right(task, state) -> float:
    return float(state["completion"][-1]["content"] == task["answer"])


def test_functions_may_name_what_they_name_in_any_environment_and_the_answer_is_the_task_s(rows, roll) -> None:
    def plain(completion, answer, info, prompt) -> float:
        return float(completion[-1]["content"] == answer and info == {"a": 1} and prompt[-1]["content"] == "What is 0?")

    async def submit(state) -> None:
        state["answer"] = "submitted"

    env = whet.Env(whet.Taskset(source=rows(1, info={"a": 1}), rewards=[plain], updates=[submit]))
    (state,) = roll(env, ["0"])
    assert (state["reward"], state["answer"]) == (1.0, "submitted")


def test_a_rubric_that_is_added_is_given_the_task_s_answer_too(rows, roll) -> None:
    def by_rubric(completion, answer) -> float:
        return float(completion[-1]["content"] == answer)

    env = whet.Env(whet.Taskset(source=rows(), rewards=[right]))
    env.add_rubric(whet.Rubric(funcs=[by_rubric]))
    (state,) = roll(env, ["0"])
    assert (state["reward"], state["metrics"]) == (2.0, {"right": 1.0, "by_rubric": 1.0, "num_turns": 1.0})


def test_weights_stages_and_names_come_from_the_decorators(rows, roll) -> None:
    class Scored(whet.Taskset):
        @whet.reward(weight=0.5)
        async def right(self, task, state):
            return right(task, state)

        @whet.metric
        def length(self, task, state):
            return len(state["completion"])

        @whet.reward(stage="group", weight=2.0)
        def rank(self, tasks, states):
            return [state["reward"] for state in states]

    first, second = roll(whet.Env(Scored(source=rows())), answers("0", "x"), size=2)
    assert [first["reward"], second["reward"]] == [0.5 + 2.0 * 0.5, 0.0]
    assert first["metrics"] == {"length": 1.0, "right": 1.0, "rank": 0.5, "num_turns": 1.0}


def test_the_advantage_is_computed_once_from_the_total_reward(rows, roll) -> None:
    seen = []

    @whet.advantage
    async def over_the_best(tasks, states):
        seen.append([state["reward"] for state in states])
        return [state["reward"] - max(seen[-1]) for state in states]

    env = whet.Env(whet.Taskset(source=rows(), rewards=[right], advantages=[over_the_best]))
    env.add_rubric(whet.Rubric(funcs=[lambda completion: 10.0 * len(completion[-1]["content"])]))
    first, second = roll(env, answers("0", "xx"), size=2)
    assert seen == [[11.0, 20.0]]
    assert [first["advantage"], second["advantage"]] == [-9.0, 0.0]
    assert [step["advantage"] for step in first["trajectory"]] == [-9.0]
    assert env.rubric.has_advantages


def test_without_one_the_advantage_is_the_reward_less_the_mean(rows, roll) -> None:
    first, second = roll(whet.Env(whet.Taskset(source=rows(), rewards=[right])), answers("0", "x"), size=2)
    assert [first["advantage"], second["advantage"]] == [0.5, -0.5]


def test_two_advantages_are_refused(rows) -> None:
    with pytest.raises(ConfigError, match="both set advantages"):
        whet.Env(whet.Taskset(source=rows(), advantages=[lambda tasks, states: [], named_advantage]))


def named_advantage(tasks, states):
    return [0.0] * len(states)


@pytest.mark.parametrize(
    ("lists", "said"),
    [
        ({"rewards": [right], "metrics": [right]}, "'right' scores twice"),
        ({"rewards": [{"fn": right, "stage": "group"}]}, "should take tasks and states"),
        ({"advantages": [right]}, "only whole groups have"),
        ({"rewards": [whet.metric(lambda task: 1.0)]}, "marked as metric"),
        ({"rewards": [lambda: 1.0]}, "takes nothing"),
    ],
)
def test_functions_that_do_not_fit_are_refused_when_they_are_given(lists, said) -> None:
    with pytest.raises(ConfigError, match=said):
        whet.Taskset(source=[], **lists)


def test_signals_of_taskset_and_harness_share_their_names(rows) -> None:
    with pytest.raises(ConfigError, match="'right' scores twice"):
        whet.Env(whet.Taskset(source=rows(), rewards=[right]), whet.Harness(metrics=[right]))


def test_group_functions_are_known_of_and_cannot_score_rollouts_one_by_one(rows) -> None:
    env = whet.Env(whet.Taskset(source=rows(), rewards=[{"fn": named_advantage, "weight": 1.0}]))
    assert env.requires_group_rollouts
    assert not whet.Env(whet.Taskset(source=rows(), rewards=[right])).requires_group_rollouts
    with pytest.raises(ConfigError, match="named_advantage"):
        env.evaluate_sync(whet.ScriptedClient(["x"]), "m", independent_scoring=True)


@pytest.mark.parametrize("kind", ["updates", "cleanups"])
def test_a_group_update_or_clean_up_wants_groups_too(rows, kind) -> None:
    def whole(tasks, states) -> None: ...

    assert whet.Env(whet.Taskset(source=rows(), **{kind: [whole]})).requires_group_rollouts


def test_everything_runs_in_its_order(rows, roll, log, note) -> None:
    class Ordered(whet.Taskset):
        @whet.setup(priority=5)
        def first_setup(self, task, state):
            log.append("setup")

        @whet.update
        def update(self, task, state):
            log.append(f"update after {len(state['completion'])} message")

        @whet.reward
        def score(self, task, state):
            log.append("reward")
            return 1.0

        @whet.cleanup
        def clean(self, task, state):
            log.append(f"cleanup with reward {state['reward']}")

        @whet.update(stage="group")
        def group_update(self, tasks, states):
            log.append("group update")

        @whet.reward(stage="group")
        def group_score(self, tasks, states):
            log.append("group reward")
            return [1.0] * len(states)

        @whet.advantage
        def weigh(self, tasks, states):
            log.append("advantage")
            return [0.0] * len(states)

        @whet.cleanup(stage="group")
        def group_clean(self, tasks, states):
            log.append(f"group cleanup with reward {states[0]['reward']}")

        @whet.teardown
        def tear_down(self):
            log.append("teardown")

    roll(whet.Env(Ordered(source=rows(), setups=[note("second setup")])), ["a"])
    assert log == [
        "setup",
        "second setup",
        "update after 1 message",
        "reward",
        "cleanup with reward 1.0",
        "group update",
        "group reward",
        "advantage",
        "group cleanup with reward 2.0",
        "teardown",
    ]


def look() -> str:
    """Look."""
    return "nothing"


def test_what_is_added_after_an_environment_was_made_counts(rows, roll) -> None:
    taskset = whet.Taskset(source=rows())
    env = whet.Env(taskset)
    taskset.add_reward(right)
    taskset.add_metric(lambda task, state: 3.0)
    taskset.add_toolset(whet.Toolset(tools=[look]))
    env.harness.add_stop(lambda task, state: len(state["trajectory"]) == 5)
    (state,) = roll(env, ["0"])
    assert (state["reward"], [tool["name"] for tool in state["tool_defs"]]) == (1.0, ["look"])
    assert 3.0 in state["metrics"].values()


def test_a_group_is_begun_as_the_taskset_says(rows, roll, texts) -> None:
    class Varied(whet.Taskset):
        async def init_group(self, task, num_rollouts):
            tasks = [whet.Task({**task, "prompt": f"Variant {n}"}).freeze() for n in range(num_rollouts)]
            states = [whet.TaskState.for_task(task) for task in tasks]
            for number, state in enumerate(states):
                state["number"] = number
                state["runtime"]["max_turns"] = 1
            return tasks, states

    env = whet.Env(Varied(source=rows()))
    assert env.requires_group_rollouts
    states = roll(env, lambda prompt: prompt[0].content, size=3)
    assert [state["completion"][0].content for state in states] == ["Variant 0", "Variant 1", "Variant 2"]
    assert [state["number"] for state in states] == [0, 1, 2]
    assert len({state["runtime"]["group_key"] for state in states}) == 1
    grouped = whet.EnvGroup([whet.Env(Varied(source=rows()))], env_names=["varied"])
    states = roll(grouped, lambda prompt: prompt[0].content, size=2)
    assert [state["number"] for state in states] == [0, 1]
    assert states[0]["info"] == {"env_id": "varied"}


def test_a_group_that_is_tried_again_begins_as_it_did(rows, roll) -> None:
    class Varied(whet.Taskset):
        begun = 0
        scored = 0

        async def init_group(self, task, num_rollouts):
            self.begun += 1
            states = [whet.TaskState.for_task(task) for _ in range(num_rollouts)]
            for state in states:
                state["seen"] = []
            return [task] * num_rollouts, states

        @whet.setup
        def look(self, task, state):
            state["seen"].append("look")

        @whet.reward
        def flaky(self, task, state):
            self.scored += 1
            if self.scored == 1:
                raise OSError("the judge is away")
            return 1.0

    taskset = Varied(source=rows())
    states = roll(whet.Env(taskset), ["x"], size=2, max_retries=1, retry_delay=0.0)
    assert [(state["reward"], state["seen"]) for state in states] == [(1.0, ["look"])] * 2
    assert (taskset.begun, taskset.scored) == (1, 4)


@pytest.mark.parametrize("wrong", [lambda task, n: ([task], []), lambda task, n: 1 / 0, lambda task, n: None])
def test_a_group_that_cannot_be_begun_fails_alone(rows, wrong) -> None:
    class Broken(whet.Taskset):
        def init_group(self, task, num_rollouts):
            if task["answer"] == "0":
                return wrong(task, num_rollouts)
            return [task] * num_rollouts, [whet.TaskState.for_task(task) for _ in range(num_rollouts)]

    outputs = whet.Env(Broken(source=rows(2))).evaluate_sync(whet.ScriptedClient(["x"]), "m", rollouts_per_example=2)
    assert [output["error"] is None for output in outputs["outputs"]] == [False, False, True, True]
    assert "init_group" in outputs["outputs"][0]["error"]["error_chain_repr"]


@pytest.mark.parametrize(
    ("kind", "error"),
    [
        ("stops", "EnvError"),
        ("updates", "EnvError"),
        ("rewards", "RewardError"),
        ("metrics", "RewardError"),
        ("cleanups", "EnvError"),
    ],
)
def test_an_exception_in_a_function_fails_that_rollout_alone(rows, roll, call, kind, error) -> None:
    def ok_or_raise(task, state):
        said = state["trajectory"][0]["completion"][0]["content"] if state["trajectory"] else ""
        if said == "bad":
            raise ValueError("it broke")
        return 0.0

    env = whet.Env(whet.Taskset(source=rows(), toolsets=[look], **{kind: [ok_or_raise]}))
    begins_badly = iter([False, True, False])

    def script(turn):
        if turn:
            return "done"
        return {**call("look"), "content": "bad" if next(begins_badly) else "good"}

    good, bad, other = roll(env, script, size=3)
    assert (good["error"], other["error"]) == (None, None)
    assert type(bad["error"]).__name__ == error
    assert "it broke" in str(bad["error"])
    assert "ok_or_raise" in str(bad["error"])
    assert (bad["reward"], bad["advantage"]) == (None, None)
    assert good["advantage"] == 0.0


def test_an_exception_in_a_setup_or_a_user_fails_the_rollout(rows, roll) -> None:
    def broken(task, state=None, transcript=None):
        raise KeyError("lost")

    for taskset in (whet.Taskset(source=rows(), setups=[broken]), whet.Taskset(source=rows(), user=broken)):
        (state,) = roll(whet.Env(taskset), ["a"])
        assert "'broken' raised KeyError" in str(state["error"])


@pytest.mark.parametrize("kind", ["rewards", "updates", "cleanups", "advantages"])
def test_an_exception_in_a_group_function_fails_its_group_alone(rows, kind) -> None:
    def broken(tasks, states):
        if tasks[0]["answer"] == "0":
            raise ValueError("it broke")
        return [0.0] * len(states)

    env = whet.Env(whet.Taskset(source=rows(2), **{kind: [broken]}))
    outputs = env.evaluate_sync(whet.ScriptedClient(["x"]), "m", rollouts_per_example=2)["outputs"]
    assert [output["error"] is None for output in outputs] == [False, False, True, True]
    assert "it broke" in outputs[0]["error"]["error_chain_repr"]


@pytest.mark.parametrize("values", [[1.0], "ab", [float("nan"), 0.0], [1e308, 0.0], None])
def test_advantages_that_are_no_numbers_fail_the_group(rows, roll, values) -> None:
    states = roll(whet.Env(whet.Taskset(source=rows(), advantages=[lambda tasks, states: values])), ["x"], size=2)
    assert all(isinstance(state["error"], whet.RewardError) for state in states)


def test_group_functions_do_not_see_errored_rollouts(rows, roll) -> None:
    seen = []

    def whole(tasks, states) -> list[float]:
        seen.append(len(states))
        return [1.0] * len(states)

    env = whet.Env(whet.Taskset(source=rows(), rewards=[whole]))
    states = roll(env, answers("a", "b", whet.ModelError("down")), size=3)
    assert (seen, [state["reward"] for state in states]) == ([2], [1.0, 1.0, None])


@pytest.mark.parametrize("how", ["completed", "failed", "timed out", "cancelled", "not scored", "scoring off"])
def test_clean_up_runs_once_however_a_rollout_ends(rows, log, note, how) -> None:
    class Silent(whet.ScriptedClient):
        async def get_response(self, *args, **kwargs):
            if how in ("timed out", "cancelled"):
                asked.set()
                await asyncio.Event().wait()
            if how == "failed":
                raise whet.ModelError("down")
            return await super().get_response(*args, **kwargs)

    asked = asyncio.Event()
    env = whet.Env(
        whet.Taskset(source=rows(), cleanups=[note("clean")]), timeout_seconds=0.02 if how == "timed out" else None
    )
    env.set_score_rollouts(how != "scoring off")

    async def attempt() -> None:
        group = run_group(env, [env.get_dataset()[0]], Silent(["x"]), "m", {}, score=how != "not scored")
        task = asyncio.ensure_future(group)
        if how == "cancelled":
            await asked.wait()
            task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    asyncio.run(attempt())
    assert log == ["clean"]


def test_rollouts_whose_group_was_cancelled_before_its_scores_are_cleaned_up_at_the_latest_with_the_environment(
    rows, log, note
) -> None:
    asked = asyncio.Event()

    async def script(turn, state):
        if state["trajectory_id"] == "second":
            asked.set()
            await asyncio.Event().wait()
        return "x"

    env = whet.Env(whet.Taskset(source=rows(), cleanups=[note("clean")]))

    async def attempt() -> None:
        row = env.get_dataset()[0]
        ids = ["first", "second"]
        group = asyncio.ensure_future(
            run_group(env, [row] * 2, whet.ScriptedClient(script), "m", {}, trajectory_ids=ids)
        )
        await asked.wait()
        group.cancel()
        await asyncio.gather(group, return_exceptions=True)
        await env.close()

    asyncio.run(attempt())
    assert log == ["clean", "clean"]


def test_a_metric_of_its_own_called_num_turns_is_the_taskset_s(rows, roll) -> None:
    def num_turns(task, state) -> float:
        return 40.0

    (state,) = roll(whet.Env(whet.Taskset(source=rows(), metrics=[num_turns])), ["x"])
    assert state["metrics"] == {"num_turns": 40.0}


def test_an_env_group_scores_each_taskset_by_its_own_functions(rows, roll) -> None:
    @whet.advantage
    def flat(tasks, states):
        return [5.0] * len(states)

    own = whet.Env(whet.Taskset(source=rows(), rewards=[right], advantages=[flat]))
    plain = whet.Env(whet.Taskset(source=rows(), rewards=[lambda task: 1.0]))
    group = whet.EnvGroup([own, plain], env_names=["own", "plain"])
    states = roll(group, ["0"], size=2, row=0)
    assert [state["advantage"] for state in states] == [5.0, 5.0]
    assert group.rubric.sets_advantages_of(states)
    states = roll(group, ["0"], size=2, row=1)
    assert [state["advantage"] for state in states] == [0.0, 0.0]
    assert not group.rubric.sets_advantages_of(states)
