"""What a run may use in all: time, tokens, money. Pure; `run.py` measures and stops.

A budget is the run's, not the process's: what was used before a resume counts. What a killed process used after its
last checkpoint is done again and not counted twice.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any

from pydantic import BeforeValidator, Field

from whet.config import StrictModel

UNITS = {"s": 1, "m": 60, "min": 60, "h": 3600, "d": 86400}
USED = "budget"
"""Where a checkpoint keeps what was used."""


def duration(value: Any) -> Any:
    """`"90"`, `"1.5h"`, `"2h 30min"` in seconds; what is no text is left to others."""
    if not isinstance(value, str):
        return value
    found = re.findall(r"(\d+(?:\.\d+)?)\s*([a-z]*)\s*", value.strip())
    whole = re.fullmatch(r"(?:\d+(?:\.\d+)?\s*[a-z]*\s*)+", value.strip())
    if whole is None or any(unit and unit not in UNITS for _, unit in found):
        raise ValueError('expected seconds, or a text such as "90 s", "45 min", "2h 30min"')
    return sum(float(number) * UNITS[unit or "s"] for number, unit in found)


class BudgetConfig(StrictModel):
    """`[budget]`: when a run ends before its last step, with a checkpoint. A larger one continues with --resume."""

    max_time: Annotated[float, BeforeValidator(duration)] | None = Field(
        None, gt=0, description='Time of the whole run: seconds, or a text such as "2h 30min".'
    )
    max_tokens: int | None = Field(None, ge=1, description="Tokens sampled from the policy, evaluations included.")
    max_cost: float | None = Field(
        None, gt=0, description="Dollars of judges and other models whose price is known, evaluations included."
    )


@dataclass(slots=True)
class Budget:
    """What has been used, and whether that is all."""

    config: BudgetConfig = field(default_factory=BudgetConfig)
    counted: str = "sampled"  # what became of the tokens that count
    time: float = 0.0  # seconds, before this process
    tokens: int = 0
    cost: float | None = None  # dollars; None while nothing has reported any

    def remaining_time(self) -> float | None:
        """Seconds that this process may take; None without a limit."""
        return None if self.config.max_time is None else max(0.0, self.config.max_time - self.time)

    def spent(self, elapsed: float) -> str | None:
        """What of it is used up, in words for people, when this process has taken `elapsed` seconds; else None."""
        limit = self.config
        if limit.max_time is not None and self.time + elapsed >= limit.max_time:
            return f"budget.max_time = {limit.max_time:g} s is used up"
        if limit.max_tokens is not None and self.tokens >= limit.max_tokens:
            return f"budget.max_tokens = {limit.max_tokens} is used up ({self.tokens} tokens were {self.counted})"
        if limit.max_cost is not None and (self.cost or 0.0) >= limit.max_cost:
            return f"budget.max_cost = {limit.max_cost:g} is used up ({self.cost:.4f} dollars)"
        return None

    def state_dict(self, elapsed: float) -> dict[str, Any]:
        return {USED: {"time": self.time + elapsed, "tokens": self.tokens, "cost": self.cost}}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on with what a checkpoint says; one without a word about budgets has used nothing."""
        used = state.get(USED) or {}
        self.time, self.tokens, self.cost = used.get("time", 0.0), used.get("tokens", 0), used.get("cost")
