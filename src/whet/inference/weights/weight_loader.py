"""New weights on their way into the embedded engine: read or mapped, merged, fused, and brought onto its device.

Nothing here is in use yet. Everything may run on a thread while the engine decodes, which takes what has come between
two of its steps.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import torch

from whet.errors import ModelLoadError
from whet.inference.architecture import Architecture
from whet.inference.protocol import WeightUpdate
from whet.inference.weights.adapters import PackedAdapter, merge_adapter, pack_adapter
from whet.inference.weights.model_weights import NamedWeights, PackedWeights, pack, read_safetensors
from whet.inference.weights.packed_file import Mappings, map_packed


class WeightLoader:
    """Weights for an engine of this architecture, dtype and device. `base` is what adapters are put onto."""

    def __init__(self, arch: Architecture, base: NamedWeights, *, dtype: torch.dtype, device: torch.device) -> None:
        self.base: NamedWeights | None = base  # None: the weights were packed, and no adapter can be added
        self._arch, self._dtype, self._device = arch, dtype, device
        # On a GPU new weights are copied concurrently with the steps, into memory that old weights have freed.
        self._stream = torch.cuda.Stream(device) if device.type == "cuda" else None
        self._mappings = Mappings()  # of what came packed

    def read(self, update: WeightUpdate, in_use: PackedWeights) -> tuple[NamedWeights | None, PackedWeights]:
        """The next `base`, and what to sample with. Raises `ModelLoadError` for what cannot be read or put together.

        `in_use` gives the names, shapes and dtypes that packed weights must have.
        """
        if update.kind == "packed":
            return None, self._arrived(lambda: map_packed(update.path, in_use, self._mappings))
        if update.kind == "model":
            base = read_safetensors([update.path])
            return base, self.pack(base)
        base = self._named()
        return base, self.pack(merge_adapter(base, update.path))

    def read_adapter(self, directory: Path) -> PackedAdapter:
        """An adapter to be served with the base."""
        return pack_adapter(directory, self._named(), self._arch, dtype=self._dtype, device=self._device)

    def pack(self, named: NamedWeights) -> PackedWeights:
        return self._arrived(lambda: pack(named, self._arch, dtype=self._dtype, device=self._device))

    def _named(self) -> NamedWeights:
        if self.base is None:
            raise ModelLoadError("the engine's weights came packed, and an adapter cannot be put onto those")
        return self.base

    def _arrived(self, read: Callable[[], PackedWeights]) -> PackedWeights:
        """What `read` returns, once it is complete: a GPU copies concurrently with decode steps."""
        with torch.cuda.stream(self._stream):
            weights = read()
        if self._stream is not None:
            self._stream.synchronize()
        return weights
