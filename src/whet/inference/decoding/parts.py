"""What an engine computes with: whet's own forward pass, or for families that it does not know that of transformers."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import torch

from whet.inference.architecture import Architecture
from whet.inference.decoding.cache import KVCache
from whet.inference.decoding.decoder import Decoder
from whet.inference.plain.family import OtherFamily, describe
from whet.inference.weights.model_weights import NamedWeights, read_checkpoint
from whet.inference.weights.weight_loader import FusedForm, WeightLoader

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from whet.inference.plain.cache import PlainCache
    from whet.inference.plain.decoder import PlainDecoder


WholeModel: TypeAlias = "NamedWeights | PreTrainedModel"
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
) -> EngineParts:
    """Raises `ModelLoadError` for weights that do not fit, and for a model that cannot be sampled exactly."""
    if isinstance(arch, Architecture):
        assert isinstance(named, dict), "the weights of a family of whet's own are given by name"
        cache = KVCache(arch, dtype=dtype, device=device, record_experts=record_experts)
        loader = WeightLoader(FusedForm(arch, dtype, device), named, device=device)
        decoder = Decoder(arch, loader.pack(named), cache)
        return EngineParts(cache, KVCache.bytes_per_token(arch, dtype), loader, decoder)
    from whet.inference.plain.decoder import plain_parts

    assert not isinstance(named, dict), "a family that is not whet's own is given as a model"
    plain = plain_parts(named, dtype=dtype, device=device)
    return EngineParts(plain[0], plain[0].bytes_per_token, plain[1], plain[2])
