"""When things happened in a rollout: setup, generation, scoring, and every turn's model and environment time.

Times are Unix seconds. They are records for people to read; nothing in whet decides anything by them.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, ClassVar


class _Fields:
    """Reading by key as well as by attribute, and as a dict, as environments and trainers written for 0.1 may."""

    __slots__ = ()
    _computed: ClassVar[tuple[str, ...]] = ("duration",)

    def keys(self) -> list[str]:
        return [*type(self).__slots__, *self._computed]

    def __iter__(self) -> Iterator[str]:
        return iter(self.keys())

    def __contains__(self, key: object) -> bool:
        return key in self.keys()

    def __getitem__(self, key: str) -> Any:
        return getattr(self, key)

    def get(self, key: str, default: Any = None) -> Any:
        return getattr(self, key, default)


class TimeSpan(_Fields):
    """One measured phase. `duration` is 0 until the phase has ended."""

    __slots__ = ("end", "start")

    def __init__(self, start: float = 0.0, end: float = 0.0) -> None:
        self.start = start
        self.end = end

    @property
    def duration(self) -> float:
        return self.end - self.start if self.end > 0.0 else 0.0

    def model_dump(self, **_: Any) -> dict[str, float]:
        return {"start": self.start, "end": self.end, "duration": self.duration}


class TimeSpans(_Fields):
    """One span per turn, in the order of the turns."""

    __slots__ = ("spans",)

    def __init__(self) -> None:
        self.spans: list[TimeSpan] = []

    @property
    def duration(self) -> float:
        return sum(span.duration for span in self.spans)

    def model_dump(self, **_: Any) -> dict[str, Any]:
        return {"spans": [span.model_dump() for span in self.spans], "duration": self.duration}


class RolloutTiming(_Fields):
    """When things happened in a rollout; seconds."""

    __slots__ = ("env", "generation", "model", "scoring", "setup", "start_time")
    _computed = ("total", "overhead", "generation_ms", "scoring_ms", "total_ms")

    def __init__(self) -> None:
        self.start_time = time.time()
        self.setup = TimeSpan()
        self.generation = TimeSpan()
        self.scoring = TimeSpan()
        self.model = TimeSpans()
        self.env = TimeSpans()

    @property
    def total(self) -> float:
        """From the start of generation to the end of scoring; 0 until the rollout is scored."""
        return self.scoring.end - self.generation.start if self.scoring.end > 0.0 else 0.0

    @property
    def generation_ms(self) -> float:
        """`generation_ms`, `scoring_ms` and `total_ms` are the names of 0.1.8 to 0.1.10, in milliseconds."""
        return self.generation.duration * 1000

    @property
    def scoring_ms(self) -> float:
        return self.scoring.duration * 1000

    @property
    def total_ms(self) -> float:
        return self.total * 1000

    @property
    def overhead(self) -> float:
        """What of `total` was spent on none of setup, model, environment and scoring."""
        spent = self.setup.duration + self.model.duration + self.env.duration + self.scoring.duration
        return self.total - spent

    @contextmanager
    def grading(self) -> Iterator[None]:
        """What a rollout is graded by before the rubric scores it, such as a verifier of its own, is scoring too."""
        began = time.time()
        try:
            yield
        finally:
            self.scoring = TimeSpan(began, time.time())

    def model_dump(self, **_: Any) -> dict[str, Any]:
        return {
            "start_time": self.start_time,
            "setup": self.setup.model_dump(),
            "generation": self.generation.model_dump(),
            "scoring": self.scoring.model_dump(),
            "model": self.model.model_dump(),
            "env": self.env.model_dump(),
            "total": self.total,
            "overhead": self.overhead,
        }
