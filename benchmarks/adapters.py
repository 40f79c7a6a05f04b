"""One engine with adapters in addition to its base: memory against an engine for each, and speed of mixed batches.

    python benchmarks/adapters.py [--repetitions 5] [--json]

Memory: resident bytes of a process with one engine and 8 adapters of rank 16 on all projections, and of one with 8
engines that have them merged, each after a request to every adapter. Speed: tokens a second in processor time, one
thread, of the same requests to the base alone, spread over 4 adapters, all to one adapter, and to a merged one; the
sides alternate, and each ratio is to the base of the same round. Shapes: that of whet/tiny, and one 16 times as large.
At once: 8 adapters of ranks 1 to 32 and other projections each, 1 and 4 rows of each in one batch against one adapter
after the other, in an engine whose answers do not depend on the batch: how many times as fast, and whether ids and
logprobs are the same bits.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import statistics
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from peft import LoraConfig, get_peft_model
from transformers import Qwen3Config, Qwen3ForCausalLM

from whet.inference.embedded import EmbeddedEngine
from whet.inference.protocol import Sample, SampleRequest, SamplingParams, WeightUpdate

RANK, HELD, MIXED = 16, 8, 4
NAMES = [f"adapter{number}" for number in range(HELD)]
PROMPT, NEW_TOKENS = 48, 32
TINY: dict[str, Any] = {
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
LARGER: dict[str, Any] = {
    **TINY,
    "vocab_size": 2048,
    "hidden_size": 512,
    "intermediate_size": 1536,
    "num_attention_heads": 8,
    "head_dim": 64,
    "num_key_value_heads": 4,
}
MIXED_KINDS: dict[str, dict[str, Any]] = {
    f"mixed{number}": {"r": rank, "target_modules": targets}
    for number, (rank, targets) in enumerate(
        [
            (1, "all-linear"),
            (2, ["q_proj", "v_proj"]),
            (4, ["gate_proj", "up_proj", "down_proj"]),
            (8, "all-linear"),
            (16, ["q_proj", "k_proj", "v_proj", "o_proj"]),
            (16, ["q_proj", "lm_head"]),
            (24, "all-linear"),
            (32, ["o_proj", "down_proj"]),
        ]
    )
}
SHAPES = {"tiny": (TINY, (4, 32, 128)), "larger": (LARGER, (4, 32))}


def make(directory: Path, shape: dict[str, Any]) -> None:
    """A random model in `model` and its adapters in folders of their names."""
    torch.manual_seed(0)
    model = Qwen3ForCausalLM(Qwen3Config(**shape))
    model.save_pretrained(directory / "model")
    config = LoraConfig(r=RANK, target_modules="all-linear", init_lora_weights=False)
    adapted = get_peft_model(model, config, adapter_name=NAMES[0])
    for name in NAMES[1:]:
        adapted.add_adapter(name, config)
    for name, kind in MIXED_KINDS.items():
        adapted.add_adapter(name, LoraConfig(**kind, init_lora_weights=False))
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*embedding layers found")
        adapted.save_pretrained(directory, selected_adapters=[*NAMES, *MIXED_KINDS])


def load(engine: EmbeddedEngine, directory: Path, name: str | None) -> None:
    asyncio.run(engine.load_weights(WeightUpdate(0, directory, kind="adapter", adapter=name)))


def requests_to(names: list[str | None], rows: int, new_tokens: int) -> list[SampleRequest]:
    rng = random.Random(0)
    return [
        SampleRequest(
            [rng.randrange(512) for _ in range(PROMPT)],
            SamplingParams(max_tokens=new_tokens, seed=row),
            adapter=names[row % len(names)],
        )
        for row in range(rows)
    ]


def sampled(engine: EmbeddedEngine, requests: list[SampleRequest]) -> list[Sample]:
    async def all_of_them() -> list[Sample]:
        return await asyncio.gather(*(engine.sample(request) for request in requests))

    return asyncio.run(all_of_them())


def answer(engine: EmbeddedEngine, requests: list[SampleRequest]) -> int:
    return sum(len(sample.ids) for sample in sampled(engine, requests))


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


def hold(directory: Path, side: str) -> None:
    """In a process of its own: print how much memory the engines of one side take."""
    torch.set_num_threads(1)
    before = resident_bytes()
    if side == "one engine":
        engine = EmbeddedEngine.from_directory(directory / "model")
        for name in NAMES:
            load(engine, directory / name, name)
        answer(engine, requests_to([*NAMES], HELD, 4))
        print(resident_bytes() - before)
    else:
        adapters: list[str | None] = [None] if side == "base" else [*NAMES]
        engines = [EmbeddedEngine.from_directory(directory / "model") for _ in adapters]
        for adapter, engine in zip(adapters, engines, strict=True):
            if adapter is not None:
                load(engine, directory / adapter, None)
            answer(engine, requests_to([None], 1, 4))
        print(resident_bytes() - before)


def memory(directory: Path) -> dict[str, float]:
    found = {}
    for side in ("base", "one engine", "an engine each"):
        command = [sys.executable, __file__, "--hold", str(directory), side]
        printed = subprocess.run(command, check=True, capture_output=True, text=True).stdout
        found[side] = round(int(printed.split()[-1]) / 2**20)
    adapter = (directory / NAMES[0] / "adapter_model.safetensors").stat().st_size
    model = (directory / "model" / "model.safetensors").stat().st_size
    return {**found, "the adapter's file": round(adapter / 2**20, 1), "the model's file": round(model / 2**20, 1)}


def speed(directory: Path, rows: int, repetitions: int) -> dict[str, Any]:
    beside, merged = (EmbeddedEngine.from_directory(directory / "model") for _ in range(2))
    for name in NAMES[:MIXED]:
        load(beside, directory / name, name)
    load(merged, directory / NAMES[0], None)
    sides: dict[str, Callable[[], int]] = {
        "base": lambda: answer(beside, requests_to([None], rows, NEW_TOKENS)),
        "four adapters": lambda: answer(beside, requests_to([*NAMES[:MIXED]], rows, NEW_TOKENS)),
        "one adapter": lambda: answer(beside, requests_to([NAMES[0]], rows, NEW_TOKENS)),
        "merged": lambda: answer(merged, requests_to([None], rows, NEW_TOKENS)),
    }
    speeds: dict[str, list[float]] = {side: [] for side in sides}
    for repetition in range(repetitions + 1):
        for side, run in sides.items():
            started = time.process_time()
            count = run()
            if repetition:  # the first is warm-up
                speeds[side].append(count / (time.process_time() - started))
    found: dict[str, Any] = {"rows": rows, "base, tokens/s": round(statistics.median(speeds["base"]))}
    for side in list(sides)[1:]:
        ratios = [ours / base for ours, base in zip(speeds[side], speeds["base"], strict=True)]
        found[side] = [round(figure, 2) for figure in (statistics.median(ratios), min(ratios), max(ratios))]
    return found


def at_once(directory: Path, rows_each: int, repetitions: int) -> dict[str, Any]:
    engine = EmbeddedEngine.from_directory(directory / "model", batch_invariant=True)
    for name in MIXED_KINDS:
        load(engine, directory / name, name)
    requests = requests_to([*MIXED_KINDS], rows_each * len(MIXED_KINDS), NEW_TOKENS)
    ratios, same = [], True
    for repetition in range(repetitions + 1):
        moments = [time.process_time()]
        mixed = sampled(engine, requests)
        moments.append(time.process_time())
        apart = {
            name: sampled(engine, [request for request in requests if request.adapter == name]) for name in MIXED_KINDS
        }
        moments.append(time.process_time())
        one_by_one = [apart[str(request.adapter)].pop(0) for request in requests]
        same &= all((a.ids, a.logprobs) == (b.ids, b.logprobs) for a, b in zip(mixed, one_by_one, strict=True))
        if repetition:
            ratios.append((moments[2] - moments[1]) / (moments[1] - moments[0]))
    figures = [round(figure, 2) for figure in (statistics.median(ratios), min(ratios), max(ratios))]
    return {"rows of each": rows_each, "times as fast": figures, "same bits": same}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--repetitions", type=int, default=5, help="rounds measured, after one of warm-up")
    parser.add_argument("--json", action="store_true", help="the JSON line only, without the table")
    parser.add_argument("--hold", nargs=2, metavar=("DIRECTORY", "SIDE"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.hold:
        hold(Path(options.hold[0]), options.hold[1])
        return
    torch.set_num_threads(1)
    result: dict[str, Any] = {"benchmark": "adapters"}
    for shape, (sizes, batches) in SHAPES.items():
        with tempfile.TemporaryDirectory() as name:
            make(Path(name), sizes)
            result[shape] = {
                "memory, MiB": memory(Path(name)),
                "speed": [speed(Path(name), rows, options.repetitions) for rows in batches],
                "at once": [at_once(Path(name), rows_each, options.repetitions) for rows_each in (1, 4)],
            }
        if not options.json:
            print(f"\n{shape}: resident MiB {result[shape]['memory, MiB']}")
            for row in result[shape]["speed"] + result[shape]["at once"]:
                print("  ", ", ".join(f"{key} {value}" for key, value in row.items()))
    print(json.dumps(result))


if __name__ == "__main__":
    main()
