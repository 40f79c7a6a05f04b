"""`Whole`: how the parameters of a learner are held, and made whole to leave it.

In one process each is one tensor, and most of this is the identity. `ranks/sharding.py` is the same for one rank of
many, which holds a part of each: then rank 0 writes what all ranks gather, one tensor after the other.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property

import torch
from torch import Tensor, nn

from whet.inference.plain.weights import layer_of


class Whole:
    """Each parameter is one tensor of this process."""

    rank, ranks = 0, 1
    divided = False
    """Whether parameters are held in parts, be it by one rank alone."""

    def own(self, tensor: Tensor) -> Tensor:
        """The part of a parameter, or of its gradient, that is held here."""
        return tensor

    def rows(self, tensor: Tensor) -> slice | None:
        """Which rows of a parameter are held here; None for all of it."""
        return None

    def norm(self, own: Tensor) -> Tensor:
        """The norm of all parts, from that of the parts held here."""
        return own

    def summed(self, tensor: Tensor, what: str) -> Tensor:
        """The sum of what each process has."""
        return tensor

    def map_whole(self, function: Callable[[Tensor], Tensor], tensors: Sequence[Tensor]) -> list[Tensor]:
        """The own part of what `function` makes of each whole tensor; at most as many tensors as ranks."""
        return [function(tensor) for tensor in tensors]

    def gather(self, tensor: Tensor, name: str) -> Tensor:
        """A whole parameter where it is written; elsewhere one without numbers (on the meta device)."""
        return tensor.detach()

    def gathers_to(self, model: nn.Module) -> torch.device:
        """Where `gather` puts parameters."""
        return next(model.parameters()).device

    @contextmanager
    def gathered(self, model: nn.Module, name: str) -> Iterator[bool]:
        """The modules that compute with a parameter have it whole for the length of the block; says whether this
        process is the one that writes."""
        yield True

    def write(self, write: Callable[[], None], gathered: Iterable[object], what: str) -> None:
        """Write what is gathered by iterating `gathered`, which `write` does; all ranks have called it when it returns,
        and raise the same error."""
        write()


class WholeTensors(Mapping[str, Tensor]):
    """Whole tensors under the names of a checkpoint: those of a layer are gathered when the first of them is read, and
    held until something else is."""

    def __init__(
        self,
        parameters: Mapping[str, Tensor],
        gather: Callable[[str], Tensor],
        convert: Callable[[dict[str, Tensor]], dict[str, Tensor]] = dict,
        dtype: torch.dtype | None = None,
    ) -> None:
        """`gather` gives a whole parameter by its name; `convert` makes tensors of a checkpoint of parameters, each of
        one of them, which is in the same layer. In `dtype`, or in that of each parameter."""
        self._parameters, self._gather, self._convert, self._dtype = parameters, gather, convert, dtype
        self._layers: dict[str, list[str]] = {}
        for name in parameters:
            self._layers.setdefault(layer_of(name) or name, []).append(name)
        self._held: dict[str, Tensor] = {}
        self._layer = ""

    @cached_property
    def described(self) -> dict[str, Tensor]:
        """Types and shapes, on the meta device."""
        alike = {
            name: torch.empty(parameter.shape, dtype=self._dtype or parameter.dtype, device="meta")
            for name, parameter in self._parameters.items()
        }
        return self._convert(alike)

    def __getitem__(self, piece: str) -> Tensor:
        layer = layer_of(piece) or piece
        if layer != self._layer:
            names = self._layers[layer]
            self._held, self._layer = {}, layer
            self._held = self._convert({name: self._whole(name) for name in names})
        return self._held[piece]

    def _whole(self, name: str) -> Tensor:
        tensor = self._gather(name)
        return tensor if self._dtype is None else tensor.to(self._dtype)

    def __contains__(self, piece: object) -> bool:
        return piece in self._parameters or piece in self.described

    def __iter__(self) -> Iterator[str]:
        return iter(self.described)

    def __len__(self) -> int:
        return len(self.described)
