"""Training steps of 8 adapters of mixed rank and targets: all in one pass, against one after the other.

    python benchmarks/adapter_bank.py [--repetitions 5] [--json]

Processor time of `forward_backward` on whet/tiny, one thread. Each row has so many sequences an adapter, of random
lengths up to a largest one; all tokens are targets. Sides alternate within the process, and each ratio is of one round,
the median of which is given. "alone" is the bank with one piece of work at a time, whose losses and logprobs have to be
equal bit for bit; "peft" is the learner of a `[lora]` run on the same sequences, whose one base has all adapters in
PEFT's layers, with `set_adapter` before each.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from peft import LoraConfig as PeftLoraConfig

from whet.models.tiny import path
from whet.rl.data.batch import PackedBatch, TokenSequence, pack
from whet.rl.learner.adapters.work import AdapterOutput, AdapterSpec, AdapterWork, Datum
from whet.rl.learner.config import LearnerConfig, LoraConfig, OptimizerConfig
from whet.rl.learner.make import make_bank, make_learner
from whet.rl.sections.algorithm import LossConfig

ATTENTION = ("q_proj", "k_proj", "v_proj", "o_proj")
MLP = ("gate_proj", "up_proj", "down_proj")
SHAPES = [
    (8, (*ATTENTION, *MLP)),
    (16, ATTENTION),
    (4, MLP),
    (32, (*ATTENTION, *MLP)),
    (8, ("q_proj", "v_proj")),
    (16, (*ATTENTION, *MLP)),
    (8, ATTENTION),
    (4, MLP),
]
SIZES = [(1, 16), (1, 64), (4, 16), (4, 32), (4, 64), (8, 128)]
"""Sequences an adapter, and the longest."""
WORDS = 512
COMPUTATION = LearnerConfig(device="cpu", dtype="float32")


def cross_entropy(logprobs: Any, inputs: Any) -> tuple[Any, dict[str, Any]]:
    return -(inputs["weights"] * logprobs).sum(), {}


def sequences(rng: np.random.Generator, count: int, longest: int) -> list[np.ndarray[Any, Any]]:
    """Each with the token that its last one predicts."""
    return [rng.integers(0, WORDS, int(n) + 1) for n in rng.integers(longest // 2, longest + 1, count)]


def work(name: str, ids: list[np.ndarray[Any, Any]]) -> AdapterWork:
    data = [
        Datum(own[:-1].tolist(), {"target_tokens": own[1:], "weights": np.ones(len(own) - 1, np.float32)})
        for own in ids
    ]
    return AdapterWork(name, data, cross_entropy)


def batch(ids: list[np.ndarray[Any, Any]]) -> PackedBatch:
    return pack(
        [
            TokenSequence(
                ids=own.astype(np.int32),
                trained=np.arange(len(own)) > 0,
                logprobs=np.zeros(len(own), np.float32),
                versions=np.zeros(len(own), np.int32),
                temperature=1.0,
                rollout="",
            )
            for own in ids
        ]
    )


def seconds(run: Callable[[], Any]) -> float:
    begin = time.process_time()
    run()
    return time.process_time() - begin


def equal(left: Any, right: Any) -> bool:
    assert isinstance(left, AdapterOutput), left
    assert isinstance(right, AdapterOutput), right
    return left.loss == right.loss and all(map(np.array_equal, left.logprobs, right.logprobs))


def measure(repetitions: int) -> list[dict[str, Any]]:
    torch.set_num_threads(1)
    bank, rng, rows = make_bank(path(), computation=COMPUTATION), np.random.default_rng(0), []
    learner = make_learner(
        path(),
        optimizer=OptimizerConfig(),
        lora=LoraConfig(),
        max_steps=1,
        seed=0,
        publish_directory=Path(tempfile.gettempdir()),
        computation=COMPUTATION,
    )
    wrapped = learner.weights._peft  # type: ignore[attr-defined]
    for number, (rank, targets) in enumerate(SHAPES):
        bank.create(str(number), AdapterSpec(rank, targets, seed=number))
        wrapped.add_adapter(str(number), PeftLoraConfig(r=rank, lora_alpha=32, target_modules=list(targets)))

    def one_by_one(batches: list[PackedBatch]) -> None:
        for number, own in enumerate(batches):
            wrapped.set_adapter(str(number))
            learner.forward_backward(own, loss)

    loss = LossConfig(loss="cross_entropy")
    for count, longest in SIZES:
        ids = [sequences(rng, count, longest) for _ in SHAPES]
        works = [work(str(number), own) for number, own in enumerate(ids)]
        batches = [batch(own) for own in ids]
        sides: list[Callable[[], Any]] = [
            lambda works=works: bank.forward_backward(works),  # type: ignore[misc]
            lambda works=works: [bank.forward_backward([own]) for own in works],  # type: ignore[misc]
            lambda batches=batches: one_by_one(batches),  # type: ignore[misc]
        ]
        same = all(equal(one, bank.forward_backward([own])[0]) for own, one in zip(works, sides[0](), strict=True))
        times = [[seconds(side) for side in sides] for _ in range(repetitions + 1)][1:]
        mixed, alone, peft = (statistics.median(each) for each in zip(*times, strict=True))
        rows.append(
            {
                "sequences": count,
                "longest": longest,
                "tokens": sum(len(datum.ids) for own in works for datum in own.data),
                "mixed_ms": 1e3 * mixed,
                "alone_ms": 1e3 * alone,
                "peft_ms": 1e3 * peft,
                "alone_ratio": statistics.median(each[1] / each[0] for each in times),
                "peft_ratio": statistics.median(each[2] / each[0] for each in times),
                "equal": same,
            }
        )
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repetitions", type=int, default=5)
    parser.add_argument("--json", action="store_true", help="print JSON")
    options = parser.parse_args()
    rows = measure(options.repetitions)
    if options.json:
        print(json.dumps(rows))
        return
    print("sequences x longest, tokens of all |  mixed  |  alone, ratio  |  peft, ratio  | equal bit for bit")
    for row in rows:
        print(
            f"{row['sequences']} x {row['longest']:<4} {row['tokens']:>6} | {row['mixed_ms']:6.1f} ms"
            f" | {row['alone_ms']:6.1f} ms {row['alone_ratio']:5.2f}"
            f" | {row['peft_ms']:6.1f} ms {row['peft_ratio']:5.2f}"
            f" | {'yes' if row['equal'] else 'no'}"
        )


if __name__ == "__main__":
    main()
