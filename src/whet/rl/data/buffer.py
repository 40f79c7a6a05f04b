"""`[buffer]`: which tasks are drawn, and which groups may join a batch; the curriculum it describes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Self

from pydantic import Field, model_validator

from whet.errors import ConfigError
from whet.rl.data.curriculum import Curriculum, MixedCurriculum, Pool
from whet.rl.data.difficulty import DifficultyRule
from whet.tasksets.refs import resolve_function

METHODS = ("next_task", "next_of", "observe", "state_dict", "load_state_dict")


class BufferConfig(DifficultyRule):
    """`[buffer]`: which tasks are drawn, and which groups may join a batch."""

    env_ratios: tuple[float, ...] = Field(
        (), description="Shares of the groups of a batch, one for each [[env]]; says the same as their weights."
    )
    difficulty_threshold: float = Field(
        0.0, ge=0, description="Groups whose rewards have less variance are replaced; 0 keeps every group."
    )
    online_difficulty_filtering: bool = Field(
        False, description="Tasks rest while their groups' mean reward says that they are too easy or too hard."
    )
    max_errored_groups: int = Field(
        8, ge=1, description="Groups' worth of rollouts that may fail in a row for one place before the run stops."
    )
    curriculum: str | None = Field(
        None, description="Another order of tasks: 'package.module:name', called with pools and seed."
    )

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if any(ratio <= 0 for ratio in self.env_ratios):
            raise ValueError("env_ratios should all be above 0; take the environment out instead")
        changed = list(filter(self.differs, DifficultyRule.model_fields))
        if changed and not self.online_difficulty_filtering:
            raise ValueError(f"{changed[0]} has no effect without online_difficulty_filtering = true")
        if self.curriculum is not None and self.online_difficulty_filtering:
            raise ValueError("a curriculum of one's own decides about difficulty itself: drop one of the two keys")
        if self.hard_threshold >= self.easy_threshold:
            raise ValueError(
                f"hard_threshold = {self.hard_threshold:g} should be below easy_threshold = {self.easy_threshold:g}"
            )
        if self.easy_fraction + self.hard_fraction > 1:
            raise ValueError("easy_fraction and hard_fraction together are more than the whole batch")
        return self

    def make_curriculum(self, pools: Sequence[Pool], seed: int) -> Curriculum:
        """The curriculum that is configured. Raises `ConfigError` for an import path that leads to none."""
        if self.curriculum is None:
            return MixedCurriculum(pools, seed=seed, rule=self if self.online_difficulty_filtering else None)
        made = resolve_function(self.curriculum, "buffer.curriculum")(pools, seed=seed)
        missing = [name for name in METHODS if not callable(getattr(made, name, None))]
        if missing:
            raise ConfigError(
                f"buffer.curriculum: '{self.curriculum}' made a {type(made).__name__} without {', '.join(missing)}; "
                "whet.rl.data.curriculum.Curriculum says what each does."
            )
        curriculum: Curriculum = made
        return curriculum
