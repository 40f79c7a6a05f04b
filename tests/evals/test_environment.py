"""The environment of an evaluation: the tasks it takes, what `-x` sets, and whether answers were read."""

from __future__ import annotations

from typing import Any

import pytest

import whet
from whet.errors import ConfigError, DatasetError
from whet.evals.config import EvalConfig
from whet.evals.environment import apply_settings
from whet.evals.sessions.evaluation import select_rows


def environment(**settings: Any) -> whet.SingleTurnEnv:
    return whet.SingleTurnEnv(dataset=[{"question": str(number), "answer": ""} for number in range(50)], **settings)


def ids(config: dict[str, Any]) -> list[int]:
    rows = select_rows(environment(), EvalConfig(environment="e", **config))
    return [row["example_id"] for row in rows]


# Tasks


def test_tasks_come_in_the_order_of_the_dataset() -> None:
    assert ids({"num_examples": 3}) == [0, 1, 2]
    assert len(ids({"num_examples": -1})) == 50


def test_a_seed_gives_one_order_everywhere_and_more_tasks_continue_fewer() -> None:
    assert ids({"num_examples": 5, "shuffle": 3}) == [25, 49, 11, 17, 3]
    assert ids({"num_examples": 9, "shuffle": 3})[:5] == [25, 49, 11, 17, 3]
    assert ids({"num_examples": 5, "shuffle": 4}) != [25, 49, 11, 17, 3]
    assert sorted(ids({"num_examples": -1, "shuffle": 3})) == list(range(50))


def test_shuffling_leaves_the_environment_s_own_order() -> None:
    env = environment()
    select_rows(env, EvalConfig(environment="e", shuffle=3))
    assert [row["example_id"] for row in env.get_eval_dataset(3)] == [0, 1, 2]


def test_an_environment_without_tasks_is_named() -> None:
    env = environment()
    env.dataset = env.get_dataset().filter(lambda row: False)
    with pytest.raises(DatasetError, match="environment e: there is no task"):
        select_rows(env, EvalConfig(environment="e"))


# -x


def test_settings_are_set_by_their_method_where_there_is_one() -> None:
    env = environment()
    apply_settings(env, {"max_seq_len": 99, "score_rollouts": False, "timeout_seconds": 2.5})
    assert (env.max_seq_len, env.score_rollouts, env.timeout_seconds) == (99, False, 2.5)


@pytest.mark.parametrize("name", ["max_turn", "rollout", "_wiring"])
def test_what_is_no_setting_is_named_with_the_nearest(name: str) -> None:
    with pytest.raises(ConfigError, match=f"SingleTurnEnv has no setting '{name}'") as caught:
        apply_settings(environment(), {name: 1})
    if name == "max_turn":
        assert "Did you mean 'max_turns'?" in str(caught.value)


@pytest.mark.parametrize(
    ("settings", "should_be"),
    [
        ({"max_turns": "3"}, "'max_turns' should be a number"),
        ({"max_turns": True}, "'max_turns' should be a number"),
        ({"score_rollouts": 1}, "'score_rollouts' should be true or false"),
        ({"env_id": 3}, "'env_id' should be text"),
    ],
)
def test_a_value_of_another_kind_is_refused(settings: dict[str, Any], should_be: str) -> None:
    with pytest.raises(ConfigError, match=should_be):
        apply_settings(environment(), settings)


def test_a_group_passes_settings_on_to_those_that_have_them() -> None:
    child = whet.ToolEnv(tools=[], dataset=[{"question": "q", "answer": "a"}])
    group = whet.EnvGroup([environment(), child])
    apply_settings(group, {"max_turns": 4})
    assert child.max_turns == 4


# Answers that no parser could read


def said(text: str) -> dict[str, Any]:
    return {"completion": [{"role": "assistant", "content": text}]}


XML = whet.XMLParser(["answer"])


@pytest.mark.parametrize(
    ("text", "failed"), [("<answer>3</answer>", False), ("3", True), ("<answer> </answer>", True), ("", True)]
)
def test_a_parser_that_finds_nothing_has_failed(text: str, failed: bool) -> None:
    assert environment(parser=XML, rubric=whet.Rubric(parser=XML)).parse_failed(said(text)) is failed


def test_the_parser_of_the_reward_functions_counts_where_the_environment_has_none() -> None:
    env = environment(rubric=whet.RubricGroup([whet.Rubric(), whet.Rubric(parser=XML)]))
    assert env.parse_failed(said("3")) is True


def test_an_environment_that_takes_any_text_never_fails_to_read_it() -> None:
    assert environment().parse_failed(said("")) is None
    assert environment(parser=XML).parse_failed({"completion": None}) is None


def test_a_parser_that_breaks_on_a_text_has_found_nothing_in_it() -> None:
    parser = whet.Parser(extract_fn=lambda text: str(int(text)))
    env = environment(parser=parser, rubric=whet.Rubric(parser=parser))
    assert [env.parse_failed(said(text)) for text in ("12", "twelve")] == [False, True]


def test_a_rollout_of_a_group_is_read_by_its_own_environment() -> None:
    group = whet.EnvGroup([environment(), environment(parser=XML, rubric=whet.Rubric(parser=XML))], ["plain", "xml"])
    assert group.parse_failed({**said("3"), "info": {"env_id": "xml"}}) is True
    assert group.parse_failed({**said("3"), "info": {"env_id": "plain"}}) is None
