"""What a reward function gets, what may come out of it, and how scores become a reward and an advantage."""

import asyncio
import functools

import pytest

import whet
from whet.rubrics.rubric import Rubric
from whet.types import AssistantMessage, RolloutTiming, State, UserMessage


def state(text="4", reward_of_step=None, **row):
    row = {"prompt": [UserMessage("2+2")], "example_id": 0, "answer": "4", "info": {"n": 1}, **row}
    step = {"reward": reward_of_step, "advantage": None}
    return State(
        input=row, task=row, completion=[AssistantMessage(text)], trajectory=[step], error=None, timing=RolloutTiming()
    )


def score(rubric, *states):
    asyncio.run(rubric.score_group(list(states)))
    return [one["reward"] for one in states]


def right(completion, answer):
    return float(completion[-1].content == answer)


def test_functions_take_what_they_name():
    seen = {}

    def everything(prompt, completion, answer, info, state, task, parser, level, helper, missing="default"):
        seen.update(locals())
        return 0.0

    rubric = Rubric([everything])
    rubric.add_class_object("helper", "from the rubric")
    one = state(level=3)
    score(rubric, one)
    assert seen["prompt"] == [UserMessage("2+2")]
    assert (seen["answer"], seen["info"], seen["level"], seen["missing"]) == ("4", {"n": 1}, 3, "default")
    assert (seen["state"], seen["parser"], seen["helper"]) == (one, rubric.parser, "from the rubric")


def test_a_function_with_kwargs_gets_everything():
    seen = {}
    score(Rubric([lambda **kwargs: seen.update(kwargs) or 0.0]), state(level=3))
    assert {"prompt", "completion", "answer", "info", "state", "task", "parser", "level"} <= set(seen)


def test_functions_read_the_reward_that_a_hook_left():
    def of_tests(state):
        return state["reward"] or 0.0

    one, other = state("wrong"), state("wrong")
    one["reward"], other["reward"] = 0.5, None
    group = whet.RubricGroup([Rubric([right, of_tests]), Rubric([of_tests], weights=[2.0])])
    assert score(group, one, other) == [1.5, 0.0]


def test_rewards_are_weighted_and_metrics_are_not():
    def length(completion):
        return len(completion[-1].content)

    rubric = Rubric([right], weights=[2.0])
    rubric.add_metric(length)
    one = state()
    assert score(rubric, one) == [2.0]
    assert one["metrics"] == {"right": 1.0, "length": 1.0}


def test_weights_must_match_functions():
    with pytest.raises(whet.WhetError, match="1 reward functions and 2 weights"):
        Rubric([right], weights=[1.0, 1.0])


def test_async_functions_of_a_group_run_concurrently():
    running = []

    async def meet(state):
        running.append(state)
        while len(running) < 2:
            await asyncio.sleep(0)
        return 1.0

    assert score(Rubric([meet]), state(), state()) == [1.0, 1.0]


def test_functions_run_in_order_and_later_ones_see_what_earlier_ones_left():
    def first(state):
        state["seen"] = 5
        return 0.0

    async def second(state):
        return state["seen"]

    assert score(Rubric([first, second]), state()) == [5.0]


def test_advantages_are_centred_on_the_group():
    good, bad = state("4"), state("5")
    score(Rubric([right]), good, bad)
    assert (good["advantage"], bad["advantage"]) == (0.5, -0.5)


def test_a_step_keeps_its_own_reward_and_gets_the_rollouts_otherwise():
    own, inherited = state("4", reward_of_step=0.25), state("5")
    score(Rubric([right]), own, inherited)
    assert (own["trajectory"][0]["reward"], own["trajectory"][0]["advantage"]) == (0.25, 0.5)
    assert inherited["trajectory"][0]["reward"] == 0.0


@pytest.mark.parametrize("kind", ["plural", "annotation", "text annotation"])
def test_a_group_function_scores_all_rollouts_at_once(kind):
    def plural(completions):
        return [len(completion[-1].content) for completion in completions]

    def annotated(states) -> list[float]:
        return plural([state["completion"] for state in states])

    function = plural if kind == "plural" else annotated
    if kind == "text annotation":
        annotated.__annotations__["return"] = "list[float]"
    assert score(Rubric([function]), state("a"), state("bbb")) == [1.0, 3.0]


def test_a_group_function_sees_only_rollouts_that_are_not_errored():
    broken = state()
    broken["error"] = whet.ModelError("gone")

    def count(states):
        return [float(len(states))] * len(states)

    assert score(Rubric([count]), state(), broken, state()) == [2.0, None, 2.0]


@pytest.mark.parametrize("values", [[1.0], 1.0, "ab", {"a": 1, "b": 2}])
def test_a_group_function_must_return_a_number_for_each(values):
    one, other = state(), state()
    assert score(Rubric([lambda states: values]), one, other) == [None, None]
    assert "list of 2 numbers" in str(one["error"])


def test_an_errored_rollout_is_not_scored_and_does_not_move_the_others():
    broken = state("5")
    broken["error"] = whet.ModelError("gone")
    good, better = state("4"), state("4")
    assert score(Rubric([right]), good, broken, better) == [1.0, None, 1.0]
    assert good["advantage"] == 0.0
    assert "advantage" not in broken


def test_numbers_of_any_kind_are_rewards():
    class Scalar:
        def __float__(self):
            return 0.5

    for value, expected in [(True, 1.0), (2, 2.0), (Scalar(), 0.5)]:
        assert score(Rubric([lambda state, value=value: value]), state()) == [expected]


def test_names_come_from_partials_and_objects():
    class Scorer:
        def __call__(self, completion):
            return 1.0

    one = state()
    score(Rubric([functools.partial(right, answer="4"), Scorer()]), one)
    assert one["metrics"] == {"right": 1.0, "Scorer": 1.0}


def test_a_mistake_of_the_users_ends_the_scoring():
    def needs_key(state):
        whet.ensure_keys(["WHET_TEST_NO_SUCH_KEY"])

    with pytest.raises(whet.MissingKeyError, match="WHET_TEST_NO_SUCH_KEY"):
        score(Rubric([needs_key]), state())


def test_one_broken_function_in_a_group_of_rubrics_leaves_the_reward_none():
    def broken(state):
        raise RuntimeError

    one = state()
    assert score(whet.RubricGroup([Rubric([right]), Rubric([broken]), Rubric([right])]), one) == [None]
    assert one["metrics"] == {"right": 1.0}


def test_a_group_of_rubrics_adds_rewards_and_merges_metrics():
    def half(state):
        return 0.5

    one = state()
    group = whet.RubricGroup([Rubric([right]), Rubric([half, right], weights=[1.0, 0.0])])
    assert score(group, one) == [1.5]
    assert one["metrics"] == {"right": 2.0, "half": 0.5}
    assert group._get_reward_func_names() == ["right", "half", "right"]


def test_a_rubric_that_scores_groups_its_own_way_is_asked_to():
    class Ranks(Rubric):
        async def score_group(self, states):
            await super().score_group(states)
            for place, one in enumerate(states):
                one["reward"] = float(place)

    first, second = state("4"), state("4")
    assert score(whet.RubricGroup([Ranks([right]), Rubric([right])]), first, second) == [1.0, 2.0]
    assert (first["advantage"], first["trajectory"][0]["advantage"]) == (-0.5, -0.5)


def test_group_functions_refuse_independent_scoring():
    def best_of(states):
        return [1.0] * len(states)

    with pytest.raises(whet.WhetError, match="best_of"):
        asyncio.run(Rubric([best_of]).score_rollout(state()))


def test_cleanup_and_teardown_handlers_run_by_priority():
    order = []

    class Cleans(Rubric):
        @whet.cleanup
        async def b(self, state):
            order.append("b")

        @whet.cleanup(priority=1)
        def a(self, completion):
            order.append(f"a {completion[-1].content}")

        @whet.teardown
        async def end(self):
            order.append("end")

    group = whet.RubricGroup([Cleans()])
    asyncio.run(group.cleanup(state()))
    asyncio.run(group.teardown())
    assert order == ["a 4", "b", "end"]


@pytest.mark.parametrize(("value", "errored"), [(1e30, False), (-1e30, False), (1.1e30, True), (-1e308, True)])
def test_rewards_whose_sums_would_not_be_finite_are_errors(value, errored):
    env = whet.SingleTurnEnv(dataset=[{"question": "?", "answer": "x"}], rubric=whet.Rubric(funcs=[lambda: value]))
    results = env.evaluate_sync(whet.ScriptedClient(["."]), "m", rollouts_per_example=4)
    errors = [row["error"] for row in results["outputs"]]
    assert [error is not None for error in errors] == [errored] * 4
    if errored:
        said = f"returned {value}, which is above 1e+30, the largest that a reward may be"
        assert said in errors[0]["error_chain_repr"]


def test_the_error_of_a_reward_function_names_package_and_line(tmp_path):
    """Its own line, and where a library raised, that of the library too."""
    path = tmp_path / "scores_badly.py"
    path.write_text(
        "import json\nimport whet\n\n\ndef missing(answer):\n    return {}[answer]\n\n\n"
        "def unreadable(answer):\n    return json.loads(answer)\n\n\ndef text(answer):\n    return answer\n\n\n"
        "def load_environment(function='missing'):\n"
        "    rubric = whet.Rubric(funcs=[globals()[function]])\n"
        "    return whet.SingleTurnEnv(dataset=[{'question': '?', 'answer': 'x'}], rubric=rubric)\n"
    )

    def error_of(function):
        env = whet.load_environment(str(path), function=function)
        (row,) = env.evaluate_sync(whet.ScriptedClient(["."]), "m")["outputs"]
        return row["error"]["error_chain_repr"]

    assert f"reward function 'missing' of scores_badly raised KeyError: 'x' ({path}:6)" in error_of("missing")
    assert f"of scores_badly raised JSONDecodeError: Expecting value: line 1 column 1 (char 0) ({path}:10, in " in (
        error_of("unreadable")
    )
    assert "reward function 'text' of scores_badly returned 'x', which is not a finite number" in error_of("text")
