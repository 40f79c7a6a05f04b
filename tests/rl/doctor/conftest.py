"""Runs that really have a disease, made so by their config. Each is run once, when a test first asks for it."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from whet.rl.config import RunConfig
from whet.rl.run import run_training

HERE = Path(__file__).parent
Run = Callable[..., Path]


def clinic(reward: str, name: str = "clinic", weight: float = 1.0, **arguments: Any) -> dict[str, Any]:
    return {
        "id": str(HERE / "clinic.py"),
        "name": name,
        "weight": weight,
        "args": {"reward": reward, **arguments},
    }


HEALTHY: dict[str, Any] = {
    "model": "whet/tiny",
    "max_steps": 6,
    "batch_size": 16,
    "rollouts_per_example": 4,
    "learning_rate": 3e-4,
    "sampling": {"max_tokens": 24},
    "env": [clinic("overlap")],
    "eval": {"before": False, "after": False},
    "deployment": {"threads": 1},
}

PATIENTS: dict[str, dict[str, Any]] = {
    "healthy": {},
    "nobody reads it": {"env": [clinic("none_of_it", tag="answer")]},
    "not credited": {"env": [clinic("another_spelling")], "sampling": {"max_tokens": 24, "temperature": 0.3}},
    "too hard": {"env": [clinic("exact", length=30)], "sampling": {"max_tokens": 48}},
    "cut off": {"env": [clinic("exact")], "sampling": {"max_tokens": 3}},
    "too easy": {"env": [clinic("anything")]},
    "flat groups": {"env": [clinic("by_task")]},
    "steps of a hundredfold": {"learning_rate": 3e-2},
    "a rate of 0.1": {"learning_rate": 0.1},
    "groups of one": {"rollouts_per_example": 1, "batch_size": 4},
    "steps of tenfold": {"learning_rate": 3e-3, "eval": {"num_examples": 48}, "max_steps": 8},
    "by turns": {
        "env": [clinic("anything", "easy"), clinic("overlap", "hard", length=16)],
        "buffer": {"curriculum": "turns:ByTurns"},
        "max_steps": 12,
    },
    "cold": {"env": [clinic("overlap", length=16)], "sampling": {"max_tokens": 40, "temperature": 0.05}},
    "paid for noise": {"algorithm": {"entropy_coef": 1.0}, "learning_rate": 1e-3},
    "paid for length": {
        "env": [clinic("length_pays")],
        "learning_rate": 2e-3,
        "max_steps": 8,
        "sampling": {"max_tokens": 32},
    },
    "paid for brevity": {
        "env": [clinic("brevity_pays")],
        "learning_rate": 2e-3,
        "eval": {"env": [clinic("overlap", "held-out")], "num_examples": 8, "rollouts_per_example": 8, "greedy": False},
    },
    "paid for one letter": {"env": [clinic("one_letter_pays")], "learning_rate": 2e-3, "max_steps": 10},
    "one against the other": {
        "env": [clinic("length_pays", "long"), clinic("brevity_pays", "short", weight=3)],
        "batch_size": 32,
        "learning_rate": 2e-3,
        "max_steps": 10,
    },
    "a judge with gaps": {"env": [clinic("sometimes_raises")]},
    "a slow judge": {"env": [clinic("waits")]},
    "rounded": {"inference": {"dtype": "bfloat16"}},
    "no room": {"algorithm": {"loss": "ppo", "eps_low": 0.0, "eps_high": 0.0}},
    "cut sampling": {"sampling": {"max_tokens": 24, "top_p": 0.7, "top_k": 50}},
    "masked": {
        "env": [clinic("overlap", "short", length=5), clinic("overlap", "long", weight=3, length=14)],
        "sampling": {"max_tokens": 10},
        "algorithm": {"mask_truncated": True},
    },
    "all masked": {"sampling": {"max_tokens": 2}, "algorithm": {"mask_truncated": True}},
    "rare and large": {"env": [clinic("jackpot")], "learning_rate": 1e-5, "max_steps": 12},
    "old rollouts": {
        "max_async_level": 4,
        "max_off_policy_steps": 4,
        "oversampling_factor": 2.0,
        "max_steps": 8,
        "learning_rate": 3e-3,
    },
    "long and given up": {
        "env": [clinic("overlap", long_turns=40)],
        "max_async_level": 1,
        "max_off_policy_steps": 1,
        "max_steps": 10,
    },
    "asynchronous and healthy": {"max_async_level": 1, "max_steps": 8},
}
"""What differs from `HEALTHY`, by a name for the disease."""


def make_config(patient: str, directory: Path, changes: dict[str, Any] | None = None) -> RunConfig:
    """`changes` are keys with dots, as the doctor writes them."""
    data = {**HEALTHY, **PATIENTS[patient], "name": "run", "runs_directory": directory}
    for key, value in (changes or {}).items():
        *tables, last = key.split(".")
        place: Any = data
        for table in tables:
            if isinstance(place, list):
                inner = dict(place[int(table)])
                place[int(table)] = inner
            else:
                inner = place.get(table, {})
                inner = list(inner) if isinstance(inner, list) else dict(inner)
                place[table] = inner
            place = inner
        place[last] = value
    return RunConfig.model_validate(data)


@pytest.fixture(scope="session")
def config_of() -> Callable[..., RunConfig]:
    """The config of a patient: `config_of(patient, runs_directory, changes)`."""
    return make_config


@pytest.fixture(scope="session")
def run_of(tmp_path_factory: pytest.TempPathFactory, warm_server: Any) -> Iterator[Run]:
    """The run directory of a patient; with `changes`, of one whose config was changed so."""
    done: dict[str, Path] = {}
    sys.path.insert(0, str(HERE))

    def run(patient: str, changes: dict[str, Any] | None = None) -> Path:
        key = f"{patient} {changes}"
        if key not in done:
            directory = tmp_path_factory.mktemp("ward")
            config = make_config(patient, directory, changes)
            if config.max_async_level:  # its engine and its learner start at once there
                (directory / "config.toml").write_text(config.to_toml())
                warm_server.run("train", "run", directory / "config.toml")
            else:
                run_training(config, json_output=True)
            done[key] = directory / "run"
        return done[key]

    yield run
    sys.path.remove(str(HERE))
