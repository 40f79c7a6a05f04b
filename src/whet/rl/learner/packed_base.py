"""A model whose weights stay as they are while an adapter is trained on them: those of the engine of this process.

Of a dense base the parameters of a `transformers` model are the tensors of a `FrozenBase`. Of one in the blocks of a
GGUF file, or quantised, its modules are those of `transformers`, under the same names, with the linear layers and the
embedding replaced by frozen ones; norms and biases are float32. Nothing is dequantised but what is multiplied with at a
time, and files are mapped: a second model of the process, as the engine's, shares their memory.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel

from whet.errors import ModelLoadError
from whet.inference.plain.family import describe
from whet.inference.plain.weights import load_transformers
from whet.inference.weights.block_matrix import BlockMatrix, FrozenTensors
from whet.inference.weights.frozen_base import FrozenBase
from whet.inference.weights.quantised_base import frozen_tensors


class FrozenLinear(nn.Linear):
    """x @ W.T + b for a W that stays as it is."""

    def __init__(self, matrix: BlockMatrix, bias: Tensor | None) -> None:
        nn.Module.__init__(self)
        self.out_features, self.in_features = matrix.shape
        _hold(self, matrix)
        self.register_parameter("bias", None if bias is None else nn.Parameter(bias, requires_grad=False))

    @property
    def matrix(self) -> BlockMatrix:
        return _held(self)

    def forward(self, x: Tensor) -> Tensor:
        y = self.matrix.product(x)
        return y if self.bias is None else y + self.bias.to(y.dtype)


class FrozenEmbedding(nn.Module):
    """Rows of a matrix that stays as it is, in float32."""

    def __init__(self, matrix: BlockMatrix) -> None:
        super().__init__()
        self.num_embeddings, self.embedding_dim = matrix.shape
        _hold(self, matrix)

    @property
    def matrix(self) -> BlockMatrix:
        return _held(self)

    def forward(self, ids: Tensor) -> Tensor:
        return self.matrix.select(ids)


def _hold(module: Any, matrix: BlockMatrix) -> None:
    """Its memory moves with the module. `weight` are bytes, by which PEFT finds the device of a linear layer."""
    first, *rest = matrix.stored
    module.weight = nn.Parameter(first, requires_grad=False)
    module.register_buffer("scales", rest[0] if rest else None, persistent=False)
    module._kind = matrix.to("meta")


def _held(module: Any) -> BlockMatrix:
    kind: BlockMatrix = module._kind
    return kind.like(module.weight) if module.scales is None else kind.like(module.weight, module.scales)


def described(model: nn.Module) -> dict[str, Tensor]:
    """A model's parameters by name; a frozen matrix as what it stands for, in float32 on the meta device."""
    return {name: _described(model, name, parameter) for name, parameter in model.named_parameters()}


def _described(model: nn.Module, name: str, parameter: Tensor) -> Tensor:
    if parameter.is_floating_point():
        return parameter
    matrix: BlockMatrix = getattr(model.get_submodule(name.rpartition(".")[0]), "matrix")  # noqa: B009
    return torch.empty(matrix.shape, device="meta")


def dense(model: nn.Module, name: str) -> Tensor:
    """A parameter by its name, dequantised where it is not held in numbers."""
    module = model.get_submodule(name.rpartition(".")[0])
    if name.endswith(".weight") and isinstance(module, FrozenLinear | FrozenEmbedding):
        return module.matrix.dense()
    return model.get_parameter(name).detach()


def load_dense(directory: Path, base: FrozenBase) -> PreTrainedModel:
    """The model in `directory`, which is to get the tensors of `base`; its own have no memory. Raises
    `ModelLoadError`."""
    model: Any = load_transformers(directory, torch.float32, base.tensors)
    model.frozen_base = base  # an engine that is made later looks for it
    return model


def load_packed(directory: Path, form: str, device: str) -> PreTrainedModel:
    """The model in `directory` with its matrices in `form` (`frozen_tensors`). Raises `ModelLoadError`."""
    tensors = frozen_tensors(directory, describe(directory), form, device)
    return packed_model(AutoConfig.from_pretrained(directory), tensors)


def packed_model(config: Any, tensors: FrozenTensors) -> PreTrainedModel:
    with torch.device("meta"):
        model: Any = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    tied = model.lm_head.weight is model.model.embed_tokens.weight
    for name, module in list(model.named_modules()):
        owner, _, attribute = name.rpartition(".")
        if isinstance(module, nn.Linear | nn.Embedding):
            under = "model.embed_tokens" if tied and name == "lm_head" else name
            matrix = _tensor(tensors, f"{under}.weight", module.weight.shape)
            if isinstance(matrix, BlockMatrix):
                setattr(model.get_submodule(owner), attribute, _frozen(module, matrix, tensors.get(f"{name}.bias")))
    for name, parameter in list(model.named_parameters()):
        if parameter.is_meta:
            owner, _, attribute = name.rpartition(".")
            dense = nn.Parameter(_tensor(tensors, name, parameter.shape), requires_grad=False)
            setattr(model.get_submodule(owner), attribute, dense)
    if tied:
        model.lm_head.weight = model.model.embed_tokens.weight
    model.frozen_base = tensors  # an engine that is made later looks for it
    rotary = model.model.rotary_emb  # its buffers are computed, not read
    model.model.rotary_emb = type(rotary)(config)
    return model.eval()


def _frozen(module: nn.Module, matrix: BlockMatrix, bias: Any) -> nn.Module:
    return FrozenEmbedding(matrix) if isinstance(module, nn.Embedding) else FrozenLinear(matrix, bias)


def _tensor(tensors: FrozenTensors, name: str, shape: torch.Size) -> Any:
    if name not in tensors:
        raise ModelLoadError(f"the weights lack {name!r}, which its model needs")
    tensor = tensors[name]
    if tuple(tensor.shape) != tuple(shape):
        raise ModelLoadError(f"{name!r} has shape {tuple(tensor.shape)} in its file; the model needs {tuple(shape)}")
    return tensor
