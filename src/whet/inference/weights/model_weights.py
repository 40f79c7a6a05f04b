"""Weights of the embedded engine: read from safetensors, fused for fast decoding, replaced by updates.

Two forms exist. *Named* weights are tensors under the names a `transformers` checkpoint uses; they are what updates
carry and what LoRA adapters are merged onto (`adapters.py`). *Packed* weights are what `decoder.py` computes with:
query, key and value in one matrix, gate and up in another, every matrix stored input-major. What is
constant is folded in: the gain of an RMS norm and the square root of its size (so that `decoder.py` divides by the root
of a sum, not of a mean) go into the matrix that reads it, and the attention scale goes into the queries. Nothing here
knows of requests or caches.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from whet.errors import ModelLoadError
from whet.inference.architecture import Architecture

# Which layers of a checkpoint make up the four matrices of a packed decoder layer, and in which order.
#
# Heads are packed so that the two dimensions of a rotated pair are half a head apart, whichever way the family pairs
# them: queries and keys in the same order have the same products. Where only a part of a head is rotated, the other
# dimensions are pairs that never turn.

QKV, OUTPUT, GATE_UP, DOWN = range(4)
"""The four matrices of a decoder layer."""


class FusedPart(NamedTuple):
    """A linear layer: its name within the decoder layer, and its outputs."""

    name: str
    size: int


class Fusion(NamedTuple):
    """Linear layers that read the same, one after the other."""

    source: int  # inputs
    norm: str | None  # whose gain is folded in
    parts: tuple[FusedPart, ...]
    scale: Tensor | None = None  # of each output
    order: Tensor | None = None  # outputs as they are packed

    def arranged(self, outputs: Tensor) -> Tensor:
        """Scaled and in the packed order; the first dimension of `outputs` is that of the parts, joined."""
        if self.scale is not None:
            outputs = outputs * self.scale.to(outputs.device).view(-1, *[1] * (outputs.dim() - 1))
        return outputs if self.order is None else outputs[self.order.to(outputs.device)]


def fusions(arch: Architecture, layer: int) -> tuple[Fusion, ...]:
    """In the order of QKV, OUTPUT, GATE_UP and DOWN; nothing of experts."""
    inner = arch.intermediate_size
    feed_forward = gate_up(arch, "mlp.", inner), down(arch, "mlp.", inner)
    if arch.experts is not None and layer in arch.experts.layers:
        feed_forward = feed_forward[0]._replace(parts=()), feed_forward[1]._replace(parts=())
    return attention(arch), output_projection(arch), *feed_forward


def attention(arch: Architecture) -> Fusion:
    """Queries, keys and values. The scale of scores goes into the queries, or with a query norm into its gain."""
    queries, keys = arch.num_heads * arch.head_dim, arch.num_kv_heads * arch.head_dim
    parts: tuple[FusedPart, ...] = (FusedPart("self_attn.qkv_proj", queries + 2 * keys),)
    if not arch.fused_qkv:
        parts = (
            FusedPart("self_attn.q_proj", queries),
            FusedPart("self_attn.k_proj", keys),
            FusedPart("self_attn.v_proj", keys),
        )
    scale = None
    if arch.qk_norm is None:
        scale = torch.ones(queries + 2 * keys)
        scale[:queries] = arch.attention_scale
    order, within = None, head_order(arch)
    if within is not None:
        rotated = arch.num_heads + arch.num_kv_heads
        heads = torch.arange(0, rotated * arch.head_dim, arch.head_dim)
        order = torch.cat([(heads[:, None] + within).flatten(), torch.arange(queries + keys, queries + 2 * keys)])
    return Fusion(arch.hidden_size, arch.norms.attention_in, parts, scale, order)


def output_projection(arch: Architecture) -> Fusion:
    return Fusion(arch.num_heads * arch.head_dim, None, (FusedPart("self_attn.o_proj", arch.hidden_size),))


def gate_up(arch: Architecture, at: str, size: int) -> Fusion:
    """Gates, then ups."""
    parts: tuple[FusedPart, ...] = (FusedPart(f"{at}gate_up_proj", 2 * size),)
    if not arch.fused_gate_up:
        parts = (FusedPart(f"{at}gate_proj", size), FusedPart(f"{at}up_proj", size))
    return Fusion(arch.hidden_size, arch.norms.feed_in, parts)


def down(arch: Architecture, at: str, size: int) -> Fusion:
    return Fusion(size, None, (FusedPart(f"{at}down_proj", arch.hidden_size),))


def head_order(arch: Architecture) -> Tensor | None:
    """The dimensions of a head as they are packed; None where that is as they are."""
    dim = arch.head_dim
    rotated = next((rope.dim for rope in arch.ropes if rope is not None), dim)
    pairs = torch.arange(rotated).view(-1, 2) if arch.interleaved else torch.arange(rotated).view(2, -1).t()
    rest = torch.arange(rotated, dim).view(2, -1).t()
    order = torch.cat([pairs, rest]).t().flatten()
    return None if torch.equal(order, torch.arange(dim)) else order


NamedWeights: TypeAlias = dict[str, Tensor]
SAFETENSORS_DTYPES = {
    "I64": torch.int64,
    "F64": torch.float64,
    "F32": torch.float32,
    "I32": torch.int32,
    "BF16": torch.bfloat16,
    "F16": torch.float16,
    "I16": torch.int16,
    "F8_E4M3": torch.float8_e4m3fn,
    "F8_E5M2": torch.float8_e5m2,
    "I8": torch.int8,
    "U8": torch.uint8,
    "BOOL": torch.bool,
}
"""By their names in a safetensors file, in the order in which files have them."""


@dataclass(slots=True)
class LayerWeights:
    """One decoder layer; H hidden, I intermediate, Q = query heads x D, K = key heads x D."""

    qkv: Tensor  # [H, Q + 2K], the norm before it folded in, and the attention scale unless qk_gain has it
    qkv_bias: Tensor | None
    qk_gain: Tensor | None  # [heads + kv_heads, D], float32; None without qk-norm
    output: Tensor  # [Q, H]
    output_bias: Tensor | None
    gate_up: Tensor  # [H, 2I], the norm before it folded in; [E, H, 2I] of E experts
    gate_up_bias: Tensor | None
    down: Tensor  # [I, H]; [E, I, H] of E experts
    down_bias: Tensor | None
    router: Tensor | None = None  # [H, E], the norm before it folded in; None in a dense layer
    output_gain: Tensor | None = None  # [H], float32, times sqrt(H), of a norm behind attention
    down_gain: Tensor | None = None  # [H], float32, times sqrt(H), of a norm behind the feed-forward part


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
        except FileNotFoundError:  # safetensors raises it for a file that may not be read, too
            if path.exists():
                raise ModelLoadError(
                    f"{path} may not be read by this user; its owner can allow that: chmod a+r"
                ) from None
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
        if (dtype := SAFETENSORS_DTYPES.get(entry["dtype"])) is None:
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
    packing = _Packing(named, arch, dtype, device)
    hidden = arch.hidden_size
    for i in range(arch.num_layers):
        layer = packing.attention(f"model.layers.{i}.") | packing.feed_forward(f"model.layers.{i}.", i)
        yield from ((f"layers.{i}.{name}", tensor) for name, tensor in layer.items() if tensor is not None)
    yield "embedding", packing.take("model.embed_tokens.weight", arch.vocab_size, hidden).to(dtype).contiguous()
    yield "final_gain", packing.gain("model.norm", hidden)
    if not arch.tied_embeddings and "lm_head.weight" in named:
        yield "unembedding", packing.matrix(packing.take("lm_head.weight", arch.vocab_size, hidden))


@dataclass(frozen=True, slots=True)
class _Packing:
    """Named weights on their way into packed ones."""

    named: Mapping[str, Tensor]
    arch: Architecture
    dtype: torch.dtype
    device: torch.device

    def take(self, name: str, *shape: int) -> Tensor:
        tensor = self.named.get(name)
        if tensor is None:
            raise ModelLoadError(f"the weights lack {name!r}, which a {self.arch.model_type} model needs")
        if tuple(tensor.shape) != shape:
            raise ModelLoadError(f"{name!r} has shape {tuple(tensor.shape)}; the model's config.json asks for {shape}")
        return tensor.to(device=self.device, dtype=torch.float32)

    def matrix(self, weight: Tensor) -> Tensor:
        return weight.t().contiguous().to(self.dtype)

    def gain(self, norm: str, size: int) -> Tensor:
        """What a norm multiplies with, and the root of its size."""
        return gain(self.take(f"{norm}.weight", size), self.arch)

    def fused(self, at: str, fusion: Fusion) -> Tensor:
        weight = torch.cat([self.take(f"{at}{part.name}.weight", part.size, fusion.source) for part in fusion.parts])
        if fusion.norm is not None:
            weight = weight * self.gain(f"{at}{fusion.norm}", fusion.source)
        return self.matrix(fusion.arranged(weight))

    def bias(self, at: str, fusion: Fusion) -> Tensor:
        biases = [self.take(f"{at}{part.name}.bias", part.size) for part in fusion.parts]
        return fusion.arranged(torch.cat(biases)).to(self.dtype)

    def attention(self, at: str) -> dict[str, Tensor | None]:
        arch, fusion = self.arch, attention(self.arch)
        output, after = output_projection(arch), arch.norms.attention_out
        return {
            "qkv": self.fused(at, fusion),
            "qkv_bias": self.bias(at, fusion) if arch.qkv_bias else None,
            "qk_gain": None if arch.qk_norm is None else self._qk_gain(f"{at}self_attn."),
            "output": self.fused(at, output),
            "output_bias": self.bias(at, output) if arch.output_bias else None,
            "output_gain": None if after is None else self.gain(f"{at}{after}", arch.hidden_size),
        }

    def _qk_gain(self, at: str) -> Tensor:
        arch, gains = self.arch, []
        for name, heads in (("q_norm", arch.num_heads), ("k_norm", arch.num_kv_heads)):
            size = arch.head_dim if arch.qk_norm == "head" else heads * arch.head_dim
            gains.append(self.gain(f"{at}{name}", size).view(-1, arch.head_dim).expand(heads, -1))
        gains[0] = gains[0] * arch.attention_scale
        joined, order = torch.cat(gains), head_order(arch)
        return joined if order is None else joined[:, order.to(joined.device)]

    def feed_forward(self, at: str, layer: int) -> dict[str, Tensor | None]:
        arch, after = self.arch, self.arch.norms.feed_out
        down_gain = None if after is None else self.gain(f"{at}{after}", arch.hidden_size)
        if (experts := arch.experts) is not None and layer in experts.layers:
            each = [f"mlp.experts.{expert}." for expert in range(experts.count)]
            size = experts.intermediate_size
            router = Fusion(arch.hidden_size, arch.norms.feed_in, (FusedPart("mlp.gate", experts.count),))
            return {
                "router": self.fused(at, router),
                "gate_up": torch.stack([self.fused(at, gate_up(arch, expert, size)) for expert in each]),
                "down": torch.stack([self.fused(at, down(arch, expert, size)) for expert in each]),
                "down_gain": down_gain,
            }
        inner = arch.intermediate_size
        return {
            "gate_up": self.fused(at, gate_up(arch, "mlp.", inner)),
            "gate_up_bias": self.bias(at, gate_up(arch, "mlp.", inner)) if arch.mlp_bias else None,
            "down": self.fused(at, down(arch, "mlp.", inner)),
            "down_bias": self.bias(at, down(arch, "mlp.", inner)) if arch.mlp_bias else None,
            "down_gain": down_gain,
        }


def gain(weight: Tensor, arch: Architecture) -> Tensor:
    """What a norm of this weight multiplies with, and the root of its size."""
    gained: Tensor = (weight + arch.gain_offset) * len(weight) ** 0.5
    return gained
