"""Runs to look at, and the viewer as a test drives it."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from textual.pilot import Pilot

from whet.rl.storage.rollout_log import write_step
from whet.rollouts.results import save_metadata
from whet.rollouts.row_log import append_rows
from whet.types import RolloutOutput
from whet.viewer.app import Viewer, find_target

DEADLINE = 20.0
"""Seconds after which what was waited for will not come."""
Steps = Callable[["Driver"], Awaitable[None]]


def row_of(example: int, reward: float | None, answer: str = "done", **more: Any) -> RolloutOutput:
    """A row of an evaluation."""
    row = {
        "example_id": example,
        "prompt": [{"role": "user", "content": f"question {example}"}],
        "completion": [{"role": "assistant", "content": answer}],
        "reward": reward,
        "metrics": {"exact_match": reward, "num_turns": 1.0},
        "timing": {"total": 1.5, "generation": {"start": 0.0, "end": 1.5, "duration": 1.5}},
        "is_completed": True,
        "is_truncated": False,
        "stop_condition": "max_turns_reached",
        "error": None,
        "token_usage": {"input_tokens": 12.0, "output_tokens": 3.0},
    }
    return RolloutOutput({**row, **more})


FAILED = {
    "error": {
        "error": "ModelError",
        "error_chain_repr": "ModelError('no answer') -> TimeoutError()",
        "error_chain_str": "ModelError -> TimeoutError",
    },
    "error_chain": "ModelError('no answer') -> TimeoutError()",
    "stop_condition": "has_error",
}

Make = Callable[..., Path]


@pytest.fixture
def rollout() -> Callable[..., RolloutOutput]:
    """Makes a row of an evaluation: task, reward, answer, and any other fields."""
    return row_of


@pytest.fixture
def failed() -> dict[str, Any]:
    """The fields of a row that an error makes different."""
    return FAILED


@pytest.fixture
def trained() -> Callable[..., dict[str, Any]]:
    """Makes a row of a training run: group, reward, advantage, sampled ids."""
    return trained_row_of


@pytest.fixture
def evaluation(tmp_path: Path) -> Make:
    """Writes an evaluation and gives its directory."""

    def make(rows: Sequence[RolloutOutput], name: str = "one", environment: str = "arithmetic") -> Path:
        directory = tmp_path / "outputs" / "evals" / name
        append_rows(directory, rows)
        save_metadata(
            directory,
            {
                "env_id": environment,
                "model": "whet/tiny",
                "num_examples": len(rows),
                "rollouts_per_example": 1,
                "date": "2026-11-21T14:00:00",
                "avg_reward": 0.5,
                "pass_threshold": 0.5,
            },
        )
        return directory

    return make


def trained_row_of(group: str, reward: float, advantage: float, ids: Sequence[int]) -> dict[str, Any]:
    """A row of a training run, with the tokens of its one turn."""
    return {
        "group": group,
        "environment": "reverse-text",
        **row_of(int(group), reward),
        "advantage": advantage,
        "turns": [
            {
                "prompt_start": 0,
                "prompt_ids": [257, 266],
                "completion_ids": list(ids),
                "completion_logprobs": [-0.01, -3.5, *[-0.7] * (len(ids) - 2)],
                "policy_version": [[4, len(ids)]],
            }
        ],
    }


@pytest.fixture
def training(tmp_path: Path) -> Make:
    """Writes a training run of whet/tiny, rows by step, and gives its directory."""

    def make(steps: Sequence[Sequence[dict[str, Any]]], name: str = "mine") -> Path:
        run = tmp_path / "runs" / name
        for step, rows in enumerate(steps, start=1):
            write_step(run / "rollouts", step, rows)
        (run / "config.toml").write_text('model = "whet/tiny"\nbatch_size = 2\n[[env]]\nid = "reverse-text"\n')
        (run / "status.json").write_text(json.dumps({"state": "finished", "step": len(steps), "max_steps": 2}))
        return run

    return make


@pytest.fixture
def search(tmp_path: Path) -> Make:
    """Writes a search for prompts: rewards by candidate and example, verdicts by candidate; gives its directory."""

    def make(rewards: Mapping[str, Sequence[float]], verdicts: Mapping[str, str]) -> Path:
        run = tmp_path / "runs" / "gepa-echo"
        rows = []
        for number, (candidate, of_examples) in enumerate(rewards.items()):
            for example, reward in enumerate(of_examples):
                key = f"val/echo/{example}"
                fields = {"candidate": candidate, "example": key, "sample": 0, "rollout": number, "example_id": key}
                rows.append(RolloutOutput({**row_of(example, reward, f"said by {candidate}"), **fields}))
        append_rows(run / "rollouts", rows)
        (run / "gepa.toml").write_text("")
        config = {"model": "whet/tiny", "env": [{"id": "echo"}]}
        (run / "metadata.json").write_text(json.dumps({"config": config, "state": "finished"}))
        lines = [{"id": id, "number": number, "verdict": verdicts[id]} for number, id in enumerate(verdicts)]
        (run / "candidates.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
        return run

    return make


class Driver:
    """Types, and reads the screen."""

    def __init__(self, pilot: Pilot[None]) -> None:
        self.pilot = pilot
        self.app = pilot.app

    def text(self) -> str:
        """What the screen shows."""
        strips = self.app.screen._compositor.render_strips(self.app.size)
        return "\n".join(strip.text.rstrip() for strip in strips)

    def line(self, part: str) -> str:
        """The line of the screen with this in it."""
        return next(line for line in self.text().split("\n") if part in line)

    async def type(self, *keys: str) -> None:
        await self.pilot.press(*keys)

    async def sees(self, *wanted: str, without: str | None = None) -> str:
        """Waits until all of this is on the screen (and something else is not); the screen."""
        deadline = time.monotonic() + DEADLINE
        while True:
            await self.pilot.pause(0.02)  # rather than asking all the time
            text = self.text()
            if all(part in text for part in wanted) and (without is None or without not in text):
                return text
            assert time.monotonic() < deadline, f"never saw {wanted} without {without!r}:\n{text}"


@pytest.fixture
def drive() -> Callable[..., Viewer]:
    """Opens the viewer on a path, in a terminal of a size, and takes steps in it."""

    def open_and_take(path: Path | None, steps: Steps, *, size: tuple[int, int] = (100, 30)) -> Viewer:
        async def run() -> Viewer:
            app = Viewer(find_target(path))
            async with app.run_test(size=size, notifications=True) as pilot:
                await steps(Driver(pilot))
            return app

        return asyncio.run(run())

    return open_and_take
