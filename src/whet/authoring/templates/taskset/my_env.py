"""Put names in alphabetical order: a taskset, whose settings can be given in a config file, joined to the chat loop.

Whether a task belongs to training or to evaluation is decided by a hash of its names, so the two never meet, whatever
the seed and the sizes.
"""

from __future__ import annotations

import random
import zlib
from typing import Any, Literal

from pydantic import Field

import whet

QUESTION = "Sort these names alphabetically. Answer with the sorted names only, one per line.\n\n"
NAME_LIST = (
    "Abe Ada Ali Amy Ana Ann Ava Bea Ben Bob Cal Dan Dee Don Eli Eva Eve Fay Flo Gil Gus Hal Ian Ida Ike Ina Ira Ivy "
    "Jan Jay Jed Jim Joe Jon Joy Kai Kay Ken Kim Kit Lea Lee Leo Liv Liz Lou Mae Max May Meg Mel Mia Ned Nia Noa Ola "
    "Ora Pam Pat Pia Rae Ray Rex Rob Ron Roy Sal Sam Sid Sky Sue Ted Tia Tim Tom Uma Val Vic Wes Wil Zac Zoe"
)
NAMES = NAME_LIST.split()


def split_of(names: list[str]) -> Literal["train", "eval"]:
    """A quarter of all tasks is for evaluation. The order of the names does not matter."""
    return "eval" if zlib.crc32(" ".join(sorted(names)).encode()) % 4 == 0 else "train"


class MyEnvConfig(whet.TasksetConfig):
    """Settings of this taskset, in addition to those that every taskset has."""

    num_train: int = Field(1000, ge=1, description="Tasks to train on.")
    num_eval: int = Field(128, ge=1, description="Tasks to evaluate on.")
    seed: int = Field(0, description="Draws the tasks.")
    max_names: int = Field(4, ge=3, le=20, description="Most names of a task; more is harder.")


class MyEnvTaskset(whet.Taskset):
    config_type = MyEnvConfig

    def __init__(self, config: MyEnvConfig | None = None, **kwargs: Any) -> None:
        super().__init__(source=self.train_rows, eval_source=self.held_out_rows, config=config, **kwargs)

    def train_rows(self) -> list[dict[str, Any]]:
        return self.make_rows("train", self.config.num_train)

    def held_out_rows(self) -> list[dict[str, Any]]:
        return self.make_rows("eval", self.config.num_eval)

    def make_rows(self, split: Literal["train", "eval"], size: int) -> list[dict[str, Any]]:
        """`size` different tasks of one split; no two are about the same names."""
        rng = random.Random(f"{split} {self.config.seed}")
        rows: dict[str, dict[str, Any]] = {}
        while len(rows) < size:
            names = rng.sample(NAMES, rng.randint(2, self.config.max_names))
            answer = "\n".join(sorted(names))
            if split_of(names) == split:
                rows[answer] = {"question": QUESTION + "\n".join(names), "answer": answer}
        return list(rows.values())

    @whet.update
    def read_answer(self, task: whet.Task, state: whet.TaskState) -> None:
        """What the rollout submits: the lines of its last message."""
        last = state["completion"][-1] if state["completion"] else {}
        state["names"] = [line.strip() for line in (last.get("content") or "").strip().split("\n")]

    @whet.reward
    def in_place(self, task: whet.Task, state: whet.TaskState) -> float:
        """The share of lines that hold the right name."""
        given, right = state["names"], task["answer"].split("\n")
        return sum(a == b for a, b in zip(given, right, strict=False)) / max(len(given), len(right))

    @whet.metric
    def exact_match(self, task: whet.Task, state: whet.TaskState) -> float:
        """1 if the whole list is right."""
        return float(state["names"] == task["answer"].split("\n"))


def load_environment(config: whet.EnvConfig = whet.EnvConfig()) -> whet.Environment:  # noqa: B008
    """
    Args:
        config: Settings of the taskset (`MyEnvConfig`) and of the harness.
    """
    return whet.Env(MyEnvTaskset(config.taskset), whet.Harness(config=config.harness))
