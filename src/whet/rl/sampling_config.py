"""`[sampling]` and `[eval.sampling]`: how rollouts draw their tokens."""

from __future__ import annotations

import math
from typing import Any, Literal

from pydantic import Field

from whet.config import StrictModel


class TemperatureSchedule(StrictModel):
    """`[sampling.temp_scheduler]`: rollouts of training begin at another temperature with each policy version."""

    type: Literal["linear", "cosine"] = Field("linear", description="How the temperature goes from start to end.")
    start: float = Field(gt=0, description="Temperature of the first step.")
    end: float = Field(gt=0, description="Temperature of the last step of the schedule, and of those after it.")
    steps: int = Field(0, ge=0, description="Steps of the schedule; 0: all of max_steps.")

    def at(self, version: int, max_steps: int) -> float:
        """The temperature of rollouts that begin with weights of policy `version`; 0 is before the first step."""
        share = min(version / max((self.steps or max_steps) - 1, 1), 1.0)
        if self.type == "cosine":
            share = (1 - math.cos(math.pi * share)) / 2
        return self.start + (self.end - self.start) * share


class SamplingConfig(StrictModel):
    """`[sampling]`: how rollouts draw their tokens."""

    max_tokens: int = Field(512, ge=1, description="Most new tokens in one turn.")
    temperature: float = Field(1.0, ge=0, description="Softmax temperature; 0 is greedy.")
    top_p: float = Field(1.0, gt=0, le=1, description="Keep the most likely tokens up to this probability.")
    top_k: int = Field(0, ge=0, description="Keep this many most likely tokens; 0 keeps all.")
    min_p: float = Field(0.0, ge=0, le=1, description="Drop tokens less likely than this share of the likeliest.")
    stop: tuple[str, ...] = Field((), description="Strings that end a turn.")
    enable_thinking: bool | None = Field(
        None, description="Ask the chat template for thinking or for none; absent: what the template does by itself."
    )
    temp_scheduler: TemperatureSchedule | None = Field(
        None, description="Temperature of training's rollouts by step; evaluations keep temperature."
    )

    def args(self) -> dict[str, Any]:
        """The sampling arguments that a rollout is given; settings that change nothing are left out."""
        always = self.model_dump(include={"max_tokens", "temperature"})
        return always | self.model_dump(mode="json", exclude={"temp_scheduler"}, exclude_defaults=True)


class EvalSamplingConfig(StrictModel):
    """`[eval.sampling]`: what differs from `[sampling]` while evaluating."""

    max_tokens: int | None = Field(None, ge=1, description="Most new tokens in one turn.")
    temperature: float | None = Field(None, ge=0, description="Softmax temperature; 0 is greedy.")
    top_p: float | None = Field(None, gt=0, le=1, description="Keep the most likely tokens up to this probability.")
    top_k: int | None = Field(None, ge=0, description="Keep this many most likely tokens; 0 keeps all.")
    min_p: float | None = Field(None, ge=0, le=1, description="Drop tokens below this share of the likeliest.")
    stop: tuple[str, ...] | None = Field(None, description="Strings that end a turn.")
    enable_thinking: bool | None = Field(None, description="Ask the chat template for thinking or for none.")
