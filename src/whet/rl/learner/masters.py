"""Parameters that the forward pass reads in bfloat16, and the float32 masters that are trained.

    forward, backward    read matrices in bfloat16: half the bytes, and no copy is made for each product
    gradients            of a micro-batch are bfloat16, and added up on the master in float32 as soon as they are there
    update               of the masters; what the forward pass reads is rounded from them

bfloat16 keeps 8 bits of a number, so an update of less than a 512th of a weight would be lost in it; masters add such
updates up. Vectors (norms, biases) are few: they stay float32 and are their own masters. Source of the method:
Micikevicius et al. 2018 (arXiv:1710.03740).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import torch
from torch import Tensor, nn


def hold(parameters: Iterable[nn.Parameter], dtype: torch.dtype) -> None:
    """Keep the matrices among parameters that are not trained in `dtype`."""
    for parameter in parameters:
        if parameter.ndim > 1:
            parameter.data = parameter.data.to(dtype)


class Masters:
    """The parameters that are trained, in float32, and those that are computed with."""

    def __init__(self, named: Iterable[tuple[str, nn.Parameter]], dtype: torch.dtype) -> None:
        """Takes float32 parameters, and leaves the matrices among them in `dtype`."""
        self.parameters: list[tuple[str, nn.Parameter]] = []
        """What is trained, by the names of what is computed with: the same where that is float32."""
        self._rounded: list[tuple[nn.Parameter, nn.Parameter]] = []
        for name, parameter in named:
            master = parameter
            if dtype != torch.float32 and parameter.ndim > 1:
                master = nn.Parameter(parameter.detach())
                hold([parameter], dtype)
                parameter.register_post_accumulate_grad_hook(_adds_to(master))
                self._rounded.append((master, parameter))
            self.parameters.append((name, master))

    @torch.no_grad()
    def round(self) -> None:
        """Let the forward pass read what the masters are now."""
        for master, parameter in self._rounded:
            parameter.copy_(master)


def _adds_to(master: nn.Parameter) -> Callable[[Tensor], None]:
    """Moves a gradient to the master, where gradients of micro-batches add up."""

    def move(parameter: Tensor) -> None:
        gradient, parameter.grad = parameter.grad, None
        assert gradient is not None
        if master.grad is None:
            master.grad = gradient.to(master.dtype)
        else:
            master.grad.add_(gradient)

    return move
