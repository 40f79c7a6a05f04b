"""Seconds per optimiser step: whet's loop against TRL's GRPOTrainer, same model, task and batch, one run.

    pip install trl==1.16.0 datasets                      # with whet, or in an environment of its own:
    python benchmarks/step_time.py [--peer-python /path/to/other/bin/python] [--tokens 24 96] [--threads 2]

Task: reverse texts of 16 to 24 letters, reward difflib's ratio, 16 prompts x 8 samples, temperature 1, on random
weights of the shape of whet/tiny (or --model). whet's side is `whet train run` itself: rollouts through the
environment, scoring, learning, publishing, records on disk, watchdog; once more with a KL to the reference, an entropy
bonus, penalties and a budget ("all on"); each asynchronously too; and in bfloat16. TRL runs as it comes (bfloat16
autocast, SDPA, activation checkpointing: its defaults), tuned (bfloat16, eager attention, no checkpointing), and tuned
in float32, which a CPU without bfloat16 instructions may like better; the tuned ones also with a KL to their reference.
All sides may use `--threads` cores; an asynchronous one divides them.

Every side is a program of its own that takes a step on request, and they take turns, so that whatever else the
machine does disturbs all alike. An asynchronous one, where a step begins before the last has ended, takes some steps a
turn and stands still (SIGSTOP) in between. The figures that count are the medians of the ratios within a round, of each
side of TRL to each of whet: look at those that do the same. `--sides` takes some of them only, which leaves less time
between two. Each side's processor time a step is printed, too, and its largest resident memory since its first step.

A pretrained model (`--model smollm2-135m`) runs in bfloat16 on both sides, whet's also with activation checkpointing
("recompute"), TRL tuned and with micro-batches of 16, the largest that fit into memory: with all 128 samples at once it
takes more than 20 GB. `--apart` has one side in memory at a time, which takes its steps one after the other.

Of a GGUF file, LoRA on its blocks ("packed") against LoRA on the same weights in bfloat16, e.g.
--model smollm2-135m --prompts 4 --tokens 48 --threads 1 --sides "whet bf16, LoRA" "whet bf16, packed" "whet packed".
"""

from __future__ import annotations

import argparse
import difflib
import json
import os
import signal
import statistics
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from _sides import Pacer, Side

PROMPTS, SAMPLES = 16, 8
LEARNING_RATE = 1e-5
ENVIRONMENT: dict[str, Any] = {"id": "reverse-text", "args": {"min_length": 16, "max_length": 24, "num_train": 512}}
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
EVERYTHING: dict[str, Any] = {
    "algorithm": {"kl_coef": 0.04, "entropy_coef": 0.001, "repetition_penalty": 0.1, "reward_clip": [-1.0, 1.0]},
    "budget": {"max_tokens": 10**12},
}
BF16: dict[str, Any] = {"inference": {"dtype": "bfloat16"}, "learner": {"dtype": "bfloat16"}}
ASYNCHRONOUS: dict[str, Any] = {"max_async_level": 1}
OURS: dict[str, dict[str, Any]] = {
    "whet": {},
    "whet, async": ASYNCHRONOUS,
    "whet, all on": EVERYTHING,
    "whet, all on, async": {**EVERYTHING, **ASYNCHRONOUS},
    "whet bf16": BF16,
    "whet bf16, recompute": {**BF16, "learner": {"dtype": "bfloat16", "activation_checkpointing": True}},
    "whet bf16, async": {**BF16, **ASYNCHRONOUS},
    "whet bf16, all on": {**EVERYTHING, **BF16},
    "whet bf16, all on, async": {**EVERYTHING, **BF16, **ASYNCHRONOUS},
}
LORA: dict[str, Any] = {"lora": {"rank": 8}}
OURS["whet bf16, LoRA"] = {**BF16, **LORA, "learner": {"dtype": "bfloat16", "base_dtype": "bfloat16"}}
PACKED: dict[str, dict[str, Any]] = {
    "whet packed": {"lora": {"rank": 8, "base": "packed"}},
    "whet bf16, packed": {**BF16, "lora": {"rank": 8, "base": "packed"}},
}
TUNED: dict[str, Any] = {"attn_implementation": "eager", "gradient_checkpointing": False}
PEERS: dict[str, dict[str, Any]] = {
    "TRL as it comes": {},
    "TRL bf16": {**TUNED, "bf16": True},
    "TRL bf16, KL": {**TUNED, "bf16": True, "beta": 0.04},
    "TRL fp32": {**TUNED, "bf16": False},
    "TRL fp32, KL": {**TUNED, "bf16": False, "beta": 0.04},
}
REAL_SIZE = ("whet bf16", "whet bf16, recompute", "TRL bf16")
"""Sides with --model. All sides are in memory at the same time, unless --apart."""
STEPS_A_TURN = 4
"""Of an asynchronous side: with fewer the moments of stopping and going on would count."""


Plan = tuple[str, str, str, dict[str, Any]]
"""Name, interpreter and kind of a side, and what its job has of its own."""


def make_model(directory: Path) -> None:
    import torch
    from transformers import AutoTokenizer, Qwen3Config, Qwen3ForCausalLM

    from whet.models import tiny

    torch.manual_seed(0)
    tokenizer = AutoTokenizer.from_pretrained(tiny.path())
    end = tokenizer.eos_token_id
    model = Qwen3ForCausalLM(Qwen3Config(**SHAPE, eos_token_id=end, pad_token_id=tokenizer.pad_token_id))
    model.save_pretrained(directory)
    tokenizer.save_pretrained(directory)


def whet_worker(pacer: Pacer, job: dict[str, Any]) -> None:
    """`whet train run` as it is, with one more monitor, which takes a step on request, or (asynchronous) at once."""
    from whet.rl import run
    from whet.rl.config import RunConfig
    from whet.rl.monitors import MonitorGroup
    from whet.rl.monitors.protocol import Monitor, RunPlan, StepReport
    from whet.rl.supervision import lifecycle

    class PacingMonitor(Monitor):
        def start(self, plan: RunPlan) -> None:
            self._next()

        def step(self, report: StepReport) -> None:
            pacer.done()
            self._next()

        def _next(self) -> None:
            if not asynchronous and not pacer.wait():
                os._exit(0)

    asynchronous = job["settings"].get("max_async_level", 0) > 0
    make = lifecycle.console_and_others  # type: ignore[attr-defined]

    def with_pacing(**options: Any) -> MonitorGroup:
        return MonitorGroup([*make(**options).monitors, PacingMonitor()])

    lifecycle.console_and_others = with_pacing  # type: ignore[attr-defined]
    config = {
        "name": "step-time",
        "model": job["model"],
        "max_steps": 10_000,
        "batch_size": job["prompts"] * SAMPLES,
        "rollouts_per_example": SAMPLES,
        "learning_rate": LEARNING_RATE,
        "runs_directory": job["scratch"],
        "sampling": {"max_tokens": job["tokens"]},
        "env": [ENVIRONMENT],
        "eval": {"before": False, "after": False},
        "checkpointing": {"save_every_n_steps": 10_000},
        "deployment": {"threads": job["threads"]},
        **job["settings"],
    }
    run.run_training(RunConfig.model_validate(config), json_output=True)


def trl_worker(pacer: Pacer, job: dict[str, Any]) -> None:
    import torch
    from datasets import Dataset
    from transformers import TrainerCallback
    from trl import GRPOConfig, GRPOTrainer

    torch.set_num_threads(job["threads"])

    class PacingCallback(TrainerCallback):  # type: ignore[misc]
        def on_step_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            if not pacer.wait():
                os._exit(0)

        def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            pacer.done()

    def similarity(completions: list[Any], answer: list[str], **_: Any) -> list[float]:
        texts = [completion[0]["content"].strip() for completion in completions]
        pairs = zip(texts, answer, strict=True)
        return [difflib.SequenceMatcher(None, text, right, autojunk=False).ratio() for text, right in pairs]

    settings = dict(job["settings"])
    attention = settings.pop("attn_implementation", None)
    trainer = GRPOTrainer(
        model=job["model"],
        reward_funcs=similarity,
        train_dataset=Dataset.from_list(job["rows"]),
        callbacks=[PacingCallback()],
        args=GRPOConfig(
            output_dir=job["scratch"],
            per_device_train_batch_size=job["micro_batch"],
            gradient_accumulation_steps=job["prompts"] * SAMPLES // job["micro_batch"],
            num_generations=SAMPLES,
            max_completion_length=job["tokens"],
            max_steps=10_000,
            learning_rate=LEARNING_RATE,
            use_cpu=True,
            save_strategy="no",
            report_to="none",
            disable_tqdm=True,
            model_init_kwargs={"attn_implementation": attention} if attention else None,
            **settings,
        ),
    )
    trainer.train()


class AsynchronousSide(Side):
    """Processes that take one step after the other, and stand still while others have their turn."""

    steps_a_turn = STEPS_A_TURN

    def step(self) -> float:
        began = time.perf_counter()
        self.resume()
        for _ in range(self.steps_a_turn):
            self._expect()
        seconds = time.perf_counter() - began
        self.pause()
        return seconds / self.steps_a_turn

    def begin(self) -> None:
        super().begin()  # the first step
        self.pause()


def begin(stack: ExitStack, plan: Plan, options: argparse.Namespace, model: Path, tokens: int, room: Path) -> Side:
    name, python, kind, extra = plan
    scratch = room / name
    scratch.mkdir(parents=True)
    job = {
        "model": str(model),
        "tokens": tokens,
        "threads": options.threads,
        "scratch": str(scratch),
        "prompts": options.prompts,
    }
    job |= extra
    make = AsynchronousSide if "max_async_level" in extra["settings"] else Side
    side = make(name, python, __file__, kind, job, "pip install trl==1.16.0 datasets")
    stack.callback(side.close)
    side.begin()
    return side


def measure(model: Path, tokens: int, options: argparse.Namespace, scratch: Path) -> dict[str, Any]:
    from whet.envs.loading import load_environment

    environment = load_environment(ENVIRONMENT["id"], **ENVIRONMENT["args"])
    rows = [{"prompt": [dict(m) for m in row["prompt"]], "answer": row["answer"]} for row in environment.get_dataset()]
    plans: list[Plan] = [
        (name, sys.executable, "whet", {"settings": settings}) for name, settings in {**OURS, **PACKED}.items()
    ]
    theirs = {"rows": rows, "micro_batch": options.micro_batch}
    plans += [(name, options.peer_python, "trl", {**theirs, "settings": s}) for name, s in PEERS.items()]
    wanted = options.sides or (REAL_SIZE if options.model else [*OURS, *PEERS])
    plans = [plan for plan in plans if plan[0] in wanted]
    seconds: dict[str, list[float]] = {}
    processor: dict[str, list[float]] = {}
    peaks: dict[str, int] = {}
    for number, turn_takers in enumerate([[plan] for plan in plans] if options.apart else [plans]):
        with ExitStack() as stack:
            sides = [begin(stack, plan, options, model, tokens, scratch / f"{tokens}-{number}") for plan in turn_takers]
            for round_number in range(options.warmup + options.repetitions):
                for side in sides:
                    took, computed = side.timed_step()
                    print(f"{side.name}: {took:.2f} s, {computed:.2f} s of a processor", file=sys.stderr)
                    if round_number >= options.warmup:
                        seconds.setdefault(side.name, []).append(took)
                        processor.setdefault(side.name, []).append(computed / side.steps_a_turn)
            peaks |= {side.name: side.peak_bytes() for side in sides}
    print(
        f"\n{tokens} new tokens, {options.prompts} x {SAMPLES} samples, {options.threads} threads, "
        f"{options.repetitions} rounds"
    )
    print(f"{'':26}{'s/step':>8}{'spread':>18}{'processor':>11}{'peak':>12}")
    for name, all_took in seconds.items():
        spread = f"{min(all_took):.3f} .. {max(all_took):.3f}"
        of_processor = statistics.median(processor[name])
        peak = f"{peaks[name] / 2**30:.2f} GiB"
        print(f"{name:26}{statistics.median(all_took):>8.3f}{spread:>18}{of_processor:>11.3f}{peak:>12}")
    result: dict[str, Any] = {"tokens": tokens, "seconds": seconds, "processor_seconds": processor}
    result["ratios"] = print_ratios("times as long as", seconds)
    result["processor_ratios"] = print_ratios("times the processor of", processor)
    result["peak_bytes"] = peaks
    return result


def print_ratios(title: str, taken: dict[str, list[float]]) -> dict[str, dict[str, tuple[float, float, float]]]:
    """Of each side of TRL, and of a packed base, to each of whet's."""
    peers = [peer for peer in (*PEERS, *PACKED) if peer in taken]
    ratios = {ours: {peer: ratio_to(taken[ours], taken[peer]) for peer in peers} for ours in OURS if ours in taken}
    print("\n" + f"{title:26}" + "".join(f"{peer:>20}" for peer in peers))
    for ours, found in ratios.items():
        cells = (f"{median:.2f} ({low:.2f}-{high:.2f})" for median, low, high in found.values())
        print(f"{ours:26}" + "".join(f"{cell:>20}" for cell in cells))
    return ratios


def ratio_to(ours: list[float], theirs: list[float]) -> tuple[float, float, float]:
    """Median, lowest and highest of the ratios within a round."""
    ratios = [peer / mine for mine, peer in zip(ours, theirs, strict=True)]
    return statistics.median(ratios), min(ratios), max(ratios)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--model",
        help="a model as `whet train run` takes it, e.g. smollm2-135m; default: random weights, whet/tiny's shape",
    )
    parser.add_argument(
        "--micro-batch", type=int, help="samples that TRL computes at once; default: all, of --model 16"
    )
    parser.add_argument("--prompts", type=int, default=PROMPTS, help=f"of a step, {SAMPLES} samples each")
    parser.add_argument("--tokens", type=int, nargs="+", default=[24, 96], help="most new tokens of a sample")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)), help="torch threads of each side")
    parser.add_argument("--repetitions", type=int, default=7, help="rounds that count")
    parser.add_argument(
        "--sides",
        nargs="+",
        choices=[*OURS, *PACKED, *PEERS],
        help="default: all; with --model " + ", ".join(REAL_SIZE),
    )
    parser.add_argument("--apart", action="store_true", help="one side in memory at a time, with all of its steps")
    parser.add_argument("--warmup", type=int, default=2, help="rounds before those")
    parser.add_argument("--peer-python", default=sys.executable, help="the interpreter in which TRL is installed")
    parser.add_argument("--worker", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        kind, job = options.worker[0], json.loads(Path(options.worker[1]).read_text())
        {"whet": whet_worker, "trl": trl_worker}[kind](Pacer(), job)
        return
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("ended from outside"))  # so that every side is ended too
    options.micro_batch = options.micro_batch or (16 if options.model else options.prompts * SAMPLES)
    with tempfile.TemporaryDirectory() as scratch:
        if options.model:
            from whet.inference.model_names import resolve_model

            model = resolve_model(options.model)
        else:
            model = Path(scratch) / "model"
            make_model(model)
        results = [measure(model, tokens, options, Path(scratch)) for tokens in options.tokens]
    print("\n" + json.dumps({"benchmark": "step_time", "threads": options.threads, "results": results}))


if __name__ == "__main__":
    main()
