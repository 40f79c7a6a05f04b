"""What a learner moves when it leaves its device and takes it back (`[deployment] colocate`)."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Protocol

from torch import Tensor

from whet.rl.learner.optim import Optimizer
from whet.rl.learner.reference import Reference
from whet.rl.learner.weights import Weights


class Mover(Protocol):
    """Gives a tensor that takes the place of another; `fixed` are those whose numbers never change."""

    def __call__(self, key: Hashable, tensor: Tensor, *, fixed: bool) -> Tensor: ...


def move_learner(weights: Weights, optimizer: Optimizer, reference: Reference | None, move: Mover) -> None:
    """Replace the tensors of all parameters, each once, and of the optimiser's states.

    Gradients are gone by then, since an optimiser step clears them; buffers (rotary frequencies) are few and stay.
    """
    trained = set(map(id, optimizer.parameters))
    parameters: list[Tensor] = [*weights.model.parameters(), *optimizer.parameters]
    if reference is not None and not reference.shared:
        with reference.lend() as model:
            parameters += model.parameters()
    held = [] if reference is None else [*reference.held.values()]
    parameters += held
    changing = trained | set(map(id, held))
    for parameter in {id(parameter): parameter for parameter in parameters}.values():
        fixed = not parameter.requires_grad and id(parameter) not in changing
        parameter.data = move(id(parameter), parameter.data, fixed=fixed)
    for number, state in enumerate(optimizer.states()):
        for name, value in state.items():
            if isinstance(value, Tensor):
                state[name] = move((number, name), value, fixed=False)
