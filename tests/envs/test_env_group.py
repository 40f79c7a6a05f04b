"""Several environments as one: rows, routing, scoring, settings."""

import asyncio

import pytest

import whet
from whet.envs.env_group import held_out_rows, member_names, member_of
from whet.rollouts.groups import run_group


def rows(*names, **more):
    return [{"question": name, "answer": name, **more} for name in names]


def echo(prompt):
    return prompt[-1].content


def right(completion, answer):
    return float(completion[-1].content == answer)


def length(completion):
    return float(len(completion[-1].content))


def sees_no_route(info, state):
    return float("env_id" not in info and "env_id" not in state.get("info", {}))


def single(*names, funcs=(right,), **kwargs):
    return whet.SingleTurnEnv(dataset=rows(*names), rubric=whet.Rubric(list(funcs)), **kwargs)


def pair(**kwargs):
    envs = [single("a", "b", system_prompt="first"), single("c", funcs=[length, sees_no_route])]
    return whet.EnvGroup(envs, env_names=["one", "two"], **kwargs)


def test_rows_of_all_follow_one_another_with_new_ids_and_their_environments_name():
    dataset = pair().get_dataset()
    assert dataset["example_id"] == [0, 1, 2]
    assert dataset["info"] == [{"env_id": "one"}, {"env_id": "one"}, {"env_id": "two"}]
    assert [prompt[0].role for prompt in dataset["prompt"]] == ["system", "system", "user"]


def test_the_environments_own_rows_stay_as_they_are():
    group = pair()
    group.get_dataset()
    assert "info" not in group.envs[0].get_dataset()[0]
    assert group.envs[1].get_dataset()["example_id"] == [0]


def test_names_are_numbers_unless_given():
    assert whet.EnvGroup([single("a"), single("b")]).env_names == ["env_0", "env_1"]


def test_each_rollout_is_scored_by_its_own_environment_and_has_the_metrics_of_all():
    outputs = pair().evaluate_sync(whet.ScriptedClient(echo), "m")["outputs"]
    assert [output["reward"] for output in outputs] == [1.0, 1.0, 2.0]
    assert [output["metrics"] for output in outputs] == [
        {"length": 0.0, "num_turns": 1.0, "right": 1.0, "sees_no_route": 0.0},
        {"length": 0.0, "num_turns": 1.0, "right": 1.0, "sees_no_route": 0.0},
        {"length": 1.0, "num_turns": 1.0, "right": 0.0, "sees_no_route": 1.0},
    ]
    assert [output["info"]["env_id"] for output in outputs] == ["one", "one", "two"]


def test_the_advantage_of_a_group_comes_from_its_environments_rubric():
    group = pair()
    answers = iter(["a", "x"])
    states = asyncio.run(
        run_group(group, [group.get_dataset()[0]] * 2, whet.ScriptedClient(lambda prompt: next(answers)), "m", {})
    )
    assert [state["advantage"] for state in states] == [0.5, -0.5]


def test_a_rubric_added_to_the_group_scores_all():
    group = pair()
    group.add_rubric(whet.Rubric([length]))
    outputs = group.evaluate_sync(whet.ScriptedClient(echo), "m")["outputs"]
    assert [output["reward"] for output in outputs] == [2.0, 2.0, 3.0]


def test_groups_hold_groups():
    outer = whet.EnvGroup([single("z"), pair()], env_names=["alone", "both"])
    assert outer.get_dataset()["info"] == [
        {"env_id": "alone"},
        {"env_id": ["both", "one"]},
        {"env_id": ["both", "one"]},
        {"env_id": ["both", "two"]},
    ]
    outputs = outer.evaluate_sync(whet.ScriptedClient(echo), "m")["outputs"]
    assert [output["reward"] for output in outputs] == [1.0, 1.0, 1.0, 2.0]
    assert outputs[3]["info"] == {"env_id": ["both", "two"]}
    assert outputs[3]["metrics"]["sees_no_route"] == 1.0


def test_info_of_the_author_is_kept_also_as_json():
    env = whet.SingleTurnEnv(
        dataset=rows("a", info='{"n": [1, "x"]}'), rubric=whet.Rubric([lambda info: float(info == {"n": [1, "x"]})])
    )
    (output,) = whet.EnvGroup([env]).evaluate_sync(whet.ScriptedClient(echo), "m")["outputs"]
    assert (output["reward"], output["info"]) == (1.0, {"n": [1, "x"], "env_id": "env_0"})


def test_tools_are_those_of_the_rollouts_own_environment():
    def look(place: str) -> str:
        """Look."""
        return place

    group = whet.EnvGroup([whet.ToolEnv(tools=[look], dataset=rows("a")), single("b")])
    seen = []

    def answer(prompt, tools):
        seen.append([tool.name for tool in tools or []])
        return "done"

    group.evaluate_sync(whet.ScriptedClient(answer), "m")
    assert sorted(seen) == [[], ["look"]]


def test_an_errored_rollout_has_no_reward():
    def breaks(completion):
        raise ValueError("no")

    group = whet.EnvGroup([single("a", funcs=[breaks]), single("b")])
    results = group.evaluate_sync(whet.ScriptedClient(echo), "m")
    assert [output["reward"] for output in results["outputs"]] == [None, 1.0]
    assert results["metadata"]["num_errors"] == 1


def test_an_environment_that_is_not_scored_gets_zero():
    group = whet.EnvGroup([single("a", score_rollouts=False), single("b")])
    outputs = group.evaluate_sync(whet.ScriptedClient(echo), "m")["outputs"]
    assert [output["reward"] for output in outputs] == [0.0, 1.0]


def test_settings_reach_every_environment():
    group = whet.EnvGroup([pair(), single("z")])
    group.set_kwargs(max_seq_len=7, concurrency=3, max_total_completion_tokens=9, timeout_seconds=5.0)
    group.set_score_rollouts(False)
    for env in [*group.envs[0].envs, group.envs[1]]:
        assert (env.max_seq_len, env.concurrency, env.score_rollouts) == (7, 3, False)
        assert (env.max_total_completion_tokens, env.timeout_seconds) == (9, 5.0)


def test_datasets_given_as_functions_are_built_on_first_use():
    built = []

    def build():
        built.append(1)
        return rows("a")

    group = whet.EnvGroup([whet.SingleTurnEnv(dataset=build), single("b")])
    assert built == []
    assert len(group.get_dataset()) == 2
    assert built == [1]


def test_held_out_rows_are_those_of_the_environments_that_have_some():
    group = whet.EnvGroup([single("a"), whet.SingleTurnEnv(eval_dataset=rows("x", "y"))])
    assert group.get_dataset()["answer"] == ["a"]
    assert group.get_eval_dataset()["answer"] == ["x", "y"]


def test_a_row_that_names_no_environment_of_the_group_is_a_mistake():
    group = pair()
    with pytest.raises(whet.WhetError, match="take inputs from the group"):
        group.generate_sync([{"prompt": [whet.UserMessage("q")], "example_id": 0}], whet.ScriptedClient(echo), "m")
    with pytest.raises(whet.WhetError, match="No environment found for 'three'; the group has: one, two"):
        group.get_env_for_name("three")


@pytest.mark.parametrize(
    ("envs", "names", "message"),
    [(0, None, "at least one"), (2, ["a"], "2 environments and 1"), (2, ["a", "a"], "two environments called 'a'")],
)
def test_a_group_that_cannot_be_told_apart_is_refused(envs, names, message):
    with pytest.raises(whet.WhetError, match=message):
        whet.EnvGroup([single("a") for _ in range(envs)], env_names=names)


def test_closing_the_group_closes_its_environments():
    closed = []

    class Closes(whet.SingleTurnEnv):
        @whet.teardown
        async def stop_server(self):
            closed.append(self.env_id)

    group = whet.EnvGroup([Closes(dataset=rows("a"), env_id=name) for name in ("x", "y")])
    asyncio.run(group.close())
    asyncio.run(group.close())
    assert closed == ["x", "y"]


def test_held_out_tasks_are_taken_by_turns_also_of_groups_in_groups():
    inner = whet.EnvGroup([single("c", "d"), single("e")], env_names=["x", "y"])
    env = whet.EnvGroup([single("a", "b", "f"), inner], env_names=["one", "two"])
    assert member_names(env) == ["one", "two/x", "two/y"]
    taken = held_out_rows(env)
    assert [row["answer"] for row in taken] == ["a", "c", "e", "b", "d", "f"]
    assert [member_of(row) for row in taken[:3]] == ["one", "two/x", "two/y"]
    assert held_out_rows(env, 4) == taken[:4]
    assert held_out_rows(env, seed=3) == list(env.get_eval_dataset(seed=3))
    assert held_out_rows(env, 4, 3) == list(env.get_eval_dataset(4, seed=3))
    assert member_names(single("a")) == []
