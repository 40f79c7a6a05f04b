"""What tests of prompt optimisation share."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from whet.gepa.records.candidates import CandidateWriter
from whet.gepa.types import CandidateRecord, candidate_id

sys.path.append(str(Path(__file__).parent))  # for `planted`, where loading it as an environment puts it too
PLAYER = Path(__file__).with_name("player.py")


@pytest.fixture
def candidate() -> Callable[..., CandidateRecord]:
    """`candidate(2, parent=seed, rewards=[1.0, 0.0])`: a record as a search makes it; without a parent it is the seed.

    `rewards` are those on the first validation examples of reverse-text; anything else is a field of the record.
    """

    def make(
        number: int,
        *,
        parent: CandidateRecord | None = None,
        rewards: Sequence[float] = (0.5,),
        text: str | None = None,
        **fields: Any,
    ) -> CandidateRecord:
        texts = {"system_prompt": text if text is not None else f"Answer. {'Think. ' * number}"}
        known: dict[str, Any] = {
            "id": candidate_id(texts),
            "number": number,
            "texts": texts,
            "parents": [parent.id] if parent else [],
            "changed": ["system_prompt"] if parent else [],
            "verdict": "accepted" if parent else "seed",
            "reason": "it is better on validation" if parent else "the prompt to begin with",
            "iteration": number,
            "calls_before": 10 * number,
            "calls_after": 10 * (number + 1),
            "minibatch": {"parent": [0.0, 1.0, 0.0], "candidate": [1.0, 1.0, 0.0]} if parent else {},
            "val_rewards": {f"val/reverse-text/{place}": reward for place, reward in enumerate(rewards)},
            "p_value": 0.01 if parent else None,
            "val_mean": sum(rewards) / len(rewards) if rewards else None,
        }
        return CandidateRecord(**{**known, **fields})

    return make


PLAN = {
    "max_calls": 100,
    "reserved": 20,
    "baseline": 4,
    "per_rejected": 6,
    "per_accepted": 10,
    "fewest_proposals": 7,
    "most_proposals": 12,
    "cost_per_call": None,
    "num_train": 10,
    "num_val": 4,
    "num_held_out": 10,
}
CONFIRMED = {"pairs": 10, "seed_mean": 0.5, "best_mean": 0.8, "difference": 0.3, "low": 0.1, "high": 0.5, "real": True}


@pytest.fixture
def searched(tmp_path: Path, candidate: Callable[..., CandidateRecord]) -> Callable[..., Path]:
    """A directory as `whet gepa run` leaves one: `searched(state="interrupted", rollouts=[...])`; the rest is made up.

    Without `candidates`: the seed, a proposal that was turned away, one that was accepted, and one made from that.
    """

    def make(
        name: str = "reverse",
        *,
        candidates: Sequence[CandidateRecord] | None = None,
        rollouts: Sequence[Mapping[str, Any]] = (),
        reflections: Sequence[Mapping[str, Any]] = (),
        config: Mapping[str, Any] | None = None,
        **metadata: Any,
    ) -> Path:
        directory = tmp_path / "runs" / name
        directory.mkdir(parents=True)
        if candidates is None:
            seed = candidate(0, rewards=[1.0, 0.0, 0.0, 0.0], text="Reverse the text.")
            worse = candidate(
                1, parent=seed, rewards=[], verdict="rejected", text="Do nothing.", p_value=None, reason="not better"
            )
            better = candidate(2, parent=seed, rewards=[1.0, 1.0, 0.0, 0.0], text="Reverse every letter of the text.")
            best = candidate(3, parent=better, rewards=[1.0, 1.0, 1.0, 0.0], text="Reverse every letter, slowly.")
            candidates = [seed, worse, better, best]
        records = CandidateWriter(directory)
        for record in candidates:
            records.decided(record)
        known: dict[str, Any] = {
            "config": {
                "name": name,
                "model": "whet/tiny",
                "reflection_model": "big",
                "env": [{"id": "reverse-text"}],
                **(config or {}),
            },
            "plan": PLAN,
            "state": "finished",
            "reason": "the budget is spent",
            "spent": 80,
            "cost": None,
            "confirmation": CONFIRMED,
            "date": "2026-11-21T14:04:00",
        }
        (directory / "metadata.json").write_text(json.dumps({**known, **metadata}))
        (directory / "gepa.toml").write_text("")
        for place, rows in (("rollouts/results.jsonl", rollouts), ("reflections.jsonl", reflections)):
            path = directory / place
            path.parent.mkdir(exist_ok=True)
            path.write_text("".join(json.dumps(row) + "\n" for row in rows))
        return directory

    return make


@pytest.fixture
def rollout() -> Callable[..., dict[str, Any]]:
    """`rollout(record, 3, 1.0)`: the row of a call of a candidate on validation example 3, or of one that failed."""

    def make(record: CandidateRecord, number: int, outcome: float | str, **fields: Any) -> dict[str, Any]:
        failed = isinstance(outcome, str)
        key = f"val/reverse-text/{number}"
        row = {
            "example_id": key,
            "prompt": [
                {"role": "system", "content": record.texts["system_prompt"]},
                {"role": "user", "content": f"text {number}"},
            ],
            "completion": [{"role": "assistant", "content": "txet"}],
            "reward": None if failed else outcome,
            "metrics": {},
            "error": {"error": outcome, "error_chain_repr": f"{outcome}()"} if failed else None,
            "token_usage": {"input_tokens": 20.0, "output_tokens": 5.0},
            "rollout": record.number,
            "candidate": record.id,
            "example": key,
            "sample": 0,
        }
        return {**row, **fields}

    return make


@pytest.fixture(scope="session")
def player(players: Any) -> Any:
    """`player.Told(observer)`: a search that a test tells an observer of."""
    return players.load(PLAYER, "gepa_player")


@pytest.fixture
def clock(players: Any) -> Any:
    return players.Clock()


@pytest.fixture
def play(players: Any, terminals: Any, tmp_path: Path) -> Iterator[Callable[..., Any]]:
    """Opens terminals with the player in them; see `players.players`."""
    with players.players(PLAYER, terminals, tmp_path) as open_one:
        yield open_one
