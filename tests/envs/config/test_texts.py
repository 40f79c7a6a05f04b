"""The texts of an environment, and the same environment with others: for good, or for some of its rollouts."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

import whet
from whet.clients.scripted import ScriptedClient
from whet.envs.config.texts import joined, texts_for
from whet.errors import ConfigError, EnvironmentLoadError

ROWS = [{"question": f"question {number}", "answer": str(number)} for number in range(3)]


def search(query: str) -> str:
    """Find something.

    Args:
        query: What to find.
    """
    return f"nothing about {query}"


def env_of(**arguments: Any) -> whet.Environment:
    return whet.SingleTurnEnv(**{"dataset": [dict(row) for row in ROWS], "system_prompt": "Be right.", **arguments})


def shown(env: whet.Environment, texts: Mapping[str, str] | None = None) -> list[list[Any]]:
    """What the model is shown at first, in each rollout: messages as role and text, then descriptions of tools."""
    seen: list[list[Any]] = []

    def answer(prompt: Any, tools: Any) -> str:
        described = [tool["description"] for tool in tools or ()]
        seen.append([(message["role"], message["content"]) for message in prompt] + described)
        return "done"

    async def run() -> None:
        await env.generate(env.get_dataset(), ScriptedClient(answer), "scripted")

    if texts is None:
        asyncio.run(run())
    else:
        with env.worded(texts):
            asyncio.run(run())
    return seen


def test_the_system_prompt_is_the_environments_own() -> None:
    assert env_of().prompt_texts() == {"system_prompt": "Be right."}


def test_it_is_what_all_rows_open_with_where_the_environment_has_none() -> None:
    rows = [{"prompt": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "?"}]}] * 2
    env = env_of(dataset=rows, system_prompt=None)
    assert env.prompt_texts() == {"system_prompt": "Be brief."}
    assert shown(env, {"system_prompt": "Be long."})[0] == [("system", "Be long."), ("user", "?")]


def test_there_is_none_where_rows_open_in_different_ways_or_with_a_question() -> None:
    rows = [[{"role": "system", "content": f"{number}"}, {"role": "user", "content": "?"}] for number in range(2)]
    assert env_of(dataset=[{"prompt": row} for row in rows], system_prompt=None).prompt_texts() == {}
    assert env_of(system_prompt=None).prompt_texts() == {}


def test_another_system_prompt_stands_where_the_first_did_and_few_shot_messages_stay() -> None:
    env = env_of(few_shot=[{"role": "user", "content": "for example"}, {"role": "assistant", "content": "so"}])
    opening = shown(env, {"system_prompt": "Be quick."})[0]
    assert opening[0] == ("system", "Be quick.")
    assert opening[1:3] == [("user", "for example"), ("assistant", "so")]


def test_an_empty_system_prompt_is_not_sent() -> None:
    env = env_of()
    env.reword({"system_prompt": ""})
    assert env.prompt_texts() == {"system_prompt": ""}
    assert shown(env)[0] == [("user", "question 0")]


def test_an_environment_without_one_can_be_given_one() -> None:
    env = env_of(system_prompt=None)
    env.reword({"system_prompt": "Be right."})
    assert env.prompt_texts() == {"system_prompt": "Be right."}
    assert shown(env)[0] == [("system", "Be right."), ("user", "question 0")]


def test_what_a_row_says_for_itself_is_not_reworded() -> None:
    own = {"prompt": [{"role": "system", "content": "Be odd."}, {"role": "user", "content": "?"}]}
    openings = [first[0] for first in shown(env_of(dataset=[dict(ROWS[0]), own]), {"system_prompt": "Be quick."})]
    assert sorted(openings) == [("system", "Be odd."), ("system", "Be quick.")]


def test_a_system_prompt_that_no_row_has_a_place_for_is_refused() -> None:
    rows = [[{"role": "system", "content": f"{number}"}, {"role": "user", "content": "?"}] for number in range(2)]
    env = env_of(dataset=[{"prompt": row} for row in rows], system_prompt=None)
    with pytest.raises(ConfigError, match="system_prompt would have no effect"):
        env.reword({"system_prompt": "Be quick."})
    with pytest.raises(ConfigError, match="system_prompt would have no effect"):
        env_of(dataset=[{"prompt": "only text"}], system_prompt=None).reword({"system_prompt": "Be quick."})


def test_descriptions_of_tools_change_and_nothing_else_of_them() -> None:
    env = whet.ToolEnv(tools=[search], dataset=[dict(row) for row in ROWS])
    assert env.prompt_texts() == {"tool:search": "Find something."}
    told = []

    def answer(tools: Any) -> str:
        told.extend(tools)
        return "done"

    with env.worded({"tool:search": "Look here first."}):
        outputs = env.generate_sync(env.get_dataset(1), ScriptedClient(answer), "scripted")["outputs"]
    [before] = env.tool_defs or ()
    assert told == [{**before, "description": "Look here first."}]
    assert outputs[0]["tool_defs"][0]["description"] == "Look here first.", "rows say what the model was told"


def test_an_unknown_text_is_refused_with_the_one_that_was_meant() -> None:
    with pytest.raises(ConfigError, match=r"has no text 'tool:serch'. Did you mean 'tool:search'"):
        whet.ToolEnv(tools=[search], dataset=[dict(ROWS[0])]).reword({"tool:serch": "Look."})


def test_one_environment_has_several_wordings_at_the_same_time() -> None:
    env = env_of()
    seen: list[tuple[str, str]] = []

    async def answer(prompt: Any) -> str:
        await asyncio.sleep(0)
        seen.append((prompt[0]["content"], prompt[1]["content"]))
        return "done"

    async def attempt(text: str) -> None:
        with env.worded({"system_prompt": text}):
            await env.generate(env.get_dataset(), ScriptedClient(answer), "scripted")

    async def all_of_them() -> None:
        await asyncio.gather(attempt("one"), attempt("two"))

    asyncio.run(all_of_them())
    assert sorted(seen) == [(text, f"question {number}") for text in ("one", "two") for number in range(3)]
    assert shown(env)[0][0] == ("system", "Be right."), "and afterwards its own"


class Judged(whet.JudgeRubric):
    """A judge with a prompt of its own."""

    def __init__(self, asked: list[str]) -> None:
        def verdict(prompt: Any) -> str:
            asked.append(prompt[-1]["content"])
            return "yes"

        super().__init__(judge_client=ScriptedClient(verdict), judge_prompt="Right? {question} {answer} {response}")
        self.shown: list[str] = []
        self.add_reward_func(self.correct)

    async def correct(self, judge: Any, prompt: Any, completion: Any, answer: str, judge_prompt: str) -> float:
        self.shown.append(judge_prompt)
        await judge(prompt, completion, answer)
        return 1.0


def test_a_judges_prompt_changes_for_those_who_ask_and_those_who_read_it() -> None:
    asked: list[str] = []
    rubric = Judged(asked)
    env = env_of(rubric=rubric)
    assert env.prompt_texts()["judge"] == "Right? {question} {answer} {response}"
    shown(env, {"judge": "Good? {response}"})
    assert asked[0] == "Good? done"
    assert rubric.shown[0] == "Good? {response}"
    env.reword({"judge": "Fine? {response}"})
    shown(env)
    assert asked[-1] == "Fine? done"


def test_texts_of_a_group_are_those_of_its_environments() -> None:
    one, two = env_of(system_prompt="One."), env_of(system_prompt="Two.")
    group = whet.EnvGroup([one, two, env_of(system_prompt=None)], env_names=["one", "two", "bare"])
    assert group.prompt_texts() == {"system_prompt@one": "One.", "system_prompt@two": "Two."}
    openings = [first[0] for first in shown(group, {"system_prompt@one": "Uno.", "system_prompt@two": "Two."})]
    assert openings[::3] == [("system", "Uno."), ("system", "Two."), ("user", "question 0")]


def test_a_group_shares_what_its_environments_have_in_common() -> None:
    group = whet.EnvGroup([env_of(), env_of()], env_names=["one", "two"])
    assert group.prompt_texts() == {"system_prompt": "Be right."}
    assert {first[0] for first in shown(group, {"system_prompt": "Be quick."})} == {("system", "Be quick.")}
    group.reword({"system_prompt": "Be slow."})
    assert {first[0] for first in shown(group)} == {("system", "Be slow.")}


def test_joined_texts_come_apart_again() -> None:
    one, two = env_of(system_prompt="One."), env_of(system_prompt="Two.")
    texts = joined({"one": one.prompt_texts(), "two": two.prompt_texts()})
    assert texts_for(two, "two", texts) == {"system_prompt": "Two."}


@pytest.mark.parametrize("part", ["taskset", "harness"])
def test_a_taskset_or_its_harness_is_reworded(part: str) -> None:
    rows = [{"question": "?", "prompt": [{"role": "user", "content": "?"}]}]
    parts: dict[str, Any] = {"taskset": {}, "harness": {}}
    parts[part] = {"system_prompt": "Be right."}
    env = whet.Env(whet.Taskset(source=rows, **parts["taskset"]), whet.Harness(**parts["harness"]))
    assert env.prompt_texts() == {"system_prompt": "Be right."}
    assert shown(env, {"system_prompt": "Be quick."}) == [[("system", "Be quick."), ("user", "?")]]
    env.reword({"system_prompt": "Be slow."})
    assert shown(env) == [[("system", "Be slow."), ("user", "?")]]


def test_the_system_prompt_of_a_task_stays_beside_that_of_the_taskset() -> None:
    rows = [{"prompt": [{"role": "user", "content": "?"}], "system_prompt": "It is late."}]
    env = whet.Env(
        whet.Taskset(source=rows, system_prompt="Be right."), whet.Harness(config={"system_prompt_merge": "concat"})
    )
    first = shown(env, {"system_prompt": "Be quick."})[0]
    assert first == [("system", "Be quick."), ("system", "It is late."), ("user", "?")]


# As arguments of `load_environment`

PACKAGE = """
import whet

def load_environment(greeting="Hello."):
    return whet.SingleTurnEnv(dataset=[{"question": "?", "answer": ""}], system_prompt=greeting)
"""
TAKES_ONE = """
import whet

def load_environment(system_prompt="Hello."):
    return whet.SingleTurnEnv(dataset=[{"question": "?", "answer": ""}], system_prompt=system_prompt + " Be brief.")
"""


@pytest.fixture
def package(tmp_path: Path) -> Path:
    path = tmp_path / f"worded_{tmp_path.name.replace('-', '_')}.py"
    path.write_text(PACKAGE)
    return path


def test_every_environment_has_the_argument_system_prompt(package: Path) -> None:
    env = whet.load_environment(str(package), system_prompt="Be right.")
    assert env.prompt_texts()["system_prompt"] == "Be right."
    assert env.env_args == {"system_prompt": "Be right."}
    assert shown(env) == [[("system", "Be right."), ("user", "?")]]


def test_a_loader_that_takes_it_decides_what_becomes_of_it(tmp_path: Path) -> None:
    path = tmp_path / f"takes_{tmp_path.name.replace('-', '_')}.py"
    path.write_text(TAKES_ONE)
    env = whet.load_environment(str(path), system_prompt="Be right.")
    assert env.prompt_texts()["system_prompt"] == "Be right. Be brief."
    exact = whet.load_environment(str(path), components={"system_prompt": "Be right."})
    assert exact.prompt_texts()["system_prompt"] == "Be right."


def test_texts_are_read_from_files(package: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    byte_order_mark = "\ufeff"
    Path("prompt.txt").write_text(byte_order_mark + "From a file.\n", encoding="utf-8")
    Path("components.json").write_text(
        byte_order_mark + json.dumps({"system_prompt": "From another."}), encoding="utf-8"
    )
    assert whet.load_environment(str(package), system_prompt={"file": "prompt.txt"}).prompt_texts() == {
        "system_prompt": "From a file."
    }
    assert whet.load_environment(str(package), components={"file": "components.json"}).prompt_texts() == {
        "system_prompt": "From another."
    }


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"system_prompt": {"file": "nowhere.txt"}}, "system_prompt is to be read from nowhere.txt: No such file"),
        ({"components": {"file": "prompt.txt"}}, "which is not JSON"),
        ({"components": "text"}, "components should be texts by name"),
        ({"components": {"system_promt": "text"}}, "Did you mean 'system_prompt'"),
        ({"system_prompt": 3}, "'system_prompt' should be text"),
    ],
)
def test_texts_that_make_no_sense_are_refused_in_a_line(
    package: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: dict[str, Any], message: str
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("prompt.txt").write_text("{not json")
    with pytest.raises((ConfigError, EnvironmentLoadError), match=message):
        whet.load_environment(str(package), **arguments)


def test_files_of_a_training_config_are_relative_to_it_and_the_run_keeps_their_text(
    package: Path, tmp_path: Path
) -> None:
    from whet.rl.config import load_run_config

    (tmp_path / "best.txt").write_text("Be right.\n")
    config = tmp_path / "train.toml"
    config.write_text(f'[[env]]\nid = "{package}"\n[env.args]\nsystem_prompt = {{ file = "best.txt" }}\n')
    assert load_run_config(config).env[0].loader_args() == {"system_prompt": "Be right."}


def test_files_of_an_evaluation_config_are_relative_to_it(package: Path, tmp_path: Path) -> None:
    from whet.evals.planning.plan import plan_evals

    (tmp_path / "best.txt").write_text("Be right.\n")
    config = tmp_path / "eval.toml"
    config.write_text(f'[[eval]]\nenv_id = "{package}"\n[eval.args]\nsystem_prompt = {{ file = "best.txt" }}\n')
    assert plan_evals([str(config)], {})[0].env_args == {"system_prompt": "Be right."}
