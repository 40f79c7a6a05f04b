"""What a newcomer types from the guide works as it stands."""

import re
import tomllib
from pathlib import Path
from types import ModuleType

import pytest

import whet
from whet.rl.config import RunConfig

GUIDE = (Path(__file__).parents[2] / "docs/guides/taskset.md").read_text()


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", GUIDE, re.DOTALL)


@pytest.fixture(scope="module")
def typed() -> ModuleType:
    """All the guide's Python, typed into one file from top to bottom."""
    module = ModuleType("mirror")
    for block in blocks("python"):
        exec(compile(block, "guides/taskset.md", "exec"), module.__dict__)
    return module


def reversed_word(prompt: whet.Messages) -> str:
    return prompt[0].content.split()[-1][::-1]


def test_the_first_version_scores_and_keeps_its_splits_apart(typed) -> None:
    env = typed.load_environment(whet.EnvConfig({"taskset": {"num_tasks": 40, "max_length": 9}}))
    train, held_out = ({row["answer"] for row in rows} for rows in (env.get_dataset(), env.get_eval_dataset()))
    assert (len(train), len(held_out), train & held_out) == (40, 40, set())
    outputs = env.evaluate_sync(whet.ScriptedClient(lambda prompt: f" {reversed_word(prompt)}\n"), "m", num_examples=3)
    assert [(row["reward"], row["exact_match"]) for row in outputs["outputs"]] == [(1.0, 1.0)] * 3


def test_the_training_config_is_valid_and_sets_what_it_says(typed) -> None:
    text = blocks("toml")[0]
    config = RunConfig.model_validate({"name": "mirror", **tomllib.loads(text)})
    env = typed.load_environment(whet.EnvConfig(config.env[0].loader_args()["config"]))
    assert env.taskset.config.max_length == 6
    (output,) = env.evaluate_sync(whet.ScriptedClient(reversed_word), "m", num_examples=1)["outputs"]
    assert output["reward"] == 2.0


def test_the_tools_are_called_and_count(typed, call, roll) -> None:
    (state,) = roll(typed.with_a_tool, lambda prompt, turn: call("letter", position=1) if turn == 0 else "x")
    assert (state["looks"], state["metrics"]["few_looks"]) == (1, -0.1)
    (state,) = roll(typed.with_a_dictionary, lambda turn: call("look_up", word="whet") if turn == 0 else "x")
    assert state["completion"][1]["content"] == "to sharpen"


@pytest.mark.usefixtures("bubblewrap")
def test_the_command_asks_twice_and_leaves_a_file(typed, roll) -> None:
    pytest.importorskip("uvicorn")
    (state,) = roll(typed.commanded, lambda prompt, turn: "first" if turn == 0 else reversed_word(prompt))
    assert (state["error"], state["metrics"]["from_the_file"], len(state["trajectory"])) == (None, 1.0, 2)


def test_the_harness_of_an_agent_from_a_registry_is_valid(typed) -> None:
    harness = tomllib.loads(blocks("toml")[1])["env"]["harness"]
    assert typed.load_environment(whet.EnvConfig({"harness": harness})).harness.command is not None


def test_the_program_asks_twice(typed, roll) -> None:
    (state,) = roll(typed.twice, lambda prompt, turn: "first" if turn == 0 else reversed_word(prompt))
    assert (state["changed_its_mind"], state["reward"]) == (True, 1.0)


def test_the_group_is_scored_by_who_was_first(typed, roll) -> None:
    answers = iter([True, False])

    def script(prompt):
        return reversed_word(prompt) if next(answers) else "wrong"

    right, wrong = roll(typed.racing, script, size=2)
    assert right["metrics"]["first_to_be_right"] == 1.0
    assert (right["advantage"], wrong["advantage"]) == (0.0, wrong["reward"] - right["reward"])
