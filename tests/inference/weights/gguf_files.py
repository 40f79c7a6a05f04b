"""Small GGUF files with random weights, written by the `gguf` library alone, as llama.cpp's converter writes them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gguf
import numpy as np

HIDDEN, INNER, LAYERS, HEADS, KV_HEADS, CONTEXT = 64, 96, 2, 4, 2, 128
TEMPLATE = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>\\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)
SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")


def byte_alphabet() -> list[str]:
    """The 256 characters with which byte-level BPE writes bytes (GPT-2)."""
    from tokenizers.pre_tokenizers import ByteLevel

    return sorted(ByteLevel.alphabet())


def write(
    path: Path,
    architecture: str = "llama",
    matrices: gguf.GGMLQuantizationType = gguf.GGMLQuantizationType.Q8_0,
    *,
    template: str | None = TEMPLATE,
    tied: bool = False,
    seed: int = 0,
    dim: int = HIDDEN // HEADS,
    value_dim: int | None = None,
    layers: int = LAYERS,
    metadata: dict[str, Any] | None = None,
    extra: dict[str, np.ndarray[Any, Any]] | None = None,
) -> dict[str, np.ndarray[Any, Any]]:
    """Write a model with heads of width `dim`; returns its tensors as they were before they were quantised.

    `metadata` (numbers and texts) and the `extra` tensors are added as they are.
    """
    rng = np.random.default_rng(seed)
    tokens = [*SPECIAL, *byte_alphabet(), "ab"]
    tensors = {
        "token_embd.weight": rng.normal(size=(len(tokens), HIDDEN)),
        "output_norm.weight": rng.uniform(0.5, 1.5, HIDDEN),
    }
    if not tied:
        tensors["output.weight"] = rng.normal(size=(len(tokens), HIDDEN)) / HIDDEN**0.5
    shapes = {
        "attn_q.weight": (HEADS * dim, HIDDEN),
        "attn_k.weight": (KV_HEADS * dim, HIDDEN),
        "attn_v.weight": (KV_HEADS * dim, HIDDEN),
        "attn_output.weight": (HIDDEN, HEADS * dim),
        "ffn_gate.weight": (INNER, HIDDEN),
        "ffn_up.weight": (INNER, HIDDEN),
        "ffn_down.weight": (HIDDEN, INNER),
        "attn_norm.weight": (HIDDEN,),
        "ffn_norm.weight": (HIDDEN,),
    }
    if architecture == "qwen2":
        shapes |= {"attn_q.bias": (HEADS * dim,), "attn_k.bias": (KV_HEADS * dim,), "attn_v.bias": (KV_HEADS * dim,)}
    if architecture == "phi3":
        shapes = {name: shape for name, shape in shapes.items() if name[:6] not in ("attn_q", "attn_k", "attn_v")}
        shapes |= {"attn_qkv.weight": ((HEADS + 2 * KV_HEADS) * dim, HIDDEN), "ffn_up.weight": (2 * INNER, HIDDEN)}
        del shapes["ffn_gate.weight"]
    if architecture in ("qwen3", "gemma3"):
        shapes |= {"attn_q_norm.weight": (dim,), "attn_k_norm.weight": (dim,)}
    if architecture == "gemma3":
        shapes |= {"post_attention_norm.weight": (HIDDEN,), "post_ffw_norm.weight": (HIDDEN,)}
    for layer in range(layers):
        for name, shape in shapes.items():
            one = rng.uniform(0.5, 1.5, shape) if "norm" in name else rng.normal(size=shape) / shape[-1] ** 0.5
            tensors[f"blk.{layer}.{name}"] = one
    tensors = {name: values.astype(np.float32) for name, values in tensors.items()}

    writer = gguf.GGUFWriter(path, architecture)
    writer.add_name("made by a test")
    writer.add_context_length(CONTEXT)
    writer.add_embedding_length(HIDDEN)
    writer.add_block_count(layers)
    writer.add_feed_forward_length(INNER)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KV_HEADS)
    writer.add_key_length(dim)
    writer.add_value_length(value_dim or dim)
    writer.add_rope_freq_base(10_000.0)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_vocab_size(len(tokens))
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("qwen2")
    writer.add_token_list(tokens)
    writer.add_token_types(
        [gguf.TokenType.CONTROL] * len(SPECIAL) + [gguf.TokenType.NORMAL] * (len(tokens) - len(SPECIAL))
    )
    writer.add_token_merges(["a b"])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_pad_token_id(0)
    for name, value in (metadata or {}).items():
        add = {str: writer.add_string, float: writer.add_float32, int: writer.add_uint32}[type(value)]
        add(name, value)
    if template is not None:
        writer.add_chat_template(template)
    for name, values in tensors.items():
        if values.ndim == 1 or matrices == gguf.GGMLQuantizationType.F32:
            writer.add_tensor(name, values)
        else:
            writer.add_tensor(name, gguf.quants.quantize(values, matrices), raw_dtype=matrices)
    for name, values in (extra or {}).items():
        writer.add_tensor(name, values.astype(np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return tensors
