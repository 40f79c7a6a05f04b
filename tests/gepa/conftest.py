"""What tests of prompt optimisation share."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from whet.gepa.types import CandidateRecord, candidate_id

sys.path.append(str(Path(__file__).parent))  # for `planted`, where loading it as an environment puts it too


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
