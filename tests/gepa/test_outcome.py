"""Commands that evaluate the best prompt, which can be typed as they stand."""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import whet
from whet.gepa.config import EnvSection, GepaConfig
from whet.gepa.options import evaluate_commands


def make_env(prompt: str | None = "Be right.") -> whet.Environment:
    return whet.SingleTurnEnv(dataset=[{"question": "?", "answer": "!"}], system_prompt=prompt)


@pytest.fixture
def package(tmp_path: Path) -> Callable[[str], str]:
    """The path of an environment whose loader has these parameters."""

    def write(parameters: str) -> str:
        path = tmp_path / f"loaded_{len(list(tmp_path.iterdir()))}_{tmp_path.name.replace('-', '_')}.py"
        path.write_text(f"def load_environment({parameters}):\n    return None\n")
        return str(path)

    return write


def command(config: GepaConfig, environments: dict[str, whet.Environment], best: dict[str, str]) -> list[list[str]]:
    return [shlex.split(one) for one in evaluate_commands(config, config.policy(), environments, best)]


def arguments_of(words: list[str]) -> Any:
    return json.loads(words[words.index("--env-args") + 1])


def test_the_command_names_model_endpoint_sampling_and_the_file(package: Callable[[str], str], tmp_path: Path) -> None:
    config = GepaConfig(
        name="run",
        runs_directory=tmp_path / "my runs",
        env=(EnvSection(id=package("hints=0"), name="env", args={"hints": 2, "system_prompt": "Before."}),),
        model="big",
        base_url="http://here/v1",
        api_key_var="MY_KEY",
        sampling={"temperature": 0.5, "max_tokens": 64, "top_p": 0.9},
    )
    [words] = command(config, {"env": make_env()}, {"system_prompt": "Be quick."})
    assert words[:4] == ["whet", "eval", "run", config.env[0].id]
    assert words[4:9] == ["-m", "big", "-b", "http://here/v1", "--api-key-var=MY_KEY"]
    file = str(tmp_path / "my runs" / "run" / "best_prompt.txt")
    assert arguments_of(words) == {"hints": 2, "system_prompt": {"file": file}}
    options = [word for word in words[9:] if word not in ("--env-args", words[words.index("--env-args") + 1])]
    assert options == ["--max-tokens=64", "--temperature=0.5", "--sampling-args", '{"top_p": 0.9}']


def test_loader_with_its_own_system_prompt_gets_components(
    package: Callable[[str], str],
) -> None:
    config = GepaConfig(name="run", env=(EnvSection(id=package("system_prompt='Be.'"), name="env"),))
    [words] = command(config, {"env": make_env()}, {"system_prompt": "Be quick."})
    assert arguments_of(words) == {"components": {"file": "runs/run/best_components.json"}}


def test_each_of_several_environments_has_its_command(package: Callable[[str], str]) -> None:
    path = package("hints=0")
    config = GepaConfig(name="run", env=(EnvSection(id=path, name="one"), EnvSection(id=path, name="two")))
    environments = {"one": make_env("1"), "two": make_env("2")}
    first, second = command(config, environments, {"system_prompt@one": "One.", "system_prompt@two": "Two."})
    assert arguments_of(first) == {"system_prompt": {"file": "runs/run/best_prompt-one.txt"}}
    assert arguments_of(second) == {"system_prompt": {"file": "runs/run/best_prompt-two.txt"}}
    same = {"one": make_env(), "two": make_env()}
    assert [arguments_of(words) for words in command(config, same, {"system_prompt": "Both."})] == [
        {"system_prompt": {"file": "runs/run/best_prompt.txt"}}
    ] * 2
