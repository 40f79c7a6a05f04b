"""A model directory and a config become a learner. The only module that decides which learner.

Torch and `transformers` are imported inside the functions: importing this module is cheap.
"""

from __future__ import annotations

import ctypes
import json
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from whet.errors import ConfigError, ModelLoadError
from whet.inference.architecture import Architecture
from whet.inference.devices import choose_device, expand_segments
from whet.inference.loading import base_of_adapter
from whet.inference.model_names import resolve_model
from whet.inference.plain.family import OtherFamily, describe
from whet.rl.learner.config import LearnerConfig, LoraConfig, OptimizerConfig
from whet.rl.sections.algorithm import INITIAL

if TYPE_CHECKING:
    import torch
    from torch import Tensor
    from transformers import PreTrainedModel

    from whet.rl.learner.adapters.bank import AdapterBank
    from whet.rl.learner.ranks.own_rows import StoredModel
    from whet.rl.learner.ranks.sharding import Sharding
    from whet.rl.learner.reference import Reference
    from whet.rl.learner.torch_learner import TorchLearner
    from whet.rl.learner.weights import PublishFormat, Weights

Dtype = Literal["float32", "bfloat16"]
Base = Literal["dense", "packed"]

_KEPT_ARRAY, _KEPT_HEAP, _GIVEN_BACK = 1 << 25, 1 << 29, 1 << 17
"""Bytes: of the largest array that is made in the process's own heap, and of what is kept of the heap when free; and
of the largest one that is made there where memory is to stay small."""


def make_learner(
    model: Path,
    *,
    optimizer: OptimizerConfig,
    lora: LoraConfig | None,
    max_steps: int,
    seed: int,
    publish_directory: Path,
    computation: LearnerConfig | None = None,
    publish_dtype: Dtype = "float32",
    publish_format: PublishFormat = "packed",
    threads: int | None = None,
    reference: str | None = None,
    reference_thread: bool = False,
) -> TorchLearner:
    """A learner over the `transformers` checkpoint in `model`.

    `computation` is how and where batches are computed; its float32 agrees with an fp32 engine to rounding. A reference
    is held in the dtype of the weights that are trained, or of the adapter's base.
    `publish_dtype` and `publish_format` are what engines are given. `threads` sets torch's threads for the whole
    process. `reference` is the policy that a loss with `kl_coef` holds to: "initial" (the weights as they are now; with
    LoRA the base), or another model or adapter by path or name; None where no loss has one. With `reference_thread` it
    is computed concurrently, in one more thread. Seeds torch's generator, which draws LoRA's first weights and dropout.
    Raises `ModelLoadError`, and `ConfigError` for a device that is not there or a reference of other tokens.
    """
    import torch

    from whet.rl.learner.torch_learner import TorchLearner

    if threads is not None:
        torch.set_num_threads(threads)
    computation = (computation or LearnerConfig()).settled(adapter=lora is not None)
    parts = learner_parts(
        model,
        lora=lora,
        seed=seed,
        computation=computation,
        publish_dtype=publish_dtype,
        publish_format=publish_format,
        reference=reference,
    )
    return TorchLearner(
        parts.weights,
        optimizer,
        computation,
        max_steps=max_steps,
        publish_directory=publish_directory,
        arch=parts.arch,
        reference=parts.reference,
        reference_thread=reference_thread,
    )


def make_bank(model: Path, *, computation: LearnerConfig | None = None, base: Base = "dense") -> AdapterBank:
    """Adapters over the frozen checkpoint in `model`, none yet; `base` as in `[lora]`.

    Raises `ModelLoadError`, also for a family that only transformers' own forward pass computes, and `ConfigError` for
    a device that is not there.
    """
    import torch

    from whet.rl.learner.adapters.bank import AdapterBank
    from whet.rl.learner.optim import put_in

    computation = (computation or LearnerConfig()).settled(adapter=True)
    device = choose_device(computation.device, "[learner] device")
    if not isinstance(describe(model), Architecture):
        raise ModelLoadError(f"{model}: several adapters at once need a family that whet's own forward pass computes.")
    dtype, lora, arch = getattr(torch, computation.base_dtype), LoraConfig(base=base), describe(model)
    if device == "cpu":
        _set_allocator(small=_stays_small(model, arch, lora, computation))
    made = _made(model, arch, lora, dtype, device, divided=False)
    put_in(made.model.requires_grad_(False), made.base, dtype)
    return AdapterBank(made.model.to(device), model, computation)


@dataclass(frozen=True, slots=True)
class LearnerParts:
    """What a learner is made of, on its device."""

    weights: Weights
    reference: Reference | None
    arch: Architecture | None  # None where transformers' own forward pass runs the model


def learner_parts(
    model: Path,
    *,
    lora: LoraConfig | None,
    seed: int,
    computation: LearnerConfig,
    publish_dtype: Dtype,
    publish_format: PublishFormat,
    reference: str | None,
    sharding: Sharding | None = None,
) -> LearnerParts:
    """See `make_learner`; with `sharding` a rank's part of each model alone is kept. `computation` is settled."""
    import torch

    from whet.rl.learner.reference import Reference, frozen, frozen_copy, other_model
    from whet.rl.learner.weights import FullWeights

    if sharding is not None and lora is not None and (reason := lora.in_one_process):
        raise ConfigError(f"{reason} is computed with in one process: set learner.ranks = 1.")
    held_in = getattr(torch, computation.weights_dtype if lora is None else computation.base_dtype)
    device = choose_device(computation.device, "[learner] device")
    expand_segments(device)
    arch = describe(model)
    if device == "cpu":
        _set_allocator(small=_stays_small(model, arch, lora, computation))
    torch.manual_seed(seed)
    load_device = "cpu" if sharding is not None else device  # ranks bring one layer after the other to their device
    made = _made(model, arch, lora, held_in, load_device, divided=sharding is not None)
    loaded, held, stored_reference = made.model, None, None
    adapter_base = None if reference is None or reference == INITIAL else _checked_reference(model, reference)
    if adapter_base is not None and sharding is not None:
        raise ConfigError(
            f"reference: {reference} is an adapter, which is computed with in one process: set "
            "learner.ranks = 1, or name a folder with the whole model (whet train export RUN --format merged)."
        )
    if reference is not None and reference != INITIAL and adapter_base is None:
        other = _made_reference(reference, load_device, divided=sharding is not None)
        rounded = held_in if other.stored is None else torch.float32  # of what is read later it is rounded then
        held, stored_reference = other_model(other.model, reference, like=loaded, dtype=rounded), other.stored
    # One forward pass for both: a reference of another family may be one that only transformers' own knows.
    own = isinstance(arch, Architecture) and (reference in (None, INITIAL) or _own_forward(adapter_base or reference))
    weights: Weights | None = None
    if lora is not None:
        from whet.rl.learner.lora import LoraWeights

        weights = adapted = LoraWeights(loaded, model, lora, held_in, sharding, made.base)
        loaded.to(load_device)
        if reference == INITIAL:
            held = Reference(adapted.base, replays=True, shared=True)
    elif reference == INITIAL and made.stored is not None:
        held, stored_reference = frozen(made.stored.model(), replays=True), made.stored
    elif reference == INITIAL:
        held = frozen_copy(loaded, held_in)
    if reference is not None and adapter_base is not None:
        shares = None if lora is None or adapter_base.resolve() != model.resolve() else (lora, loaded)
        held = other_model(
            _adapted_reference(reference, adapter_base, held_in, device, shares), reference, like=loaded, dtype=held_in
        )
    if not own and computation.activation_checkpointing:
        from whet.rl.learner.forward.forward_pass import recompute_layers

        recompute_layers(loaded)
    if sharding is not None:
        sharding.shard(loaded, held_in if lora is None else torch.float32, own=own, stored=made.stored)
        if held is not None and not held.shared:
            with held.lend() as lent:
                sharding.shard(lent, torch.float32, own=own, stored=stored_reference, held_in=held_in)
        held_in = torch.float32  # of the parts; what is gathered of them is rounded then
    if weights is None:
        weights = FullWeights(loaded, model, getattr(torch, publish_dtype), held_in, publish_format, sharding)
    return LearnerParts(weights, held, arch if own and isinstance(arch, Architecture) else None)


@dataclass(frozen=True, slots=True)
class _Made:
    """A model with its weights, or without where others take their places."""

    model: PreTrainedModel
    base: Mapping[str, Tensor] | None = None  # of an adapter's model, by name: put in place once the adapter is made
    stored: StoredModel | None = None  # where a rank reads its rows


def _made(
    model: Path,
    arch: Architecture | OtherFamily,
    lora: LoraConfig | None,
    dtype: torch.dtype,
    device: str,
    *,
    divided: bool,
) -> _Made:
    """What is read of a model in one process, or by one of the ranks that it is divided among."""
    own, packed = isinstance(arch, Architecture), lora is not None and lora.base != "dense"
    if own and divided:
        from whet.rl.learner.ranks.own_rows import StoredModel

        check_trainable(model)
        stored = StoredModel(model)
        return _Made(stored.model(), stored.without_memory(dtype), stored)
    if isinstance(arch, Architecture) and arch.experts is None and lora is not None and not packed:
        from whet.inference.weights.frozen_base import FrozenBase
        from whet.rl.learner.packed_base import load_dense

        check_trainable(model)
        base = FrozenBase.of(model, arch, dtype, device)
        return _Made(load_dense(model, base), base.tensors)
    if lora is not None and packed:
        return _Made(load_packed(model, lora.base, device).to(device))
    return _Made(load_model(model).to(device))


def _made_reference(name: str, device: str, *, divided: bool) -> _Made:
    import torch

    try:
        directory = resolve_model(name)
        return _made(directory, describe(directory), None, torch.float32, device, divided=divided)
    except ModelLoadError as error:
        raise ModelLoadError(f"reference: {error}") from None


def _adapted_reference(
    name: str, base: Path, dtype: torch.dtype, device: str, shares: tuple[LoraConfig, PreTrainedModel] | None
) -> PreTrainedModel:
    """`base` with the adapter `name`; with `shares` its parameters are those of the model that is trained, by `[lora]`
    on the same base."""
    from whet.rl.learner.lora import frozen_parameters, stored_adapter

    lora, trained = shares or (LoraConfig(), None)
    made = _made(base, describe(base), lora, dtype, device, divided=False)
    tensors = made.base if trained is None else frozen_parameters(trained)
    adapted = stored_adapter(made.model, base, resolve_model(name), "reference", dtype, tensors)
    return adapted.to(device)


def _checked_reference(model: Path, reference: str) -> Path | None:
    """The base of a reference that is an adapter; None of a whole model.

    Raises `ConfigError` where the tokens of one have other ids in the other, as far as both say theirs."""
    try:
        directory = resolve_model(reference)
        base = base_of_adapter(directory)
        _check_tokens(model, base or directory, reference)
        return base
    except ModelLoadError as error:
        raise ModelLoadError(f"reference: {error}") from None


def _check_tokens(model: Path, other: Path, reference: str) -> None:
    files = [directory / "tokenizer.json" for directory in (model, other)]
    if not all(file.is_file() for file in files):
        return
    ours, theirs = (json.loads(file.read_bytes()) for file in files)
    added = [{one["content"]: one["id"] for one in said.get("added_tokens") or ()} for said in (ours, theirs)]
    vocabularies = [(said.get("model") or {}).get("vocab") for said in (ours, theirs)]
    moved = [token for token, number in added[0].items() if added[1].get(token, number) != number]
    if vocabularies[0] != vocabularies[1] or moved:
        raise ConfigError(
            f"reference: {reference} has other tokens than the model that is trained. Probabilities of the "
            "same tokens are compared, so both need the same tokenizer."
        )


def _stays_small(
    model: Path, arch: Architecture | OtherFamily, lora: LoraConfig | None, computation: LearnerConfig
) -> bool:
    """Whether a learner's memory counts for more than a few percent of its time: an adapter's, but for a tiny base."""
    from whet.inference.weights.frozen_base import worth_sharing

    if lora is None:
        return False
    chosen = lora.base != "dense" or computation.base_dtype == "bfloat16"
    return chosen or (isinstance(arch, Architecture) and worth_sharing(model, arch))


def _set_allocator(*, small: bool) -> None:
    """Let the C library keep the memory of a step's arrays for the next step's, which are of the same sizes.

    By default glibc gives it back, and the kernel clears every page anew: 5 to 10 % of a tiny model's step. With
    `small` it gives back at once what arrays from 128 KiB on leave, which between smaller ones would lie unused: more
    than is in use, and growing (docs/design/log.md). Other C libraries are left as they are.
    """
    library = ctypes.CDLL(None)
    mallopt = getattr(library, "mallopt", None) if sys.platform == "linux" else None
    if mallopt is not None:
        trim_threshold, mmap_threshold = -1, -3  # M_TRIM_THRESHOLD, M_MMAP_THRESHOLD of malloc.h
        mallopt(mmap_threshold, _GIVEN_BACK if small else _KEPT_ARRAY)
        mallopt(trim_threshold, _KEPT_ARRAY if small else _KEPT_HEAP)
        library.malloc_trim(0)  # what reading a tokenizer has left


def load_packed(directory: Path, form: str, device: str) -> PreTrainedModel:
    """The model in `directory`, its matrices in the blocks of its GGUF file, or quantised."""
    from whet.rl.learner.packed_base import load_packed as load

    check_trainable(directory)
    return load(directory, form, device)


def check_trainable(directory: Path) -> None:
    """Raise `ModelLoadError` for an adapter, and for what neither engine nor decoder computes; loads nothing."""
    if base := base_of_adapter(directory):
        raise ModelLoadError(f"{directory} is an adapter; training begins with a whole model, such as its base {base}")
    describe(directory)


def _own_forward(model: str | Path | None) -> bool:
    """Whether whet's own forward pass knows a model."""
    return model is not None and isinstance(describe(resolve_model(str(model))), Architecture)


def load_model(directory: Path) -> PreTrainedModel:
    """The whole model in `directory`, in fp32 on the CPU. Raises `ModelLoadError`, for an adapter too."""
    import torch

    from whet.inference.plain.weights import load_transformers

    check_trainable(directory)
    model = load_transformers(directory, torch.float32)
    if isinstance(describe(directory), OtherFamily):
        from whet.inference.plain.decoder import probe

        probe(model.eval())
    return model
