"""`Whole`: how the parameters of a learner are held.

In one process each is one tensor, and everything here is the identity. `ranks/sharding.py` is the same for one rank of
many, which holds a part of each.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from torch import Tensor


class Whole:
    """Each parameter is one tensor of this process."""

    rank, ranks = 0, 1

    def own(self, tensor: Tensor) -> Tensor:
        """The part of a parameter, or of its gradient, that is held here."""
        return tensor

    def norm(self, own: Tensor) -> Tensor:
        """The norm of all parts, from that of the parts held here."""
        return own

    def map_whole(self, function: Callable[[Tensor], Tensor], tensors: Sequence[Tensor]) -> list[Tensor]:
        """The own part of what `function` makes of each whole tensor; at most as many tensors as ranks."""
        return [function(tensor) for tensor in tensors]
