"""What is said in the end: the result with its doubts, and commands that can be typed as they stand."""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import whet
from whet.gepa.config import EnvSection, GepaConfig
from whet.gepa.outcome import SearchOutcome, evaluate_commands, lines
from whet.gepa.types import CandidateRecord, Confirmation

CONFIRMED = Confirmation(50, 0.4, 0.6, 0.2, 0.05, 0.35, True)
Record = Callable[..., CandidateRecord]


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


def test_a_better_prompt_is_told_with_what_speaks_for_it(candidate: Record) -> None:
    best = candidate(3, parent=candidate(0), rewards=[1.0, 0.5])
    outcome = SearchOutcome(
        "finished",
        "the budget is spent",
        Path("runs/x"),
        90,
        100,
        0.5,
        7,
        1,
        0.25,
        best,
        CONFIRMED,
        ["whet eval run x"],
    )
    assert list(lines(outcome)) == [
        "finished: the budget is spent",
        "90 of 100 calls, $0.5; 1 of 7 proposals accepted",
        "best: candidate 3, 0.750 on validation against 0.250: runs/x/best_prompt.txt",
        "confirmed: 0.600 against 0.400 on 50 held-out examples: +0.200, 95 % interval +0.050 to +0.350",
        "evaluate it: whet eval run x",
    ]


def test_a_difference_that_may_be_none_is_not_called_one(candidate: Record) -> None:
    doubtful = Confirmation(50, 0.4, 0.45, 0.05, -0.1, 0.2, False)
    said = list(
        lines(SearchOutcome("finished", "", Path("x"), best=candidate(0), confirmation=doubtful, seed_mean=0.5))
    )
    assert said[-1].startswith("not confirmed: 0.450 against 0.400")
    assert said[-1].endswith("so it may be no better at all")


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
