"""New weights on their way into the embedded engine: read or mapped, merged, fused, and brought onto its device.

Nothing here is in use yet. Everything may run on a thread while the engine decodes, which takes what has come between
two of its steps.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Generic, Protocol, TypeVar

import torch

from whet.errors import ModelLoadError
from whet.inference.architecture import Architecture
from whet.inference.protocol import WeightUpdate
from whet.inference.weights.adapters import UNEMBEDDING, PackedAdapter, merge_adapter, pack_adapter, read_adapter
from whet.inference.weights.block_matrix import FrozenTensors
from whet.inference.weights.model_weights import PackedWeights, pack
from whet.inference.weights.packed_file import MappedWeights, Mappings, map_packed
from whet.inference.weights.safetensors_files import NamedWeights, read_safetensors

Packed_co = TypeVar("Packed_co", covariant=True)


class WeightForm(Protocol[Packed_co]):
    """What a forward pass computes with: made of named weights, and of adapters. Raises `ModelLoadError`."""

    def pack(self, named: NamedWeights) -> Packed_co: ...
    def with_adapter(self, named: NamedWeights, directory: Path) -> Packed_co: ...
    def adapter(self, directory: Path, named: NamedWeights) -> PackedAdapter: ...


@dataclass(frozen=True, slots=True)
class FusedForm:
    """The form of whet's own forward pass."""

    arch: Architecture
    dtype: torch.dtype
    device: torch.device

    def pack(self, named: NamedWeights) -> PackedWeights:
        return pack(named, self.arch, dtype=self.dtype, device=self.device)

    def with_adapter(self, named: NamedWeights, directory: Path) -> PackedWeights:
        # An embedding stays as it is where an adapter changes the unembedding that is tied to it.
        if isinstance(named, FrozenTensors) or (self.arch.tied_embeddings and UNEMBEDDING in read_adapter(directory)):
            return replace(self.pack(named), adapter=self.adapter(directory, named))
        return self.pack(merge_adapter(named, directory))

    def adapter(self, directory: Path, named: NamedWeights) -> PackedAdapter:
        return pack_adapter(directory, named, self.arch, dtype=self.dtype, device=self.device)


class WeightLoader(Generic[MappedWeights]):
    """Weights for an engine of this form and device. `base` is what adapters are put onto."""

    def __init__(self, form: WeightForm[MappedWeights], base: NamedWeights, *, device: torch.device) -> None:
        self.base: NamedWeights | None = base  # None: packed or freed, and no adapter can be added
        self._form = form
        # On a GPU new weights are copied concurrently with the steps, into memory that old weights have freed.
        self._stream = torch.cuda.Stream(device) if device.type == "cuda" else None
        self._mappings = Mappings()  # of what came packed

    def read(self, update: WeightUpdate, in_use: MappedWeights) -> tuple[NamedWeights | None, MappedWeights]:
        """The next `base`, and what to sample with. Raises `ModelLoadError` for what cannot be read or put together.

        `in_use` gives the names, shapes and dtypes that packed weights must have.
        """
        if update.kind == "packed":
            return None, self._arrived(lambda: map_packed(update.path, in_use, self._mappings))
        if update.kind == "model":
            base = read_safetensors([update.path])
            return base, self.pack(base)
        return self._named(), self.with_adapter(update.path)

    def free(self, *, keep_base: bool) -> None:
        """Let go of what was read and mapped, but for a copy of the base in host memory where that is to be kept."""
        self._mappings = Mappings()
        kept = self.base if keep_base else None
        self.base = kept and {name: tensor.cpu() for name, tensor in kept.items()}

    def read_adapter(self, directory: Path) -> PackedAdapter:
        """An adapter to be served with the base."""
        return self._form.adapter(directory, self._named())

    def with_adapter(self, directory: Path) -> MappedWeights:
        """The base with an adapter that is part of it."""
        base = self._named()
        return self._arrived(lambda: self._form.with_adapter(base, directory))

    def pack(self, named: NamedWeights) -> MappedWeights:
        return self._arrived(lambda: self._form.pack(named))

    def _named(self) -> NamedWeights:
        if self.base is None:
            raise ModelLoadError(
                "the engine's weights came packed or were freed, and an adapter cannot be put onto those"
            )
        return self.base

    def _arrived(self, read: Callable[[], MappedWeights]) -> MappedWeights:
        """What `read` returns, once it is complete: a GPU copies concurrently with decode steps."""
        with torch.cuda.stream(self._stream):
            weights = read()
        if self._stream is not None:
            self._stream.synchronize()
        return weights
