"""A loss that breaks ranks, each once. `WHET_SICK_RANKS` is a folder for notes, then `: 0 memory, 1 nan`."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import torch.distributed

from whet.rl.algorithms import LossInputs, LossTerms

HEALTHY_CALLS = 4
"""There is a checkpoint by then."""
_calls = 0
_next: tuple[Path, str] | None = None
"""The fault of these ranks, and where it is noted as done; the one behind it is for ranks that are started then."""


def loss(inputs: LossInputs, config: Any) -> LossTerms:
    """REINFORCE, as long as nothing is wrong."""
    global _calls, _next
    _calls += 1
    if _calls == 1:
        folder, _, faults = os.environ["WHET_SICK_RANKS"].partition(": ")
        notes = [(Path(folder) / f"done-{number}", fault) for number, fault in enumerate(faults.split(", "))]
        _next = next((note for note in notes if not note[0].exists()), None)
    loss_N = -inputs.advantages_N * inputs.logprobs_N
    here = torch.distributed.get_rank() if torch.distributed.is_initialized() else 0
    if _next is not None and _calls > HEALTHY_CALLS and _next[1].startswith(f"{here} "):
        (done, fault), _next = _next, None
        done.touch()
        if fault.endswith("memory"):
            raise MemoryError
        loss_N = loss_N * float("nan")
    return LossTerms(loss_N)
