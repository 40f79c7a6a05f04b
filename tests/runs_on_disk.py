"""Runs on disk to read: an evaluation, a training run, a search for prompts. Fixtures of several folders."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from whet.rl.storage.run_directory import write_step
from whet.rollouts.results import save_metadata
from whet.rollouts.row_log import append_rows
from whet.types import RolloutOutput


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
