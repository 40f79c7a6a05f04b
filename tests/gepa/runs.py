"""Runs of `whet gepa` against scripted endpoints, as files say what became of them."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from planted.policy import answer
from planted.reflection import Proposer
from planted.server import Endpoint, Trouble
from planted.world import World

ENVIRONMENT = Path(__file__).parent / "planted"
SIZES = {"max_calls": 120, "num_train": 30, "num_val": 16, "max_concurrent": 8}


@dataclass
class Endpoints:
    """The two models of a run, and a config that names them."""

    policy: Endpoint
    reflection: Endpoint

    def write_config(self, path: Path, *, gepa: dict[str, Any] | None = None, **fields: Any) -> Path:
        import tomli_w

        given = {
            "env_id": str(ENVIRONMENT),
            "model": "policy",
            "base_url": self.policy.url,
            "reflection_model": "reflection",
            "reflection_base_url": self.reflection.url,
            "api_key_var": "WHET_TEST_KEY",
            "runs_directory": str(path.parent / "runs"),
            **SIZES,
            **fields,
            "gepa": {"held_out": 12, "retry_delay": 0.01, **(gepa or {})},
        }
        path.write_text(tomli_w.dumps({key: value for key, value in given.items() if value is not None}))
        return path


@contextmanager
def endpoints(seed: int = 0, *, latency_s: float = 0.0, trouble: Trouble | None = None) -> Iterator[Endpoints]:
    world = World.of(seed)
    policy = Endpoint(partial(answer, world), latency_s, trouble or Trouble())
    with policy, Endpoint(Proposer(seed).answer, latency_s) as reflection:
        yield Endpoints(policy, reflection)


def begun(run: Path) -> Counter[str]:
    """How often each call was begun."""
    found: Counter[str] = Counter()
    for line in whole_lines(run / "calls.jsonl"):
        found.update(line["begin"])
    return found


def finished(run: Path) -> list[str]:
    """The calls that have a row."""
    rows = whole_lines(run / "rollouts" / "results.jsonl")
    return [f"{row['candidate']}/{row['example']}/{row['sample']}" for row in rows]


def metadata(run: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((run / "metadata.json").read_text())
    return found


def whole_lines(path: Path) -> list[dict[str, Any]]:
    if not path.exists():
        return []
    return [json.loads(line) for line in path.read_bytes().split(b"\n")[:-1]]
