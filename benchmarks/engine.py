"""Tokens per second of the embedded engine against `transformers` `generate`, same model, same prompts, same run.

    python benchmarks/engine.py [--threads 1 2] [--repetitions 5] [--json]

128 rows (16 prompts x 8 samples), 64 new tokens each, temperature 1, no stop token, on a random model of the shape of
whet/tiny. Both sides alternate, repetition by repetition; the ratio of each pair is what counts, since other work on
the machine disturbs both alike. The peer runs in bfloat16 and in float32; the engine in float32 (exact) and bfloat16.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from transformers import Qwen3Config, Qwen3ForCausalLM
from transformers.utils import logging

from whet.inference.embedded import EmbeddedEngine
from whet.inference.protocol import SampleRequest, SamplingParams

PROMPTS, SAMPLES, NEW_TOKENS = 16, 8, 64
LENGTHS = range(32, 65)
SHAPE: dict[str, Any] = {
    "vocab_size": 512,
    "hidden_size": 128,
    "intermediate_size": 384,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "head_dim": 32,
    "num_key_value_heads": 2,
    "max_position_embeddings": 1024,
    "tie_word_embeddings": True,
}


def make_model(directory: Path) -> None:
    torch.manual_seed(0)
    Qwen3ForCausalLM(Qwen3Config(**SHAPE)).save_pretrained(directory)


def make_prompts() -> list[list[int]]:
    rng = random.Random(0)
    return [[rng.randrange(512) for _ in range(rng.choice(LENGTHS))] for _ in range(PROMPTS)]


def peer_side(directory: Path, prompts: list[list[int]], dtype: torch.dtype) -> Callable[[], int]:
    model: Any = Qwen3ForCausalLM.from_pretrained(directory, dtype=dtype).eval()
    model.generation_config.eos_token_id = None
    longest = max(map(len, prompts))
    ids = torch.tensor([[0] * (longest - len(prompt)) + prompt for prompt in prompts])
    mask = torch.tensor([[0] * (longest - len(prompt)) + [1] * len(prompt) for prompt in prompts])

    def run() -> int:
        out = model.generate(
            ids,
            attention_mask=mask,
            do_sample=True,
            temperature=1.0,
            top_k=0,
            top_p=1.0,
            max_new_tokens=NEW_TOKENS,
            num_return_sequences=SAMPLES,
            pad_token_id=0,
        )
        return int(out[:, longest:].numel())

    return run


def engine_side(directory: Path, prompts: list[list[int]], dtype: torch.dtype) -> Callable[[], int]:
    engine = EmbeddedEngine.from_directory(directory, dtype=dtype)
    requests = [
        SampleRequest(
            prompt, SamplingParams(max_tokens=NEW_TOKENS, seed=number * SAMPLES + sample), group_key=str(number)
        )
        for number, prompt in enumerate(prompts)
        for sample in range(SAMPLES)
    ]

    async def sample_all() -> int:
        samples = await asyncio.gather(*(engine.sample(request) for request in requests))
        return sum(len(sample.ids) for sample in samples)

    return lambda: asyncio.run(sample_all())


def tokens_per_second(run: Callable[[], int]) -> float:
    started = time.perf_counter()
    count = run()
    assert count == PROMPTS * SAMPLES * NEW_TOKENS
    return count / (time.perf_counter() - started)


def measure(threads: int, repetitions: int) -> dict[str, Any]:
    torch.set_num_threads(threads)
    with tempfile.TemporaryDirectory() as name:
        directory, prompts = Path(name), make_prompts()
        make_model(directory)
        sides = {
            "transformers bf16": peer_side(directory, prompts, torch.bfloat16),
            "whet fp32": engine_side(directory, prompts, torch.float32),
            "transformers fp32": peer_side(directory, prompts, torch.float32),
            "whet bf16": engine_side(directory, prompts, torch.bfloat16),
        }
        speeds: dict[str, list[float]] = {side: [] for side in sides}
        for repetition in range(repetitions + 1):
            for side, run in sides.items():
                speed = tokens_per_second(run)
                if repetition:  # the first is warm-up
                    speeds[side].append(speed)
    ratios = {
        peer: [ours / theirs for ours, theirs in zip(speeds["whet fp32"], speeds[peer], strict=True)]
        for peer in ("transformers bf16", "transformers fp32")
    }
    return {
        "threads": threads,
        "tokens_per_second": {side: round(statistics.median(values)) for side, values in speeds.items()},
        "ratio_of_whet_fp32": {
            peer: {
                "median": round(statistics.median(values), 2),
                "lowest": round(min(values), 2),
                "highest": round(max(values), 2),
            }
            for peer, values in ratios.items()
        },
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--threads", type=int, nargs="+", default=[2, 1], help="torch threads, one measurement each")
    parser.add_argument("--repetitions", type=int, default=5, help="pairs measured, after one of warm-up")
    parser.add_argument("--json", action="store_true", help="the JSON lines only, without the table")
    options = parser.parse_args()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    for threads in options.threads:
        result = measure(threads, options.repetitions)
        if not options.json:
            print(f"\n{threads} thread(s), {PROMPTS} prompts x {SAMPLES} samples, {NEW_TOKENS} new tokens")
            for side, speed in result["tokens_per_second"].items():
                print(f"  {side:<20} {speed:>8} tokens/s")
            for peer, ratio in result["ratio_of_whet_fp32"].items():
                spread = f"({ratio['lowest']:.2f} to {ratio['highest']:.2f})"
                print(f"  whet fp32 / {peer:<18} {ratio['median']:.2f}x  {spread}")
        print(json.dumps({"benchmark": "engine", **result}))


if __name__ == "__main__":
    main()
