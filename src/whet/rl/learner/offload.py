"""A learner that leaves its device to the engine while that samples (`[deployment] colocate`).

Parameters, masters, optimiser states and a reference of its own move to host memory and back, so that a GPU holds
either what learning takes or what sampling takes. Gradients are gone by then: an optimiser step clears them. Buffers
(rotary frequencies) are few and stay. On a CPU nothing moves, since host memory is where all of it is already.
"""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

from whet.rl.learner.optim import Optimizer
from whet.rl.learner.reference import Reference
from whet.rl.learner.weights import Weights

Move = Callable[[Tensor], Tensor]


def move_learner(weights: Weights, optimizer: Optimizer, reference: Reference | None, move: Move) -> None:
    """Replace the tensors of all parameters, each once, and of the optimiser's states."""
    parameters = [*weights.model.parameters(), *optimizer.parameters]
    if reference is not None and not reference.shared:
        with reference.lend() as model:
            parameters += model.parameters()
    for parameter in {id(parameter): parameter for parameter in parameters}.values():
        parameter.data = move(parameter.data)
    for state in optimizer.states():
        state.update({name: move(value) for name, value in state.items() if isinstance(value, Tensor)})
