"""`harbor:` with `agent`: real sandboxes, a scripted model, and whet's own agent, so that nothing is installed."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("uvicorn")
pytest.importorskip("prometheus_client")

import whet
from whet.errors import ConfigError

Play = Callable[[whet.Environment, list[Any]], whet.State]
TEST = 'if [ "$(cat /app/out.txt)" = hello ]; then echo 1; else echo 0; fi > /logs/verifier/reward.txt'


def calls(command: str) -> dict[str, Any]:
    return {"tool_calls": [{"id": f"c{len(command)}", "name": "bash", "arguments": json.dumps({"command": command})}]}


@pytest.fixture
def tasks(tmp_path: Path) -> Path:
    folder = tmp_path / "tasks/hello"
    for name, text in {
        "task.toml": "[agent]\ntimeout_sec = 60\n",
        "instruction.md": "Write hello into out.txt.",
        "environment/Dockerfile": "FROM ubuntu:24.04\nWORKDIR /app\nRUN echo made > made\n",
        "tests/test.sh": TEST,
        "solution/solve.sh": "echo hello > out.txt",
    }.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    return tmp_path / "tasks"


def test_agent_works_in_workdir_and_is_graded(bubblewrap: None, tasks: Path, play: Play) -> None:
    env = whet.load_environment(f"harbor:{tasks}", agent="bash")
    state = play(env, [calls("pwd; cat made; ls /"), calls("echo hello > out.txt"), "It is written."])
    assert (state["error"], state["reward"]) == (None, 1.0)
    seen = state["trajectory"][1]["prompt"][-1]["content"].split()
    assert seen[:2] == ["/app", "made"]
    assert not {"tests", "solution"} & set(seen)


def test_what_an_agent_has_done_counts_when_its_turns_are_up(bubblewrap: None, tasks: Path, play: Play) -> None:
    env = whet.load_environment(f"harbor:{tasks}", agent={"agent": "bash"}, max_turns=2)
    state = play(env, [calls("echo hello > out.txt"), *([calls("true")] * 5)])
    assert (state["error"], state["stop_condition"], state["reward"]) == (None, "max_turns_reached", 1.0)


def test_agent_that_does_nothing_is_graded(bubblewrap: None, tasks: Path, play: Play) -> None:
    state = play(whet.load_environment(f"harbor:{tasks}", agent="bash"), ["I will not."])
    assert (state["error"], state["reward"]) == (None, 0.0)


def test_examples_of_calls_precede_the_instruction(bubblewrap: None, tasks: Path, play: Play) -> None:
    examples = [
        {"role": "user", "content": "Write a into b."},
        {"role": "assistant", "content": "", **calls("echo a > b")},
    ]
    env = whet.load_environment(f"harbor:{tasks}", agent="bash", few_shot=examples)
    state = play(env, [calls("echo hello > out.txt"), "It is written."])
    assert (state["error"], state["reward"]) == (None, 1.0)
    first = state["trajectory"][0]["prompt"]
    assert [message["role"] for message in first] == ["user", "assistant", "user"]
    assert first[1]["tool_calls"][0]["name"] == "bash"


def test_unknown_agent_is_refused(tasks: Path) -> None:
    with pytest.raises(ConfigError, match="there is no agent 'codecs'"):
        whet.load_environment(f"harbor:{tasks}", agent="codecs")
