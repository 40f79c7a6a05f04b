"""The learner on one GPU: tokens a second, share of the peak (MFU) and memory, at the shape of Qwen3-0.6B.

    python benchmarks/gpu_learner.py [--tokens 16384] [--length 2048] [--steps 10] [--activation-checkpointing]
    python benchmarks/gpu_learner.py --device cpu --small          # the same code at a small shape, anywhere
    python benchmarks/gpu_learner.py --experts [--device cpu --small]    # a layer of 128 experts instead

Random weights; a batch is `--tokens` tokens in rollouts of `--length`, each of a prompt of its own that is an eighth of
it, in one micro-batch. A step is forward, the default loss, backward and AdamW. On a GPU the weights are bfloat16 with
float32 masters, and attention is the kernel for runs of many lengths; on a CPU all is float32. Rollouts are not sampled
and weights are not published: this is the learner alone.

    flops of a step = 6 (P_layers T + P_head N) + 6 L W sum of s^2      MFU = flops / seconds / peak

A layer of experts is computed by grouped products, as the learner does it, and expert by expert over unbound views of
the stacks, in turns: forward and backward, the ratio of each pair, how far gradients are apart, and whether the grouped
form ever waits for the GPU. With --small experts are 64 wide instead of 2048, and tokens 512 instead of 4096.

P are the parameters that a token is multiplied with (embeddings are looked up), T tokens that are computed, N those
that are trained, L layers, W the width of all query heads, s the length of a rollout. Attention counts as causal (half
the square), a backward pass as two forward ones, and what activation checkpointing computes again does not count.
"""

from __future__ import annotations

import argparse
import json
import resource
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor
from transformers import Qwen3Config, Qwen3ForCausalLM

from whet.inference.decoding.functions import mix_experts, route
from whet.rl.data.batch import PackedBatch, TokenSequence, pack
from whet.rl.learner.config import LearnerConfig, OptimizerConfig
from whet.rl.learner.make import make_learner
from whet.rl.learner.protocol import OptimParams
from whet.rl.sections.algorithm import AlgorithmConfig

QWEN3_06B: dict[str, Any] = {
    "vocab_size": 151_936,
    "hidden_size": 1024,
    "intermediate_size": 3072,
    "num_hidden_layers": 28,
    "num_attention_heads": 16,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "max_position_embeddings": 40_960,
    "tie_word_embeddings": True,
}
SMALL: dict[str, Any] = {
    **QWEN3_06B,
    "vocab_size": 512,
    "hidden_size": 64,
    "intermediate_size": 192,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
}
PEAK_TFLOPS = {"H200": 989, "H100": 989, "A100": 312, "L40S": 362, "L4": 121, "RTX 4090": 165}
"""Dense bfloat16 peaks from the makers' data sheets, by a part of the device's name."""


def make_batch(tokens: int, length: int, vocabulary: int) -> PackedBatch:
    """Rollouts of `length` tokens, the first eighth of each a prompt; logprobs and advantages are random."""
    rng = np.random.default_rng(0)
    trained = np.arange(length) >= max(1, length // 8)
    sequences = [
        TokenSequence(
            ids=rng.integers(0, vocabulary, length).astype(np.int32),
            trained=trained,
            logprobs=np.where(trained, -np.log(vocabulary), 0).astype(np.float32),
            versions=np.where(trained, 0, -1).astype(np.int32),
            rollout=str(number),
        )
        for number in range(tokens // length)
    ]
    return pack(sequences, rng.normal(size=len(sequences)).tolist())


def step_flops(shape: dict[str, Any], batch: PackedBatch) -> float:
    """Of forward and backward pass, by the formula above; a rollout's last token is not computed."""
    hidden, width = shape["hidden_size"], shape["num_attention_heads"] * shape["head_dim"]
    keys = shape["num_key_value_heads"] * shape["head_dim"]
    layer = hidden * (2 * width + 2 * keys) + 3 * hidden * shape["intermediate_size"]
    computed = batch.lengths.astype(float) - 1
    products = shape["num_hidden_layers"] * layer * computed.sum() + hidden * shape["vocab_size"] * batch.trained_tokens
    return float(6 * products + 6 * shape["num_hidden_layers"] * width * np.square(computed).sum())


def peak_tflops(device: str, given: float | None) -> float | None:
    if given is not None or device != "cuda":
        return given
    name = torch.cuda.get_device_name()
    return next((peak for part, peak in PEAK_TFLOPS.items() if part in name), None)


def measure(options: argparse.Namespace) -> dict[str, Any]:
    shape = SMALL if options.small else QWEN3_06B
    on_gpu = options.device == "cuda"
    batch = make_batch(options.tokens, options.length, shape["vocab_size"])
    loss, seconds = AlgorithmConfig(), []
    with tempfile.TemporaryDirectory() as scratch:
        torch.manual_seed(0)
        model = Path(scratch) / "model"
        Qwen3ForCausalLM(Qwen3Config(**shape, dtype="bfloat16")).bfloat16().save_pretrained(model)
        learner = make_learner(
            model,
            optimizer=OptimizerConfig(),
            lora=None,
            max_steps=options.steps + options.warmup,
            seed=0,
            publish_directory=Path(scratch),
            computation=LearnerConfig(
                device=options.device,
                micro_batch_tokens=options.tokens,
                activation_checkpointing=options.activation_checkpointing,
            ),
        )
        for number in range(options.warmup + options.steps):
            _wait(on_gpu)
            started = time.perf_counter()
            output = learner.forward_backward(batch, loss)
            learner.optim_step(OptimParams(learning_rate=1e-6, denominator=output.tokens))
            _wait(on_gpu)
            if number >= options.warmup:
                seconds.append(time.perf_counter() - started)
    median, flops, peak = (
        statistics.median(seconds),
        step_flops(shape, batch),
        peak_tflops(options.device, options.peak),
    )
    memory = torch.cuda.max_memory_allocated() if on_gpu else resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    return {
        "benchmark": "gpu_learner",
        "device": torch.cuda.get_device_name() if on_gpu else "cpu",
        "shape": "small" if options.small else "Qwen3-0.6B",
        "parameters": learner.parameters,
        "tokens": len(batch.ids),
        "length": options.length,
        "activation_checkpointing": options.activation_checkpointing,
        "seconds": median,
        "seconds_min": min(seconds),
        "seconds_max": max(seconds),
        "tokens_per_s": len(batch.ids) / median,
        "tflops_per_step": flops / 1e12,
        "peak_tflops": peak,
        "mfu": None if peak is None else flops / median / (peak * 1e12),
        "peak_memory_gib": memory / 2**30,
    }


EXPERTS, PER_TOKEN = 128, 8


def unbound(x_ND: Tensor, chosen_NK: Tensor, weights_NK: Tensor, gate_up_EDI: Tensor, down_EID: Tensor) -> Tensor:
    """What `mix_experts` computes, expert by expert."""
    mixed_ND = torch.zeros_like(x_ND)
    for expert, (gate_up, down) in enumerate(zip(gate_up_EDI.unbind(), down_EID.unbind(), strict=True)):
        tokens, places = (chosen_NK == expert).nonzero(as_tuple=True)
        gate, up = (x_ND[tokens] @ gate_up).chunk(2, dim=-1)
        made = (F.silu(gate) * up) @ down * weights_NK[tokens, places, None].to(x_ND.dtype)
        mixed_ND = mixed_ND.index_add(0, tokens, made)
    return mixed_ND


def measure_experts(options: argparse.Namespace) -> dict[str, Any]:
    """One layer of experts, forward and backward, in both forms."""
    on_gpu = options.device == "cuda"
    hidden, inner, tokens = (64, 32, 512) if options.small else (2048, 768, 4096)
    dtype = torch.bfloat16 if on_gpu else torch.float32
    draw = torch.Generator().manual_seed(0)

    def random(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=draw).to(options.device, dtype)

    leaves = [random(tokens, hidden), random(EXPERTS, hidden, 2 * inner), random(EXPERTS, inner, hidden)]
    leaves = [(0.1 * leaf).requires_grad_() for leaf in leaves]
    logits_NE = torch.randn(tokens, EXPERTS, generator=draw).to(options.device)
    chosen_NK, weights_NK = route(logits_NE, PER_TOKEN, normalise=True)
    passing_back = random(tokens, hidden)

    def step(form: Callable[..., Tensor]) -> tuple[Tensor, ...]:
        x_ND, gate_up_EDI, down_EID = leaves
        return torch.autograd.grad(form(x_ND, chosen_NK, weights_NK, gate_up_EDI, down_EID), leaves, passing_back)

    forms = {"grouped": mix_experts, "unbound": unbound}
    grouped, expected = map(step, forms.values())
    apart = [
        float((one - other).float().norm() / other.float().norm()) for one, other in zip(grouped, expected, strict=True)
    ]
    waits = None
    if on_gpu:
        torch.cuda.set_sync_debug_mode("error")
        try:
            step(mix_experts)
            waits = False
        except RuntimeError:
            waits = True
        finally:
            torch.cuda.set_sync_debug_mode("default")
    clock = time.perf_counter if on_gpu else time.process_time
    seconds: dict[str, list[float]] = {name: [] for name in forms}
    for _ in range(options.warmup + options.steps):
        for name, form in forms.items():
            _wait(on_gpu)
            started = clock()
            step(form)
            _wait(on_gpu)
            seconds[name].append(clock() - started)
    counted = {name: every[options.warmup :] for name, every in seconds.items()}
    return {
        "benchmark": "gpu_learner experts",
        "device": torch.cuda.get_device_name() if on_gpu else "cpu",
        "experts": EXPERTS,
        "hidden": hidden,
        "tokens": tokens,
        "grouped_s": statistics.median(counted["grouped"]),
        "unbound_s": statistics.median(counted["unbound"]),
        "ratio": statistics.median(a / b for a, b in zip(counted["grouped"], counted["unbound"], strict=True)),
        "gradients_apart": max(apart),
        "grouped_waits_for_gpu": waits,
    }


def _wait(on_gpu: bool) -> None:
    if on_gpu:
        torch.cuda.synchronize()


def table(result: dict[str, Any]) -> str:
    mfu = "unknown: give --peak, in TFLOP/s" if result["mfu"] is None else f"{result['mfu']:.1%}"
    spread = f"{result['seconds_min']:.3f} .. {result['seconds_max']:.3f}"
    rows = {
        "device": result["device"],
        "model": f"{result['shape']}, {result['parameters']:,} parameters",
        "batch": f"{result['tokens']:,} tokens in rollouts of {result['length']:,}",
        "activation checkpointing": "on" if result["activation_checkpointing"] else "off",
        "seconds a step": f"{result['seconds']:.3f} ({spread})",
        "tokens a second": f"{result['tokens_per_s']:,.0f}",
        "MFU": mfu,
        "peak memory": f"{result['peak_memory_gib']:.2f} GiB",
    }
    return "\n".join(f"{name:26}{value}" for name, value in rows.items())


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    parser.add_argument("--small", action="store_true", help="a shape that any machine computes in a moment")
    parser.add_argument("--tokens", type=int, help="tokens of a batch; default 16384, with --small 1024")
    parser.add_argument("--length", type=int, help="tokens of a rollout; default an eighth of the batch")
    parser.add_argument("--steps", type=int, default=10, help="steps that count")
    parser.add_argument("--warmup", type=int, default=3, help="steps before those")
    parser.add_argument("--activation-checkpointing", action="store_true")
    parser.add_argument("--experts", action="store_true", help="a layer of experts instead of a whole step")
    parser.add_argument("--peak", type=float, help="the device's peak in TFLOP/s, where its name is not known here")
    options = parser.parse_args(arguments)
    if options.device == "cuda" and not torch.cuda.is_available():
        sys.exit("This measures a GPU, and torch sees none here. The same code runs with: --device cpu --small")
    options.tokens = options.tokens or (1024 if options.small else 16_384)
    options.length = options.length or options.tokens // 8
    if min(options.length, options.steps) < 1 or options.length < 2 or options.tokens % options.length:
        sys.exit("--tokens has to be a multiple of --length, a rollout has at least 2 tokens, and a step has to count")
    if options.experts:
        result = measure_experts(options)
        print("\n".join(f"{name:26}{value}" for name, value in result.items()))
    else:
        result = measure(options)
        print(table(result))
    print("\n" + json.dumps(result))


if __name__ == "__main__":
    main()
