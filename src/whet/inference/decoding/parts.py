"""What an engine computes with: whet's own forward pass, or for families that it does not know that of transformers."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import torch
from torch import Tensor

from whet.errors import ModelLoadError
from whet.inference.architecture import Architecture
from whet.inference.decoding.cache import KVCache
from whet.inference.decoding.decoder import Decoder
from whet.inference.decoding.scheduler import Scheduler
from whet.inference.plain.family import OtherFamily, describe
from whet.inference.weights.block_matrix import FrozenTensors
from whet.inference.weights.model_weights import read_checkpoint
from whet.inference.weights.safetensors_files import NamedWeights
from whet.inference.weights.weight_loader import FusedForm, WeightLoader

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from whet.inference.plain.decoder import PlainCache, PlainDecoder


WholeModel: TypeAlias = "NamedWeights | FrozenTensors | PreTrainedModel"
"""The weights of a family of whet's own, by name; of another family the model itself, which is used in place."""


class EngineParts(NamedTuple):
    cache: KVCache | PlainCache
    bytes_per_token: int  # of that cache
    loader: WeightLoader[Any]
    decoder: Decoder | PlainDecoder


def read_whole(directory: Path, dtype: torch.dtype) -> tuple[Architecture | OtherFamily, WholeModel]:
    """A checkpoint as `engine_parts` takes it. Raises `ModelLoadError`."""
    arch = describe(directory)
    if isinstance(arch, Architecture):
        return arch, read_checkpoint(directory)
    from whet.inference.plain.weights import load_transformers

    return arch, load_transformers(directory, dtype)


def engine_parts(
    arch: Architecture | OtherFamily,
    named: WholeModel,
    *,
    dtype: torch.dtype,
    device: torch.device,
    record_experts: bool,
    adapter: Path | None = None,
    batch_invariant: bool = False,
) -> EngineParts:
    """`adapter` is the directory of one that is part of the model.

    Raises `ModelLoadError` for weights that do not fit, and for a model that cannot be sampled exactly.
    """
    if isinstance(arch, Architecture):
        assert isinstance(named, dict | FrozenTensors), "the weights of a family of whet's own are given by name"
        cache = KVCache(arch, dtype=dtype, device=device, record_experts=record_experts)
        base: Any = named
        loader = WeightLoader(FusedForm(arch, dtype, device), base, device=device)
        weights = loader.pack(base) if adapter is None else loader.with_adapter(adapter)
        decoder = Decoder(arch, weights, cache, batch_invariant=batch_invariant)
        return EngineParts(cache, KVCache.bytes_per_token(arch, dtype), loader, decoder)
    from whet.inference.plain.decoder import plain_parts

    if batch_invariant:
        raise ModelLoadError("batch_invariant needs a model of a family that whet computes itself")
    assert not isinstance(named, dict), "a family that is not whet's own is given as a model"
    plain = plain_parts(named, dtype=dtype, device=device)
    return EngineParts(plain[0], plain[0].bytes_per_token, plain[1], plain[2])


# What an embedded engine frees: a large cache while nothing is sampled, all it has while a learner has the device.

KEPT_CACHE = 1 << 24
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
