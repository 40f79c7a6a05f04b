"""Contract of the environment library: how an `Environment` is made, and its settings.

1. `Environment` takes dataset, eval_dataset, system_prompt, few_shot, parser, rubric, sampling_args, message_type,
   tool_defs, max_workers, env_id, env_args, map_kwargs, max_seq_len, score_rollouts and pass_threshold, with the
   defaults of 0.1.
2. At least one dataset is required.
3. Without a parser or a rubric there are plain ones; the default rubric gives 0.
4. `tool_defs` are dicts or `Tool`s, and are offered to the model.
5. `map_kwargs`, `max_workers` and `message_type` are accepted and change nothing.
6. `env_id` and `env_args` are in the metadata.
7. `__post_init__` runs once everything is constructed.
8. `set_kwargs` uses a setter where there is one, and otherwise sets the attribute.
9. `set_max_seq_len`, `set_score_rollouts`, `set_concurrency` and `set_max_total_completion_tokens` set what they name.
10. `score_rollouts=False` gives reward 0 without running the rubric.
11. `add_rubric` adds to the rewards, any number of times.
12. `pass_threshold` is the reward at which a rollout counts as passed.
13. An environment that is made twice shares nothing with the first.
14. The arguments are documented, each by name.
15. A value of the wrong kind is one clear error: what was given, and what it should be.
"""

import inspect

import pytest

import whet

ROW = {"question": "q", "answer": "a"}
DEFAULTS = {
    "dataset": None,
    "eval_dataset": None,
    "system_prompt": None,
    "few_shot": None,
    "parser": None,
    "rubric": None,
    "sampling_args": None,
    "message_type": "chat",
    "tool_defs": None,
    "max_workers": 512,
    "env_id": None,
    "env_args": None,
    "map_kwargs": None,
    "max_seq_len": None,
    "score_rollouts": True,
    "pass_threshold": 0.5,
}
TOOL = {"name": "look", "description": "Look.", "parameters": {"type": "object", "properties": {}}}


def outputs_of(env, script=("a",), **kwargs):
    return env.evaluate_sync(whet.ScriptedClient(list(script)), "m", **kwargs)


def test_1_the_arguments_and_their_defaults():
    parameters = list(inspect.signature(whet.Environment.__init__).parameters.values())[1:]
    named = {
        parameter.name: parameter.default for parameter in parameters if parameter.kind is not parameter.VAR_KEYWORD
    }
    assert named == DEFAULTS


@pytest.mark.parametrize("cls", [whet.SingleTurnEnv, whet.ToolEnv])
def test_2_a_dataset_is_required(cls):
    with pytest.raises(whet.WhetError, match=f"{cls.__name__} has no dataset"):
        cls()
    assert cls(eval_dataset=[ROW]).get_eval_dataset()
    assert cls(dataset=[ROW]).get_dataset()


def test_3_plain_parser_and_rubric_by_default():
    env = whet.SingleTurnEnv(dataset=[ROW])
    assert type(env.parser) is whet.Parser
    assert outputs_of(env)["outputs"][0]["reward"] == 0.0


@pytest.mark.parametrize("tool", [TOOL, whet.Tool(**TOOL)])
def test_4_tool_defs_are_told_to_the_model(tool):
    told = []
    client = whet.ScriptedClient(lambda tools: told.append(tools) or "a")
    whet.SingleTurnEnv(dataset=[ROW], tool_defs=[tool]).evaluate_sync(client, "m")
    assert told == [[TOOL]]
    assert isinstance(told[0][0], whet.Tool)


def test_5_arguments_of_0_1_that_change_nothing():
    env = whet.SingleTurnEnv(dataset=[ROW], map_kwargs={"num_proc": 4}, max_workers=3, message_type="completion")
    assert (env.map_kwargs, env.max_workers, env.message_type) == ({"num_proc": 4}, 3, "completion")
    assert outputs_of(env)["outputs"][0]["prompt"] == [{"role": "user", "content": "q"}]


def test_6_id_and_arguments_are_in_the_metadata():
    metadata = outputs_of(whet.SingleTurnEnv(dataset=[ROW], env_id="mine", env_args={"level": 2}))["metadata"]
    assert (metadata["env_id"], metadata["env_args"]) == ("mine", {"level": 2})


def test_7_post_init_comes_last():
    class Env(whet.SingleTurnEnv):
        def __post_init__(self):
            self.seen = (self.dataset is not None, self.rubric is not None, self.env_id)

    assert Env(dataset=[ROW], env_id="x").seen == (True, True, "x")


def test_8_set_kwargs_uses_setters_and_attributes():
    class Env(whet.SingleTurnEnv):
        def set_level(self, level):
            self.level = level * 10

    env = Env(dataset=[ROW])
    env.set_kwargs(level=2, max_seq_len=7, anything="new")
    assert (env.level, env.max_seq_len, env.anything) == (20, 7, "new")


def test_9_setters_set_what_they_name():
    env = whet.SingleTurnEnv(dataset=[ROW])
    env.set_max_seq_len(1)
    env.set_score_rollouts(False)
    env.set_concurrency(3)
    env.set_max_total_completion_tokens(4)
    assert (env.max_seq_len, env.score_rollouts, env.concurrency, env.max_total_completion_tokens) == (1, False, 3, 4)


def test_10_without_scoring_the_rubric_does_not_run():
    def explode():
        raise AssertionError("scored")

    (output,) = outputs_of(whet.SingleTurnEnv(dataset=[ROW], rubric=whet.Rubric([explode]), score_rollouts=False))[
        "outputs"
    ]
    assert (output["reward"], output["error"], output["metrics"]) == (0.0, None, {})


def test_11_added_rubrics_add_up():
    env = whet.SingleTurnEnv(dataset=[ROW], rubric=whet.Rubric([lambda: 1.0]))
    env.add_rubric(whet.Rubric([lambda: 2.0]))
    env.add_rubric(whet.Rubric([lambda: 4.0], weights=[0.5]))
    assert outputs_of(env)["outputs"][0]["reward"] == 5.0


@pytest.mark.parametrize(("threshold", "passed"), [(0.5, 1.0), (0.6, 1.0), (0.7, 0.0)])
def test_12_the_pass_threshold(threshold, passed):
    env = whet.SingleTurnEnv(dataset=[ROW], rubric=whet.Rubric([lambda: 0.6]), pass_threshold=threshold)
    metadata = outputs_of(env, rollouts_per_example=2)["metadata"]
    assert (metadata["pass_threshold"], metadata["pass_at_k"]["1"], metadata["pass_all_k"]["2"]) == (
        threshold,
        passed,
        passed,
    )


def test_13_two_environments_share_nothing():
    first, second = (whet.SingleTurnEnv(dataset=[ROW]) for _ in range(2))
    first.env_args["level"] = 1
    first.map_kwargs["x"] = 1
    first.sampling_args["n"] = 2
    first.rubric.add_class_object("thing", 1)
    assert (second.env_args, second.map_kwargs, second.sampling_args) == ({}, {}, {})
    first.get_dataset()[0]["question"] = "changed"
    assert ROW["question"] == "q"


@pytest.mark.parametrize(
    "cls",
    [
        whet.Environment,
        whet.MultiTurnEnv,
        whet.ToolEnv,
        whet.EnvGroup,
        whet.Rubric,
        whet.RubricGroup,
        whet.JudgeRubric,
        whet.MathRubric,
        whet.Parser,
        whet.XMLParser,
    ],
)
def test_14_every_argument_is_documented(cls):
    text = cls.__init__.__doc__
    for parameter in list(inspect.signature(cls.__init__).parameters.values())[1:]:
        if parameter.name != "unknown":
            assert f"{parameter.name}:" in text, parameter.name


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (
            lambda: whet.SingleTurnEnv(dataset=[ROW], rubric=len),
            "rubric=<built-in function len>; it should be a Rubric",
        ),
        (lambda: whet.SingleTurnEnv(dataset=[ROW], rubric=whet.Rubric), "should be a Rubric, such as Rubric"),
        (lambda: whet.SingleTurnEnv(dataset=[ROW], parser=whet.Parser), "should be a Parser, such as Parser"),
        (lambda: whet.SingleTurnEnv(dataset=[ROW], system_prompt=3), "system_prompt=3; it should be text"),
        (
            lambda: whet.SingleTurnEnv(dataset=[ROW], max_seq_len="9"),
            "max_seq_len='9'; it should be a number of tokens",
        ),
        (lambda: whet.SingleTurnEnv(dataset=[ROW], pass_threshold=True), "pass_threshold=True; it should be a number"),
        (
            lambda: whet.ToolEnv(dataset=[ROW], max_turns="3"),
            "ToolEnv has max_turns='3'; it should be a number of turns",
        ),
        (lambda: whet.ToolEnv(dataset=[ROW], timeout_seconds=0), "timeout_seconds=0; it should be a number of seconds"),
        (lambda: whet.ToolEnv(dataset=[ROW], tools=outputs_of), "it should be a list of functions"),
        (lambda: whet.ToolEnv(dataset=[ROW], stop_errors=ValueError), "it should be a list of classes of errors"),
        (lambda: whet.Rubric(len), "Rubric has funcs=<built-in function len>; it should be a list"),
        (lambda: whet.Rubric([3]), "Rubric has the reward function 3, which is no function"),
        (lambda: whet.Rubric([len], ["1"]), "Rubric has the weight '1'; it should be a number"),
        (lambda: whet.SingleTurnEnv(dataset=[ROW], few_shot=[3]), "few_shot is not a list of messages"),
    ],
)
def test_15_a_value_that_makes_no_sense_is_one_clear_error(make, says):
    with pytest.raises(whet.WhetError, match=says) as caught:
        make()
    assert "\n" not in str(caught.value)
