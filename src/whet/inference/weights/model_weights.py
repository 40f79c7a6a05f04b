"""Weights of the embedded engine: read from safetensors, fused for fast decoding, replaced by updates.

Two forms exist. *Named* weights are tensors under the names a `transformers` checkpoint uses; they are what updates
carry and what LoRA adapters are merged onto (`adapters.py`). *Packed* weights are what `decoder.py` computes with:
query, key and value in one matrix, gate and up in another, every matrix stored input-major. What is constant is folded
in: each RMS norm's gain and the square root of its size (so that `decoder.py` divides by the root of a sum, not of a
mean) go into the matrix that reads it, and the attention scale goes into the queries. Nothing here knows of requests or
caches.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, TypeAlias

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from whet.errors import ModelLoadError
from whet.inference.architecture import Architecture

NamedWeights: TypeAlias = dict[str, Tensor]
_DTYPES = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "F8_E4M3": torch.float8_e4m3fn,
    "F8_E5M2": torch.float8_e5m2,
    "I64": torch.int64,
    "I32": torch.int32,
    "I16": torch.int16,
    "I8": torch.int8,
    "U8": torch.uint8,
    "BOOL": torch.bool,
}
"""By their names in a safetensors file."""


@dataclass(slots=True)
class LayerWeights:
    """One decoder layer; H hidden, I intermediate, Q = query heads x D, K = key heads x D."""

    qkv: Tensor  # [H, Q + 2K], input norm folded in, and the attention scale unless qk_gain has it
    qkv_bias: Tensor | None
    qk_gain: Tensor | None  # [heads + kv_heads, D], float32; None without qk-norm
    output: Tensor  # [Q, H]
    output_bias: Tensor | None
    gate_up: Tensor  # [H, 2I], post-attention norm folded in; [E, H, 2I] of E experts
    gate_up_bias: Tensor | None
    down: Tensor  # [I, H]; [E, I, H] of E experts
    down_bias: Tensor | None
    router: Tensor | None = None  # [H, E], post-attention norm folded in; None in a dense layer


@dataclass(slots=True)
class PackedWeights:
    embedding: Tensor  # [V, H]
    layers: list[LayerWeights]
    final_gain: Tensor  # [H], float32, times sqrt(H)
    unembedding: Tensor  # [H, V]; a view of the embedding when tied

    @classmethod
    def of(cls, tensors: Mapping[str, Tensor]) -> PackedWeights:
        """From the tensors that `packed_tensors` gives."""
        embedding, layers = tensors["embedding"], list[LayerWeights]()
        while f"{(at := f'layers.{len(layers)}.')}qkv" in tensors:
            held: dict[str, Any] = {field.name: tensors.get(at + field.name) for field in fields(LayerWeights)}
            layers.append(LayerWeights(**held))
        return cls(embedding, layers, tensors["final_gain"], tensors.get("unembedding", embedding.t()))

    def tensors(self) -> dict[str, Tensor]:
        """By the names that `packed_tensors` gives them, the unembedding of a tied model among them."""
        named = {
            f"layers.{i}.{field.name}": getattr(layer, field.name)
            for i, layer in enumerate(self.layers)
            for field in fields(layer)
        }
        named |= {"embedding": self.embedding, "final_gain": self.final_gain, "unembedding": self.unembedding}
        return {name: tensor for name, tensor in named.items() if tensor is not None}


def read_checkpoint(directory: Path) -> NamedWeights:
    """All tensors of a checkpoint directory, sharded or not. Raises `ModelLoadError` when files are missing or torn."""
    index = directory / "model.safetensors.index.json"
    single = directory / "model.safetensors"
    if index.is_file():
        try:
            shards = sorted(set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values()))
        except (json.JSONDecodeError, KeyError, TypeError) as error:
            raise ModelLoadError(f"{index} is torn ({error}); fetch or export the model again") from None
        return read_safetensors(directory / shard for shard in shards)
    if single.is_file():
        return read_safetensors([single])
    raise ModelLoadError(f"{directory} holds no weights: neither model.safetensors nor model.safetensors.index.json")


def read_safetensors(paths: Iterable[Path]) -> NamedWeights:
    named: NamedWeights = {}
    for path in paths:
        try:
            named.update(_tensors(path))
        except FileNotFoundError:
            raise ModelLoadError(f"{path} is missing; fetch or export the model again") from None
        except SafetensorError as error:
            raise ModelLoadError(f"{path} is torn or not a safetensors file ({error})") from None
    return named


def _tensors(path: Path) -> NamedWeights:
    """The tensors of a file, mapped into memory. The library checks the file and gives no tensor away: each one that
    its 0.8.0 does leaves two numbers behind until the process ends, which over a run's many updates is megabytes.
    """
    with safe_open(path, framework="pt"):
        pass
    with path.open("rb") as file:
        start = 8 + int.from_bytes(file.read(8), "little")
        header = json.loads(file.read(start - 8))
    header.pop("__metadata__", None)
    whole = torch.from_file(str(path), shared=False, size=path.stat().st_size, dtype=torch.uint8)
    named = {}
    for name, entry in header.items():
        if (dtype := _DTYPES.get(entry["dtype"])) is None:
            raise ModelLoadError(f"{path}: {name!r} holds numbers of type {entry['dtype']}, which no engine here reads")
        begin, end = entry["data_offsets"]
        data = whole[start + begin : start + end]
        if (start + begin) % dtype.itemsize:
            data = data.clone()  # only a file that another library wrote begins its data at any byte
        named[name] = data.view(dtype).view(entry["shape"])
    return named


def pack(named: Mapping[str, Tensor], arch: Architecture, *, dtype: torch.dtype, device: torch.device) -> PackedWeights:
    """Fuse named weights. Raises `ModelLoadError` naming the first tensor that is missing or of another shape.

    Folding happens in float32 and is rounded once, so float32 results differ from a plain forward only by the order
    of additions.
    """
    return PackedWeights.of(dict(packed_tensors(named, arch, dtype=dtype, device=device)))


def packed_tensors(
    named: Mapping[str, Tensor], arch: Architecture, *, dtype: torch.dtype, device: torch.device
) -> Iterator[tuple[str, Tensor]]:
    """What `pack` makes of named weights, one layer after the other, for a reader that need not hold them all.

    The names are those of the fields of `PackedWeights`, with `layers.<number>.` before those of a layer. What a model
    does not have is left out, and so is the unembedding of a tied one.
    """

    def take(name: str, *shape: int) -> Tensor:
        tensor = named.get(name)
        if tensor is None:
            raise ModelLoadError(f"the weights lack {name!r}, which a {arch.model_type} model needs")
        if tuple(tensor.shape) != shape:
            raise ModelLoadError(f"{name!r} has shape {tuple(tensor.shape)}; the model's config.json asks for {shape}")
        return tensor.to(device=device, dtype=torch.float32)

    def matrix(weight: Tensor) -> Tensor:
        return weight.t().contiguous().to(dtype)

    def gated(at: str, size: int, gain: Tensor) -> tuple[Tensor, Tensor]:
        gate_up = torch.cat([take(f"{at}{half}.weight", size, hidden) for half in ("gate_proj", "up_proj")])
        return matrix(gate_up * gain), matrix(take(f"{at}down_proj.weight", hidden, size))

    hidden, inner, dim = arch.hidden_size, arch.intermediate_size, arch.head_dim
    queries, keys = arch.num_heads * dim, arch.num_kv_heads * dim
    scale = dim**-0.5
    query_scale = torch.ones(queries + 2 * keys, device=device)
    query_scale[:queries] = 1.0 if arch.qk_norm else scale
    for i in range(arch.num_layers):
        at, mlp = f"model.layers.{i}.self_attn.", f"model.layers.{i}.mlp."
        input_gain = take(f"model.layers.{i}.input_layernorm.weight", hidden) * hidden**0.5
        post_gain = take(f"model.layers.{i}.post_attention_layernorm.weight", hidden) * hidden**0.5
        parts = (("q_proj", queries), ("k_proj", keys), ("v_proj", keys))
        qkv = torch.cat([take(f"{at}{part}.weight", size, hidden) for part, size in parts])
        qkv_bias = torch.cat([take(f"{at}{part}.bias", size) for part, size in parts]) if arch.qkv_bias else None
        qk_gain = None
        if arch.qk_norm:
            gains = [
                (take(f"{at}q_norm.weight", dim), arch.num_heads),
                (take(f"{at}k_norm.weight", dim), arch.num_kv_heads),
            ]
            qk_gain = torch.cat([gain.expand(heads, dim) for gain, heads in gains]) * dim**0.5
            qk_gain[: arch.num_heads] *= scale
        router: Tensor | None = None
        if (experts := arch.experts) is not None and i in experts.layers:
            router = matrix(take(f"{mlp}gate.weight", experts.count, hidden) * post_gain)
            each = [
                gated(f"{mlp}experts.{expert}.", experts.intermediate_size, post_gain)
                for expert in range(experts.count)
            ]
            gate_up, down = (torch.stack(matrices) for matrices in zip(*each, strict=True))
        else:
            gate_up, down = gated(mlp, inner, post_gain)
        biases = ("gate_proj.bias", "up_proj.bias")
        gate_up_bias = torch.cat([take(f"{mlp}{bias}", inner) for bias in biases]) if arch.mlp_bias else None
        layer = {
            "qkv": matrix(qkv * input_gain * query_scale.unsqueeze(1)),
            "qkv_bias": None if qkv_bias is None else (qkv_bias * query_scale).to(dtype),
            "qk_gain": qk_gain,
            "output": matrix(take(f"{at}o_proj.weight", hidden, queries)),
            "output_bias": take(f"{at}o_proj.bias", hidden).to(dtype) if arch.output_bias else None,
            "gate_up": gate_up,
            "gate_up_bias": None if gate_up_bias is None else gate_up_bias.to(dtype),
            "down": down,
            "down_bias": take(f"{mlp}down_proj.bias", hidden).to(dtype) if arch.mlp_bias else None,
            "router": router,
        }
        yield from ((f"layers.{i}.{name}", tensor) for name, tensor in layer.items() if tensor is not None)
    yield "embedding", take("model.embed_tokens.weight", arch.vocab_size, hidden).to(dtype).contiguous()
    yield "final_gain", take("model.norm.weight", hidden) * hidden**0.5
    if not arch.tied_embeddings and "lm_head.weight" in named:
        yield "unembedding", matrix(take("lm_head.weight", arch.vocab_size, hidden))
