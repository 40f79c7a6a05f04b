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
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from whet.errors import ModelLoadError
from whet.inference.architecture import Architecture
from whet.inference.weights.block_matrix import BlockMatrix, FrozenTensors, JoinedRows, joined
from whet.inference.weights.gguf_tensors import complete
from whet.inference.weights.safetensors_files import NamedWeights, read_safetensors

if TYPE_CHECKING:
    from whet.inference.weights.adapters import PackedAdapter

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


@dataclass(slots=True)
class LayerWeights:
    """One decoder layer; H hidden, I intermediate, Q = query heads x D, K = key heads x D."""

    qkv: Tensor | JoinedRows  # [H, Q + 2K], the norm before it folded in, and the attention scale unless qk_gain has it
    qkv_bias: Tensor | None
    qk_gain: Tensor | None  # [heads + kv_heads, D], float32; None without qk-norm
    output: Tensor | JoinedRows  # [Q, H]
    output_bias: Tensor | None
    gate_up: Tensor | JoinedRows  # [H, 2I], the norm before it folded in; [E, H, 2I] of E experts
    gate_up_bias: Tensor | None
    down: Tensor | JoinedRows  # [I, H]; [E, I, H] of E experts
    down_bias: Tensor | None
    router: Tensor | None = None  # [H, E], the norm before it folded in; None in a dense layer
    output_gain: Tensor | None = None  # [H], float32, times sqrt(H), of a norm behind attention
    down_gain: Tensor | None = None  # [H], float32, times sqrt(H), of a norm behind the feed-forward part


@dataclass(slots=True)
class PackedWeights:
    """`adapter` is added to the matrices of all rows: what a base in blocks has instead of a merged one."""

    embedding: Tensor | BlockMatrix  # [V, H]
    layers: list[LayerWeights]
    final_gain: Tensor  # [H], float32, times sqrt(H)
    unembedding: Tensor | JoinedRows  # [H, V]; a view of the embedding when tied
    adapter: PackedAdapter | None = None

    @classmethod
    def of(cls, tensors: Mapping[str, Any]) -> PackedWeights:
        """From the tensors that `packed_tensors` gives."""
        embedding, layers = tensors["embedding"], list[LayerWeights]()
        while f"{(at := f'layers.{len(layers)}.')}qkv" in tensors:
            held: dict[str, Any] = {field.name: tensors.get(at + field.name) for field in fields(LayerWeights)}
            layers.append(LayerWeights(**held))
        unembedding = tensors["unembedding"] if "unembedding" in tensors else embedding.t()
        return cls(embedding, layers, tensors["final_gain"], unembedding)

    def tensors(self) -> dict[str, Tensor]:
        """By the names that `packed_tensors` gives them, the unembedding of a tied model among them."""
        named = {
            f"layers.{i}.{field.name}": getattr(layer, field.name)
            for i, layer in enumerate(self.layers)
            for field in fields(layer)
        }
        named |= {"embedding": self.embedding, "final_gain": self.final_gain, "unembedding": self.unembedding}
        return {name: tensor for name, tensor in named.items() if isinstance(tensor, Tensor)}


def read_checkpoint(directory: Path) -> NamedWeights:
    """All tensors of a checkpoint directory, sharded or not. Raises `ModelLoadError` when files are missing or torn."""
    return read_safetensors(checkpoint_files(directory))


def checkpoint_files(directory: Path) -> list[Path]:
    """The safetensors files of a checkpoint directory. Raises `ModelLoadError` where there are none."""
    complete(directory)
    index = directory / "model.safetensors.index.json"
    single = directory / "model.safetensors"
    if index.is_file():
        try:
            shards = sorted(set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values()))
        except (json.JSONDecodeError, KeyError, TypeError) as error:
            raise ModelLoadError(f"{index} is torn ({error}); fetch or export the model again") from None
        return [directory / shard for shard in shards]
    if single.is_file():
        return [single]
    raise ModelLoadError(f"{directory} holds no weights: neither model.safetensors nor model.safetensors.index.json")


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
    packing = (_BlockPacking if isinstance(named, FrozenTensors) else _Packing)(named, arch, dtype, device)
    hidden = arch.hidden_size
    for i in range(arch.num_layers):
        layer = packing.attention(f"model.layers.{i}.") | packing.feed_forward(f"model.layers.{i}.", i)
        yield from ((f"layers.{i}.{name}", tensor) for name, tensor in layer.items() if tensor is not None)
    yield "embedding", packing.embedding()
    yield "final_gain", packing.gain("model.norm", hidden)
    if (unembedding := packing.unembedding()) is not None:
        yield "unembedding", unembedding


@dataclass(frozen=True, slots=True)
class _Packing:
    """Named weights on their way into packed ones."""

    named: Mapping[str, Any]
    arch: Architecture
    dtype: torch.dtype
    device: torch.device

    def take(self, name: str, *shape: int) -> Tensor:
        tensor: Tensor | None = self.named.get(name)
        if tensor is None:
            raise ModelLoadError(f"the weights lack {name!r}, which a {self.arch.model_type} model needs")
        if tuple(tensor.shape) != shape:
            raise ModelLoadError(f"{name!r} has shape {tuple(tensor.shape)}; the model's config.json asks for {shape}")
        return tensor.to(device=self.device, dtype=torch.float32)

    def matrix(self, weight: Tensor) -> Tensor:
        return weight.t().contiguous().to(self.dtype)

    def embedding(self) -> Tensor:
        arch = self.arch
        return self.take("model.embed_tokens.weight", arch.vocab_size, arch.hidden_size).to(self.dtype).contiguous()

    def unembedding(self) -> Tensor | None:
        """None where it is the embedding."""
        if self.arch.tied_embeddings or "lm_head.weight" not in self.named:
            return None
        return self.matrix(self.take("lm_head.weight", self.arch.vocab_size, self.arch.hidden_size))

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


class _BlockPacking(_Packing):
    """Matrices stay as they are in their file, and what is folded into others is applied to inputs and outputs."""

    def rows(self, name: str, *shape: int) -> BlockMatrix:
        matrix: BlockMatrix = self.named[name]
        if matrix.shape != shape:
            raise ModelLoadError(f"{name!r} has shape {matrix.shape}; the model's config.json asks for {shape}")
        return matrix

    def fused(self, at: str, fusion: Fusion) -> Any:
        parts = joined([self.rows(f"{at}{part.name}.weight", part.size, fusion.source) for part in fusion.parts])
        norm = None if fusion.norm is None else self.gain(f"{at}{fusion.norm}", fusion.source)
        scale, order = (None if each is None else each.to(self.device) for each in (fusion.scale, fusion.order))
        return JoinedRows(tuple(part.to(self.device) for part in parts), norm, scale, order)

    def embedding(self) -> Any:
        return self.rows("model.embed_tokens.weight", self.arch.vocab_size, self.arch.hidden_size).to(self.device)

    def unembedding(self) -> Any:
        name = "lm_head.weight" if "lm_head.weight" in self.named else "model.embed_tokens.weight"
        return JoinedRows((self.rows(name, self.arch.vocab_size, self.arch.hidden_size).to(self.device),))


def gain(weight: Tensor, arch: Architecture) -> Tensor:
    """What a norm of this weight multiplies with, and the root of its size."""
    gained: Tensor = (weight + arch.gain_offset) * len(weight) ** 0.5
    return gained
