"""What an embedded engine frees: a large cache while nothing is sampled, all it has while a learner has the device."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

from whet.inference.decoding.cache import KVCache
from whet.inference.decoding.decoder import Decoder
from whet.inference.decoding.scheduler import Scheduler
from whet.inference.plain.cache import PlainCache
from whet.inference.plain.decoder import PlainDecoder
from whet.inference.weights.weight_loader import WeightLoader

KEPT_CACHE = 1 << 26
"""Bytes of keys and values that stay allocated while nothing is sampled; what is larger is freed."""


def give_back(cache: KVCache | PlainCache, scheduler: Scheduler, bytes_per_token: int) -> None:
    """Free a large cache that holds nothing any more: a learner in this process needs the memory next."""
    empty = scheduler.empty and not scheduler.keep_columns
    if empty and cache.slots * cache.columns * bytes_per_token > KEPT_CACHE:
        cache.resize(0, 0, kept=0)


def free_all(
    cache: KVCache | PlainCache, decoder: Decoder | PlainDecoder, loader: WeightLoader[Any], *, keep_base: bool
) -> int:
    """Free keys, values and weights, of which names, shapes and dtypes are left; the number of bytes.

    With `keep_base` the weights that adapters are merged onto stay, in host memory, where they may be a mapped file.
    """
    base = loader.base or {}
    weights = decoder.weights.tensors()
    held = _storages([*cache.tensors(), *weights.values(), *base.values()])
    stays = _storages(tensor for tensor in base.values() if keep_base and tensor.device.type == "cpu")
    freed = sum(size for storage, size in held.items() if storage not in stays)
    decoder.weights = decoder.weights.of({name: _without_memory(tensor) for name, tensor in weights.items()})
    cache.resize(0, 0, kept=0)
    loader.free(keep_base=keep_base)
    if cache.index.device.type == "cuda":
        del weights, base
        torch.cuda.empty_cache()
    return freed


def _without_memory(tensor: Tensor) -> Tensor:
    """A tensor of the same shape, dtype and device that takes one element."""
    return tensor.new_empty(()).expand(tensor.shape)


def _storages(tensors: Iterable[Tensor]) -> dict[int, int]:
    """Bytes by address: each once, however many tensors are views of them."""
    storages = (tensor.untyped_storage() for tensor in tensors)
    return {storage.data_ptr(): storage.nbytes() for storage in storages if storage.nbytes()}
