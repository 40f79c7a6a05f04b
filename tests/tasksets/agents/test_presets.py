"""Agents as data: names, versions, what is installed, and what a table may say. Nothing is installed here."""

import json
import re

import pytest

import whet
from whet.cli.main import main
from whet.errors import ConfigError
from whet.tasksets.agents import installed
from whet.tasksets.agents.presets import AGENTS

PLACES = {"root", "arch", "url", "key", "home", "task", "context", "output"}


@pytest.mark.parametrize("name", AGENTS)
def test_preset_is_pinned_and_uses_known_places(name) -> None:
    preset = AGENTS[name]
    assert preset.registry == "whet" or re.fullmatch(r"\d+\.\d+\.\d+", preset.version)
    texts = [*preset.command, preset.stdin, *preset.env.values(), *preset.files.values()]
    assert {place for text in texts for place in re.findall(r"\{([a-z]+)\}", text)} <= PLACES
    for path, text in preset.files.items():
        if path.endswith(".json"):
            json.loads(re.sub(r"\{(context|output)\}", "1", text))
    assert all(model in " ".join([*preset.env.values(), *preset.files.values()]) for model in preset.helper_models)
    assert preset.registry == "whet" or "{task}" in "".join([*preset.command, preset.stdin])


def test_unknown_agent_is_refused_with_the_list() -> None:
    with pytest.raises(ConfigError, match=f"no agent 'codecs'; there are: {', '.join(AGENTS)}"):
        whet.Harness(program={"agent": "codecs"})


@pytest.mark.parametrize(
    ("program", "said"),
    [
        ({"agent": "bash", "command": ["x"]}, "give one of"),
        ({"agent": "bash", "version": "1.0.0"}, "whet's own"),
        ({"command": ["x"], "version": "1.0.0"}, "version"),
        ({"fn": "os:getcwd", "context_tokens": 4}, "no effect without an agent"),
        ({"agent": "bash", "context_tokens": 4}, "context_tokens"),
        ({"fn": "os:getcwd", "helper_models": ["small"]}, "no effect without a command"),
    ],
)
def test_table_that_says_what_an_agent_cannot_do_is_refused(program, said) -> None:
    with pytest.raises(ConfigError, match=said):
        whet.Harness(program=program)


@pytest.fixture
def cache(tmp_path, monkeypatch):
    monkeypatch.setattr(installed, "cache_directory", lambda name: tmp_path / name)
    return tmp_path / "agents"


def test_check_names_other_versions_and_what_to_install(cache, capsys) -> None:
    (cache / "mini-swe-agent" / "1.0.0").mkdir(parents=True)
    (cache / "mini-swe-agent" / ".2.4.6.half").mkdir()
    assert main(["agent", "check", "mini-swe-agent", "--json"]) == 1
    (status,) = json.loads(capsys.readouterr().out)["agents"]
    assert (status["installed"], status["others"]) == (False, ["1.0.0"])
    assert status["problem"] == "is not installed: whet agent install mini-swe-agent"
    (cache / "mini-swe-agent" / AGENTS["mini-swe-agent"].version).mkdir()
    assert main(["agent", "check", "mini-swe-agent", "--json"]) == 0
