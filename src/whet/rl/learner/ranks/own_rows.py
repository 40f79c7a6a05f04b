"""A checkpoint of which a rank reads its own rows, tensor by tensor: no rank ever holds a whole model.

The model is made without memory, divided on the meta device and filled with what `rows` reads of the mapped names: a
parameter of `transformers` is a tensor of the file, or a stack of experts', of which a rank has some.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import torch
from torch import Tensor, nn
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel

from whet.errors import ModelLoadError
from whet.inference.plain.weights import load_transformers
from whet.inference.weights.model_weights import checkpoint_files
from whet.inference.weights.safetensors_files import FileTensor, file_tensors

STACKED = {"gate_up_proj": ("gate_proj", "up_proj"), "down_proj": ("down_proj",)}
"""What one expert's part of a stack is made of."""


class StoredModel:
    """The parameters of a model of one of whet's own families, where they are stored."""

    def __init__(self, directory: Path) -> None:
        """Raises `ModelLoadError` for files that are missing or torn, and for tensors that are or that do not fit."""
        self._directory = directory
        self._stored = file_tensors(checkpoint_files(directory))
        config = AutoConfig.from_pretrained(directory, local_files_only=True, trust_remote_code=False)
        with torch.device("meta"):
            self._shapes = dict(AutoModelForCausalLM.from_config(config).named_parameters())
        for name, parameter in self._shapes.items():
            for parts in self._parts(name, slice(0, len(parameter))):
                shape = (sum(part.shape[0] for part in parts), *parts[0].shape[1:])
                if shape != (parameter.shape if self._is_one(name) else parameter.shape[1:]):
                    raise ModelLoadError(
                        f"{directory}: {name!r} has shape {shape}; the model's config.json asks for "
                        f"{tuple(parameter.shape)}"
                    )

    def model(self) -> PreTrainedModel:
        """The model without its weights: parameters that take no memory, in float32."""
        return load_transformers(self._directory, torch.float32, self._shapes)

    def without_memory(self, dtype: torch.dtype) -> Mapping[str, Tensor]:
        """Tensors of the parameters' shapes, matrices in `dtype` and vectors in float32."""
        dtypes = {name: dtype if shape.dim() > 1 else torch.float32 for name, shape in self._shapes.items()}
        return {name: torch.empty((), dtype=dtypes[name]).expand(shape.shape) for name, shape in self._shapes.items()}

    def rows(self, name: str, rows: slice) -> Tensor:
        """Some rows of a parameter, or experts of a stack of them, as the file has them."""
        if self._is_one(name):
            return self._stored[name].read(rows)
        experts = [torch.cat([part.read() for part in parts]) for parts in self._parts(name, rows)]
        return torch.stack(experts) if experts else torch.empty(0, *self._shapes[name].shape[1:])

    def _is_one(self, name: str) -> bool:
        return name in self._stored or ".experts." not in name

    def _parts(self, name: str, rows: slice) -> list[list[FileTensor]]:
        """What is joined to a parameter, or for each of some experts what is joined to its part of one."""
        if self._is_one(name):
            return [[self._tensor(name)]]
        stem, _, kind = name.rpartition(".")
        return [
            [self._tensor(f"{stem}.{expert}.{part}.weight") for part in STACKED[kind]]
            for expert in range(rows.start, rows.stop)
        ]

    def _tensor(self, name: str) -> FileTensor:
        if name not in self._stored:
            raise ModelLoadError(f"{self._directory}: the weights lack {name!r}; fetch them")
        return self._stored[name]


def base_name(name: str) -> str:
    """The name of a parameter without what an adapter around its layer adds."""
    return name.replace(".base_layer.", ".")


def leave_memory(model: nn.Module, held_in: torch.dtype | None) -> None:
    """Put parameters on the meta device, all but those of an adapter; those that are one stay one. Matrices are to be
    of dtype `held_in`, where it is given."""
    replaced: dict[int, nn.Parameter] = {}
    for name, module, kind in _owners(model):
        parameter = getattr(module, kind)
        if ".lora_" not in name:
            dtype = held_in if held_in is not None and parameter.dim() > 1 else parameter.dtype
            empty = torch.empty(parameter.shape, dtype=dtype, device="meta")
            meta = nn.Parameter(empty, requires_grad=parameter.requires_grad)
            setattr(module, kind, replaced.setdefault(id(parameter), meta))


def fill(model: nn.Module, make: Callable[[str, nn.Parameter], Tensor]) -> None:
    """Put what `make` gives for each parameter of the meta device, by its name, in its place."""
    replaced: dict[int, nn.Parameter] = {}
    for name, module, kind in _owners(model):
        parameter = getattr(module, kind)
        if parameter.is_meta:
            if id(parameter) not in replaced:
                made = make(base_name(name), parameter)
                replaced[id(parameter)] = nn.Parameter(made, requires_grad=parameter.requires_grad)
            setattr(module, kind, replaced[id(parameter)])


def _owners(model: nn.Module) -> list[tuple[str, nn.Module, str]]:
    """Each parameter of each module: its name, the module and its name there."""
    return [
        (f"{at}.{kind}", module, kind)
        for at, module in model.named_modules()
        for kind, parameter in module.named_parameters(recurse=False)
        if parameter is not None
    ]
