"""Weights of a transformers model: read from its checkpoint, replaced by updates, with adapters.

They are named as the parameters of the loaded model are. New weights take the place of the old ones by reference, so
those that a learner of this machine hands over are mapped and used in place, as whet's own forward pass does it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from safetensors import SafetensorError
from torch import Tensor, nn
from transformers import AutoConfig, AutoModelForCausalLM, GenerationConfig, PreTrainedModel
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING
from transformers.pytorch_utils import Conv1D
from transformers.utils import GENERATION_CONFIG_NAME
from transformers.utils import logging as transformers_logging

from whet.errors import ModelLoadError
from whet.inference.weights.adapters import RANKS_OF, Factors, LowRank, PackedAdapter, read_adapter
from whet.inference.weights.gguf_tensors import complete
from whet.inference.weights.safetensors_files import NamedWeights


def load_transformers(
    directory: Path, dtype: torch.dtype, shapes: Mapping[str, Tensor] | None = None
) -> PreTrainedModel:
    """The causal language model in a directory, on the CPU. Raises `ModelLoadError`, for weights that are missing too.

    Code that comes with the checkpoint is never run. With `shapes`, tensors under the names of the checkpoint, no
    weight is read: parameters have these shapes and no memory, and the caller puts others in their place.
    """
    options: dict[str, Any] = {"local_files_only": True, "trust_remote_code": False}
    if shapes is None:
        complete(directory)
    bars = transformers_logging.is_progress_bar_enabled()
    transformers_logging.disable_progress_bar()
    loaded: Any
    try:
        if shapes is None:
            loaded = AutoModelForCausalLM.from_pretrained(directory, dtype=dtype, output_loading_info=True, **options)
        else:
            config = AutoConfig.from_pretrained(directory, **options)
            empty = {name: torch.empty((), dtype=dtype).expand(tensor.shape) for name, tensor in shapes.items()}
            loaded = MODEL_FOR_CAUSAL_LM_MAPPING[type(config)].from_pretrained(
                None, config=config, state_dict=empty, dtype=dtype, output_loading_info=True
            )
            loaded[0].name_or_path = loaded[0].config.name_or_path = str(directory)
            if (directory / GENERATION_CONFIG_NAME).is_file():
                loaded[0].generation_config = GenerationConfig.from_pretrained(directory, local_files_only=True)
    except (OSError, ValueError, RuntimeError, SafetensorError) as error:
        raise ModelLoadError(f"{directory}: transformers cannot load this model: {error}") from None
    finally:
        if bars:
            transformers_logging.enable_progress_bar()
    model: PreTrainedModel = loaded[0]
    missing = sorted(set(loaded[1]["missing_keys"]) & {name for name, _ in model.named_parameters()})
    if missing:
        raise ModelLoadError(f"{directory}: the weights lack {missing[0]!r}, and {len(missing) - 1} more; fetch them")
    return model


def projections(model: nn.Module) -> dict[str, nn.Module]:
    """By name, the linear layers inside the decoder's layers: what adapters are for."""
    linear = {name: part for name, part in model.named_modules() if isinstance(part, nn.Linear | Conv1D)}
    return {name: part for name, part in linear.items() if in_layers(name)}


def in_layers(name: str) -> bool:
    """Whether a module or parameter of this name belongs to one of a model's layers: those are numbered."""
    return layer_of(name) is not None


@cache  # a mixture of experts has tens of thousands of names, which each publication looks up
def layer_of(name: str) -> str | None:
    """The layer that a module or parameter of this name belongs to; None for what belongs to none."""
    parts = name.split(".")
    number = next((at for at, part in enumerate(parts) if part.isdecimal()), None)
    return None if number is None else ".".join(parts[: number + 1])


@dataclass(frozen=True, slots=True)
class PlainWeights:
    """The parameters of a model by name, in the dtype and on the device they are computed with."""

    named: dict[str, Tensor]

    @classmethod
    def of(cls, tensors: Mapping[str, Tensor]) -> PlainWeights:
        return cls(dict(tensors))

    @classmethod
    def of_model(cls, model: nn.Module) -> PlainWeights:
        return cls({name: parameter.data for name, parameter in model.named_parameters()})

    def tensors(self) -> dict[str, Tensor]:
        return dict(self.named)

    def put_into(self, model: nn.Module) -> None:
        for name, parameter in model.named_parameters():
            parameter.data = self.named[name]


def merge_into(model: PreTrainedModel, directory: Path) -> None:
    """Add the adapter in a directory to the model itself. Raises `ModelLoadError`."""
    form = PlainForm(model, dtype=model.dtype, device=model.device)
    form.with_adapter(PlainWeights.of_model(model).tensors(), directory).put_into(model)


class PlainForm:
    """What named weights and adapters become for a model. See `weight_loader.WeightForm`."""

    def __init__(self, model: PreTrainedModel, *, dtype: torch.dtype, device: torch.device) -> None:
        self._dtype, self._device = dtype, device
        self._kind = model.config.model_type
        self._shapes = {name: tuple(parameter.shape) for name, parameter in model.named_parameters()}
        self._also = set(model.state_dict()) - set(self._shapes)  # tied weights under a second name, and buffers
        self._transposed = {name: isinstance(part, Conv1D) for name, part in projections(model).items()}

    def pack(self, named: NamedWeights) -> PlainWeights:
        """Raises `ModelLoadError` naming the first tensor that is missing, unknown or of another shape."""
        for name, shape in self._shapes.items():
            if name not in named:
                raise ModelLoadError(f"the weights lack {name!r}, which this {self._kind} model needs")
            if (actual := tuple(named[name].shape)) != shape:
                raise ModelLoadError(f"{name!r} has shape {actual}; the model's config.json asks for {shape}")
        if unknown := named.keys() - self._shapes.keys() - self._also:
            raise ModelLoadError(f"the weights hold {min(unknown)!r}, which this {self._kind} model does not have")
        return PlainWeights({name: named[name].to(self._device, self._dtype) for name in self._shapes})

    def with_adapter(self, named: NamedWeights, directory: Path) -> PlainWeights:
        """The named weights with an adapter added; the given ones stay as they are."""
        merged = dict(named)
        for module, low in self._adapter(directory).items():
            base = named[f"{module}.weight"].to(torch.float32)
            delta = (low.scaling * (low.up @ low.down)).to(base.device)
            merged[f"{module}.weight"] = base + (delta.t() if self._transposed[module] else delta)
        return self.pack(merged)

    def adapter(self, directory: Path, named: NamedWeights) -> PackedAdapter:
        """An adapter to be served with the base: one layer, whose factors are in the order of the projections."""
        adapter = self._adapter(directory)
        return PackedAdapter([tuple(self._factors(adapter.get(module)) for module in self._transposed)])

    def _factors(self, low: LowRank | None) -> Factors | None:
        if low is None:
            return None
        more = -len(low.down) % RANKS_OF
        down, up = F.pad(low.down, (0, 0, 0, more)).t().contiguous(), F.pad(low.up.t() * low.scaling, (0, 0, 0, more))
        return Factors(down.to(self._device, self._dtype), up.contiguous().to(self._device, self._dtype))

    def _adapter(self, directory: Path) -> dict[str, LowRank]:
        adapter = read_adapter(directory, allowed=("fan_in_fan_out",))  # which the layers themselves show
        for module, low in adapter.items():
            if module not in self._transposed:
                raise ModelLoadError(f"{directory}: this {self._kind} model has no linear layer {module!r}")
            inputs_and_outputs = (low.down.shape[1], low.up.shape[0])
            shape = self._shapes[f"{module}.weight"]
            if inputs_and_outputs != (shape if self._transposed[module] else shape[::-1]):
                raise ModelLoadError(f"{directory}: {module!r} was trained for a layer of another shape than {shape}")
        return adapter
