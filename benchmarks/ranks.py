"""A learner in one process against one divided among ranks: seconds of a step and largest memory of each process.

    python benchmarks/ranks.py [--ranks 2] [--hidden 512 --layers 12 --vocab 16384] [--rounds 5] [--lora 16]

Random weights of the chosen shape (Qwen3), the same batch of groups for both sides: forward and backward pass, AdamW
step, publication. The sides take turns, and the other one sleeps meanwhile; the one process has `--threads` threads, a
rank one. Printed are medians of a step by the clock and of its processor time (all ranks together), which other work on
the machine disturbs less, their ratios within a round with the spread, and of each process the resident memory in front
of the first step, where the model is held, and its peak in steps (Linux). Ranks of one host share its memory and cores,
so this shows what dividing costs and saves, not how ranks on devices of their own scale.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import statistics
import tempfile
import time
from collections.abc import Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np

from whet.rl.data.batch import PackedBatch, TokenSequence, pack
from whet.rl.learner.config import LearnerConfig, LoraConfig, OptimizerConfig
from whet.rl.learner.protocol import OptimParams
from whet.rl.learner.ranks.rank_group import divide
from whet.rl.sections.algorithm import LossConfig

LOSS = LossConfig(loss="ppo")
MIB = 1 << 20


def make_model(directory: Path, *, hidden: int, layers: int, vocab: int) -> None:
    import torch
    from transformers import Qwen3Config, Qwen3ForCausalLM

    torch.manual_seed(0)
    config = Qwen3Config(
        vocab_size=vocab,
        hidden_size=hidden,
        intermediate_size=3 * hidden,
        num_hidden_layers=layers,
        num_attention_heads=hidden // 64,
        num_key_value_heads=hidden // 128,
        head_dim=64,
        tie_word_embeddings=True,
    )
    Qwen3ForCausalLM(config).save_pretrained(directory)
    (directory / "tokenizer_config.json").write_text("{}")


def make_batch(groups: int, samples: int, prompt: int, answer: int, vocab: int) -> PackedBatch:
    rng, sequences = np.random.default_rng(0), []
    for group in range(groups):
        begins = rng.integers(0, vocab, prompt)
        for sample in range(samples):
            ids = np.concatenate([begins, rng.integers(0, vocab, answer)]).astype(np.int32)
            trained = np.arange(len(ids)) >= prompt
            sequences.append(
                TokenSequence(
                    ids=ids,
                    trained=trained,
                    logprobs=np.where(trained, -np.log(vocab), 0).astype(np.float32),
                    versions=np.where(trained, 0, -1).astype(np.int32),
                    temperature=1.0,
                    rollout=f"{group} {sample}",
                )
            )
    return pack(sequences, rng.normal(size=len(sequences)).tolist())


def work(calls: Connection, rank: int, size: int, model: Path, options: dict[str, Any], meeting: Path) -> None:
    """The process of a rank, or of the whole learner where `size` is 1."""
    from whet.rl.learner.make import make_learner
    from whet.rl.learner.ranks.rank_learner import make_rank_learner

    learner: Any
    if size == 1:
        learner = make_learner(model, **options)
    else:
        learner = make_rank_learner(
            model,
            rank=rank,
            world_size=size,
            init_method=f"file://{meeting}",
            collective_timeout_s=600,
            phase=lambda _: None,
            **options,
        )
    calls.send(_memory("VmRSS"))
    Path("/proc/self/clear_refs").write_text("5")
    while (request := calls.recv()) is not None:
        part, params = request
        times = [time.process_time()]
        learner.forward_backward(part, LOSS)
        times.append(time.process_time())
        learner.optim_step(params)
        times.append(time.process_time())
        learner.publish()
        times.append(time.process_time())
        calls.send((np.diff(times).tolist(), _memory("VmHWM")))
    learner.close()


def _memory(kind: str) -> float:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(kind)) * 1024 / MIB


class Processes:
    """The processes of one side."""

    def __init__(self, size: int, threads: int, model: Path, options: dict[str, Any], scratch: Path) -> None:
        context = multiprocessing.get_context("spawn")
        self.pipes: list[Connection] = []
        options = {**options, "threads": threads, "publish_directory": scratch / f"published_by_{size}"}
        for rank in range(size):
            here, there = context.Pipe()
            arguments = (there, rank, size, model, options, scratch / f"meeting_{size}")
            context.Process(target=work, args=arguments, daemon=True).start()
            self.pipes.append(here)
        self.at_rest = [float(pipe.recv()) for pipe in self.pipes]
        self.peaks: list[float] = []

    def step(self, parts: Sequence[PackedBatch | None], params: OptimParams) -> list[float]:
        """Seconds by the clock, and processor seconds of the three parts of the step in all processes together."""
        started = time.perf_counter()
        for pipe, part in zip(self.pipes, parts, strict=True):
            pipe.send((part, params))
        answers = [pipe.recv() for pipe in self.pipes]
        taken = time.perf_counter() - started
        self.peaks = [peak for _, peak in answers]
        return [taken, *np.sum([times for times, _ in answers], axis=0).tolist()]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--threads", type=int, default=1, help="of the one process")
    parser.add_argument("--hidden", type=int, default=512)
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--vocab", type=int, default=16384)
    parser.add_argument("--groups", type=int, default=8)
    parser.add_argument("--samples", type=int, default=4)
    parser.add_argument("--prompt", type=int, default=64)
    parser.add_argument("--answer", type=int, default=64)
    parser.add_argument("--micro-batch-tokens", type=int, default=1024)
    parser.add_argument("--recompute", action="store_true", help="activation checkpointing")
    parser.add_argument("--lora", type=int, help="rank of an adapter; absent: all weights")
    parser.add_argument("--rounds", type=int, default=5, help="steps of each side, after one of warm-up")
    chosen = parser.parse_args()
    os.environ.setdefault("GOMP_SPINCOUNT", "2000")  # as whet has it: threads that wait leave shared cores to others
    with tempfile.TemporaryDirectory() as folder:
        scratch = Path(folder)
        make_model(scratch / "model", hidden=chosen.hidden, layers=chosen.layers, vocab=chosen.vocab)
        options = {
            "optimizer": OptimizerConfig(),
            "lora": None if chosen.lora is None else LoraConfig(rank=chosen.lora),
            "max_steps": 1000,
            "seed": 0,
            "computation": LearnerConfig(
                device="cpu",
                micro_batch_tokens=chosen.micro_batch_tokens,
                activation_checkpointing=chosen.recompute,
            ),
        }
        batch = make_batch(chosen.groups, chosen.samples, chosen.prompt, chosen.answer, chosen.vocab)
        params = OptimParams(1e-5, batch.trained_tokens)
        one = Processes(1, chosen.threads, scratch / "model", options, scratch)
        many = Processes(chosen.ranks, 1, scratch / "model", options, scratch)
        rounds = []
        for _ in range(chosen.rounds + 1):
            rounds.append((one.step([batch], params), many.step(divide(batch, chosen.ranks).parts, params)))
        report(rounds[1:], one, many)
        for pipe in (*one.pipes, *many.pipes):
            pipe.send(None)


def report(rounds: Sequence[tuple[list[float], list[float]]], one: Processes, many: Processes) -> None:
    for index, name in enumerate(("one process", f"{len(many.pipes)} ranks")):
        parts = [statistics.median(found[index][part] for found in rounds) for part in range(4)]
        print(
            f"{name}: {parts[0]:.2f} s by the clock; processor {sum(parts[1:]):.2f} s "
            f"(passes {parts[1]:.2f}, update {parts[2]:.2f}, publication {parts[3]:.2f})"
        )
    for what, parts_of in (("clock", slice(0, 1)), ("processor time", slice(1, None))):
        ratios = sorted(sum(alone[parts_of]) / sum(together[parts_of]) for alone, together in rounds)
        print(f"one process / ranks, {what}: {statistics.median(ratios):.2f} ({ratios[0]:.2f} to {ratios[-1]:.2f})")
    for name, side in (("one process", one), ("each rank", many)):
        rest, peak = (" ".join(f"{size:.0f}" for size in sizes) for sizes in (side.at_rest, side.peaks))
        print(f"{name}: {rest} MiB before the first step, at most {peak} MiB in steps")


if __name__ == "__main__":
    main()
