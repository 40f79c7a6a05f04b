"""Evaluations on disk as `whet eval run` leaves them, with rows that a test chooses."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest

METADATA = {
    "state": "finished",
    "env_id": "arithmetic",
    "env_args": {},
    "model": "whet/tiny",
    "rollouts_per_example": 2,
    "sampling_args": {"temperature": 1.0},
    "date": "2026-01-02T03:04:05",
    "time": 12.5,
    "pass_threshold": 0.5,
}


def make_row(task: Any, outcome: float | str, rollout: int = 0, said: str = "4", **more: Any) -> dict[str, Any]:
    """A row as it stands in results: scored, or failed with the error named."""
    failed = isinstance(outcome, str)
    return {
        "example_id": task,
        "rollout": rollout,
        "prompt": [{"role": "system", "content": "Add."}, {"role": "user", "content": f"What is {task} + 2?"}],
        "completion": [{"role": "assistant", "content": said}],
        "answer": "4",
        "reward": None if failed else outcome,
        "metrics": {} if failed else {"exact_match": float(outcome == 1.0)},
        "timing": {"generation": {"duration": 1.5}, "total": 1.6},
        "is_completed": True,
        "is_truncated": False,
        "stop_condition": "max_turns_reached",
        "error": {"error": outcome, "error_chain_repr": f"{outcome}('no answer')"} if failed else None,
        "token_usage": {"input_tokens": 20.0, "output_tokens": 5.0},
        **more,
    }


@pytest.fixture
def row() -> Callable[..., dict[str, Any]]:
    return make_row


@pytest.fixture
def stored(tmp_path: Path) -> Callable[..., Path]:
    """Writes an evaluation and returns its directory: `stored(rows, state="interrupted")`."""

    def write(rows: Iterable[dict[str, Any]], **metadata: Any) -> Path:
        directory = tmp_path / "evaluation"
        directory.mkdir()
        with (directory / "results.jsonl").open("w") as file:
            for one in rows:
                file.write(json.dumps(one) + "\n")
        (directory / "metadata.json").write_text(json.dumps({**METADATA, **metadata}))
        return directory

    return write
