"""Which texts a search begins from, and what is written of the best ones."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import whet
from whet.clients.scripted import ScriptedClient
from whet.errors import ConfigError, GepaError
from whet.gepa.components import best_files, read_seed_prompt, seed_candidate


def search(query: str) -> str:
    """Find something.

    Args:
        query: What to find.
    """
    return query


def env_of(**arguments: Any) -> whet.Environment:
    kind = whet.ToolEnv if "tools" in arguments else whet.SingleTurnEnv
    return kind(**{"dataset": [{"question": "?", "answer": "!"}], "system_prompt": "Be right.", **arguments})


def test_only_what_was_asked_for_is_optimised() -> None:
    judge = whet.JudgeRubric(judge_client=ScriptedClient(["yes"]), judge_prompt="Right? {response}")
    environments = {"env": env_of(tools=[search], rubric=judge)}
    assert seed_candidate(environments, ["system_prompt"]) == {"system_prompt": "Be right."}
    assert seed_candidate(environments, ["tools"]) == {"tool:search": "Find something."}
    assert seed_candidate(environments, ["judge", "system_prompt"]) == {
        "system_prompt": "Be right.",
        "judge": "Right? {response}",
    }


def test_an_environment_without_a_system_prompt_begins_from_an_empty_one() -> None:
    environments = {"env": env_of(), "bare": env_of(system_prompt=None)}
    expected = {"system_prompt@env": "Be right.", "system_prompt@bare": ""}
    assert seed_candidate(environments, ["system_prompt"]) == expected
    assert seed_candidate({"bare": env_of(system_prompt=None)}, ["system_prompt"]) == {"system_prompt": ""}


def test_all_environments_begin_from_the_seed_prompt_that_is_given() -> None:
    environments = {"env": env_of(), "bare": env_of(system_prompt=None)}
    assert seed_candidate(environments, ["system_prompt"], "Begin.") == {"system_prompt": "Begin."}
    assert environments["bare"].prompt_texts() == {"system_prompt": "Begin."}


def test_a_seed_prompt_has_to_have_an_effect() -> None:
    with pytest.raises(GepaError, match="system_prompt is not among the components"):
        seed_candidate({"env": env_of(tools=[search])}, ["tools"], "Begin.")
    rows = [
        {"prompt": [{"role": "system", "content": str(number)}, {"role": "user", "content": "?"}]}
        for number in range(2)
    ]
    for seed_prompt in ("Begin.", None):
        with pytest.raises(GepaError, match=r"environment env: .* would have no effect"):
            seed_candidate({"env": env_of(dataset=rows, system_prompt=None)}, ["system_prompt"], seed_prompt)


@pytest.mark.parametrize(("kind", "what"), [("tools", "tools that are known"), ("judge", "a JudgeRubric")])
def test_texts_that_no_environment_has_cannot_be_optimised(kind: Any, what: str) -> None:
    with pytest.raises(GepaError, match=f"no environment has {what}"):
        seed_candidate({"env": env_of()}, [kind])


def test_the_best_prompt_is_a_file_and_all_texts_are_another() -> None:
    files = best_files({"system_prompt": "Be quick.\n", "tool:search": "Look."}, {"env": env_of(tools=[search])})
    assert files.keys() == {"best_prompt.txt", "best_components.json"}
    assert files["best_prompt.txt"] == "Be quick.\n\n"
    assert json.loads(files["best_components.json"]) == {"system_prompt": "Be quick.\n", "tool:search": "Look."}


def test_environments_with_texts_of_their_own_have_files_of_their_own() -> None:
    environments = {"one": env_of(system_prompt="1"), "two": env_of(system_prompt="2", tools=[search])}
    best = {"system_prompt@one": "One.", "system_prompt@two": "Two.", "tool:search": "Look."}
    files = best_files(best, environments)
    assert files["best_prompt-one.txt"] == "One.\n"
    assert json.loads(files["best_components-one.json"]) == {"system_prompt": "One."}
    assert json.loads(files["best_components-two.json"]) == {"system_prompt": "Two.", "tool:search": "Look."}
    assert "best_prompt.txt" not in files


def test_a_seed_prompt_is_a_text_or_a_file_that_has_one(tmp_path: Path) -> None:
    (tmp_path / "prompt").write_text("From a file.\n")
    assert read_seed_prompt("prompt", tmp_path, "here") == "From a file."
    assert read_seed_prompt({"file": "prompt"}, tmp_path, "here") == "From a file."
    assert read_seed_prompt("Say so in notes.txt.", tmp_path, "here") == "Say so in notes.txt."
    assert read_seed_prompt("Two\nlines.txt", tmp_path, "here") == "Two\nlines.txt"
    with pytest.raises(ConfigError, match=r"here: the seed prompt is to be read from .*gone\.md: No such file"):
        read_seed_prompt("gone.md", tmp_path, "here")
    with pytest.raises(ConfigError, match="here: seed_prompt should be a text"):
        read_seed_prompt(3, tmp_path, "here")
