"""Tasks of Harbor's format that tests write, and rollouts of a scripted model in them."""

from __future__ import annotations

import asyncio
import json
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import whet
from whet.envs.sandboxed import packages
from whet.rollouts.groups import run_group
from whet.sandboxes.pool import shared_pool

DOCKERFILE = """\
FROM ubuntu:24.04
# the words to count
ENV WORDS=words.txt \\
    LIMIT=3
WORKDIR /app
COPY data/ ./data/
COPY run.sh /app
RUN echo "made of $WORDS" > made && \\
    mkdir -p out
"""
TEST = """\
mkdir -p /logs/verifier
if [ "$(cat out/count)" = "$(cat /tests/expected)" ]; then r=1; else r=0; fi
echo "{\\"reward\\": $r, \\"tries\\": $STRICT}" > /logs/verifier/reward.json
"""
SOLUTION = "./run.sh > out/count\n"
Make = Callable[..., Path]
Play = Callable[[whet.Environment, list[Any]], whet.State]


@pytest.fixture
def harbor_cache(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An empty cache of packages and images that a stranger may look into."""
    folder = Path(tempfile.mkdtemp(prefix="whet-harbor-"))
    folder.chmod(0o755)
    monkeypatch.setattr(packages, "cache_directory", lambda name="packages": folder / "cache" / name)
    yield folder
    shutil.rmtree(folder)


@pytest.fixture
def task(tmp_path: Path, harbor_cache: Path) -> Make:
    """Writes a task: what its files say, by path; `None` leaves one out."""

    def make(name: str = "count", **files: str | None) -> Path:
        folder = tmp_path / "tasks" / name
        texts: dict[str, str | None] = {
            "task.toml": '[verifier]\ntimeout_sec = 20\nenv = { STRICT = "2" }\n[environment]\nmemory_mb = 512\n',
            "instruction.md": "Count the words.",
            "environment/Dockerfile": DOCKERFILE,
            "environment/data/words.txt": "one two three",
            "environment/run.sh": '#!/bin/sh\nwc -w < "data/$WORDS"\n',
            "tests/test.sh": TEST,
            "tests/expected": "3\n",
            "solution/solve.sh": SOLUTION,
            **{path.replace("__", "/").replace("_DOT_", "."): text for path, text in files.items()},
        }
        for path, text in texts.items():
            if text is not None:
                (folder / path).parent.mkdir(parents=True, exist_ok=True)
                (folder / path).write_text(text)
        (folder / "environment/run.sh").chmod(0o755)
        return folder

    return make


@pytest.fixture
def rollout() -> Callable[..., tuple[whet.State, list[str]]]:
    return rollout_of


def rollout_of(folder: Path, *commands: str, **kwargs: Any) -> tuple[whet.State, list[str]]:
    """A scored rollout whose model runs these commands, and what it read."""
    env = whet.load_environment(f"harbor:{folder}", **kwargs)
    calls = [
        {"tool_calls": [{"id": "1", "name": "bash", "arguments": json.dumps({"command": command})}]}
        for command in commands
    ]

    async def run() -> whet.State:
        state = await env.rollout(env.get_dataset()[0], whet.ScriptedClient([*calls, "done"]), "m", {})
        await env.rubric.score_rollout(state)
        assert shared_pool().leased == 0
        return state

    state = asyncio.run(run())
    return state, [message["content"] for message in state["completion"] if message["role"] == "tool"]


@pytest.fixture
def play() -> Play:
    """One rollout of the first task of an environment, with the answers of a script."""

    def played(env: whet.Environment, script: list[Any]) -> whet.State:
        async def attempt() -> whet.State:
            try:
                (state,) = await run_group(env, [env.get_dataset()[0]], whet.ScriptedClient(script), "m", {})
                return state
            finally:
                await env.close()

        return asyncio.run(attempt())

    return played
