"""`ExternalScoreRubric`: a score that another library computes, with the numbers that it gives beside it."""

from __future__ import annotations

from whet.rubrics.rubric import Rubric
from whet.types import RewardFunc, State


class ExternalScoreRubric(Rubric):
    """The reward of one function; what it or the rollout left in `state["external_metrics"]` are metrics too."""

    def __init__(self, reward: RewardFunc) -> None:
        super().__init__([reward])

    async def add_scores(self, states: list[State]) -> None:
        await super().add_scores(states)
        for state in states:
            if state.get("error") is None:
                state["metrics"] |= state.get("external_metrics", {})
