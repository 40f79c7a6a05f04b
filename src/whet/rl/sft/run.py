"""From a config to a finished run of supervised fine-tuning: builds the parts and runs the loop.

Everything that can be wrong with config and data is found before a run directory is left; files and directories
that are missing before torch is imported. How a run begins and ends is in `supervision/lifecycle.py`.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from whet.clients.usage import Spending
from whet.envs.environment import Environment
from whet.errors import ConfigError, RunError
from whet.inference.loading import load_policy
from whet.rl.data.batch import TokenSequence, pack
from whet.rl.data.metrics import utilisation
from whet.rl.data.preferences import losses, preference_metrics
from whet.rl.learner.protocol import Learner, LossOutput, OptimOutput, OptimParams
from whet.rl.loop.training_loop import Evaluate, HeldOutEvaluation, TrainingLoop
from whet.rl.monitors.protocol import EvalReport, Outcome, StepReport
from whet.rl.plan import remarks
from whet.rl.sft.config import VALIDATION_LOSS, SftConfig
from whet.rl.sft.data import Batches, Example, Pick, SftData, load_data
from whet.rl.sft.dpo import CROSS_ENTROPY, margins, prefer
from whet.rl.storage.records import Records
from whet.rl.storage.weight_directory import weights_directory
from whet.rl.supervision.backends import build_learner
from whet.rl.supervision.ending import Budget, Ending, StopRequested
from whet.rl.supervision.lifecycle import TrainingRun, begin
from whet.rl.supervision.watchdog_thread import Watchdog, WatchedEngine

if TYPE_CHECKING:
    from whet.inference.policy_client import PolicyClient


# The loop of supervised fine-tuning: take rows, learn, record, validate, save. Read this first.
#
#     batches ─rows─▶ pack ─▶ learner.forward_backward (cross entropy on the answers) ─▶ learner.optim_step
#
# One step is the same whether it is in a run of its own or in the recipe of whet/tiny: `imitate`. The writes at the end
# of a step are in the order that makes a run safe to kill: metrics, ledger, and every so often a checkpoint. Everything
# computes in this process, one after the other, so what the watchdog sees is how long each part takes.

VALIDATED_AT_ONCE = 64
"""Sequences between two reports of progress."""


def imitate(
    learner: Learner, sequences: Sequence[TokenSequence], learning_rate: float, max_grad_norm: float | None
) -> tuple[LossOutput, OptimOutput]:
    """One optimiser step: the mean of -log p over the trained tokens of all `sequences` goes down."""
    batch = pack(sequences)
    loss = learner.forward_backward(batch, CROSS_ENTROPY)
    params = OptimParams(learning_rate, denominator=batch.trained_tokens, max_grad_norm=max_grad_norm)
    return loss, learner.optim_step(params)


@dataclass(slots=True, kw_only=True)
class SftLoop(TrainingLoop):
    """Drives one run of fine-tuning."""

    config: SftConfig
    data: SftData
    batches: Batches

    async def _begin(self, step: int) -> None:
        if step == 0 and self.data.validation:
            before = self._validate()
            self.records.measured(before)
            self.monitor.step(StepReport(0, before))
            self._after(0, before)

    async def _step(self, step: int) -> None:
        """One optimiser step and, where it is due, the validation of what it made. It happens whole or not at all."""
        await self._unless_asked_to_stop()
        started = time.perf_counter()
        picks = self.batches.next()
        assert picks, "the number of steps was counted from the same batches"
        examples = [self.data.train[pick.row] for pick in picks]
        self.monitor.phase("train", 0, 1)
        with self.watchdog.waiting("learn", "the run", "the learner's step", act=self.watchdog.stop, blocks=True):
            loss, optim, preference = self._learn(examples)
        self.memory.mark("learn")
        trained = [f"{pick.epoch}-{self.data.train[pick.row].number}" for pick in picks]
        metrics = step_metrics(picks, examples, loss, optim, time.perf_counter() - started)
        metrics |= preference | self.learner.metrics()
        if self._validation_is_due(step):
            metrics |= self._validate()
        metrics |= self.memory.metrics()
        with self.watchdog.waiting("records", "the run", "the disk (records)", act=self.watchdog.stop, blocks=True):
            self.records.trained(step, trained, metrics)
        self.monitor.step(StepReport(step, metrics))
        self._after(step, metrics)

    def _learn(self, examples: Sequence[Example]) -> tuple[LossOutput, OptimOutput, dict[str, float]]:
        """One optimiser step, and what else is known of it."""
        rate, limit = self.config.learning_rate, self.config.optimizer.max_grad_norm or None
        if self.config.dpo is None:
            sequences = [sequence for example in examples for sequence in example.sequences]
            return *imitate(self.learner, sequences, rate, limit), {}
        loss, optim, margins_P = prefer(self.learner, examples, self.config.dpo.beta, rate, limit)
        return loss, optim, {"optim/loss": float(losses(margins_P).mean()), **preference_metrics(margins_P)}

    def _after(self, step: int, metrics: Mapping[str, float]) -> None:
        """Whether this is to be the last step; the last one is anyway."""
        if self.ending is None or step == self.last_step:
            return
        if VALIDATION_LOSS in metrics:
            self.ending.after_validation(step, metrics[VALIDATION_LOSS])
        self.ending.after_step()

    def _validation_is_due(self, step: int) -> bool:
        if not self.data.validation or self.config.validation is None:
            return False
        interval = self.config.validation.interval
        return step == self.last_step or (interval > 0 and step % interval == 0)

    def _validate(self) -> dict[str, float]:
        """The mean of -log p over the answers of rows that are never trained on."""
        with self.watchdog.waiting("validate", "the run", "the validation loss", act=self.watchdog.stop, blocks=True):
            return self._validation_loss()

    def _validation_loss(self) -> dict[str, float]:
        if self.config.dpo is not None:
            return self._validation_of_pairs(self.config.dpo.beta)
        sequences = [sequence for example in self.data.validation for sequence in example.sequences]
        total = tokens = 0.0
        started = time.perf_counter()
        for start in range(0, len(sequences), VALIDATED_AT_ONCE):
            self.monitor.phase("validate", start, len(sequences))
            batch = pack(sequences[start : start + VALIDATED_AT_ONCE])
            total -= float(self.learner.token_logprobs(batch).astype(np.float64).sum())
            tokens += batch.trained_tokens
        return {VALIDATION_LOSS: total / tokens, "time/validate": time.perf_counter() - started}

    def _validation_of_pairs(self, beta: float) -> dict[str, float]:
        """The same of pairs: the mean of their losses, and how many are in the right order."""
        pairs, started, parts = self.data.validation, time.perf_counter(), list[Any]()
        for start in range(0, len(pairs), VALIDATED_AT_ONCE):
            self.monitor.phase("validate", start, len(pairs))
            parts.append(margins(self.learner, pairs[start : start + VALIDATED_AT_ONCE], beta))
        margins_P = np.concatenate(parts)
        return {
            VALIDATION_LOSS: float(losses(margins_P).mean()),
            "validation/accuracy": float((margins_P > 0).mean()),
            "time/validate": time.perf_counter() - started,
        }

    def _state(self) -> dict[str, Any]:
        return {"rows_taken": self.batches.taken, "data": self.data.fingerprint}

    async def _unless_asked_to_stop(self) -> None:
        """Raise `StopRequested` where a signal came: the event loop handles it within three turns."""
        for _ in range(3):
            await asyncio.sleep(0)
        if self.stop.is_set():
            raise StopRequested


def step_metrics(
    picks: Sequence[Pick], examples: Sequence[Example], loss: LossOutput, optim: OptimOutput, seconds: float
) -> dict[str, float]:
    """One line of metrics.jsonl, without its step. `time/*` and `perf/*` alone depend on the clock."""
    sequences = [sequence for example in examples for sequence in example.sequences]
    lengths = np.array([len(sequence) for sequence in sequences])
    return {
        "optim/loss": loss.loss / loss.tokens,
        "optim/grad_norm": optim.grad_norm,
        "optim/lr": optim.learning_rate,
        "optim/entropy": loss.sums["entropy"] / loss.tokens,
        "data/epoch": float(picks[-1].epoch),
        "data/rows": float(len(picks)),
        "seq_len/mean": float(lengths.mean()),
        "seq_len/max": float(lengths.max()),
        "seq_len/trained_mean": loss.tokens / len(sequences),
        "time/step": seconds,
        "time/train": seconds,
        "perf/tokens_per_s": loss.tokens / seconds,
        **utilisation(loss, seconds),
    }


def run_sft(config: SftConfig, *, resume: bool = False, step: int | None = None, json_output: bool = False) -> Outcome:
    """Fine-tune, from the start, from the newest checkpoint, or (resumed) from that of `step`.

    With `json_output` the terminal is left to the caller; the run directory is the same. Raises `WhetError` for a
    mistake that was found before training began; what goes wrong later is an `Outcome` in state `failed`.
    """
    with ExitStack() as stack:
        run = stack.enter_context(begin(config, resume=resume, quiet=json_output))
        config, model = run.plan.config, run.model
        data = load_data(config, model.renderer, context=model.arch.max_context)
        plan = run.plan.with_data(data)
        plan.check_memory()
        run.memory.said(plan.memory_by_process)
        batches = data.batches(config)
        last_step = config.max_steps or batches.left()
        if (most := config.budget.max_rows) is not None and not batches.left(most):
            raise ConfigError(f"budget.max_rows = {most} is less than the first batch: no step could be taken")
        scratch = stack.enter_context(weights_directory())
        run.memory.published = scratch
        threads, dtype = config.deployment.torch_threads(), config.inference.settled(None).dtype
        watchdog = Watchdog(config.watchdog)
        client = None
        if run.held_out:
            from whet.inference.policy_client import PolicyClient

            policy = load_policy(
                model,
                dtype=dtype,
                device=config.inference.device,
                threads=threads,
                base_dtype=config.shared_base,
            )
            engine = WatchedEngine(policy.engine, watchdog)
            client = PolicyClient(engine, model.renderer, max_context=model.arch.max_context)
        options: dict[str, Any] = {
            "threads": threads,
            "last_step": last_step,
            "dtype": dtype,
            "reference": config.reference,
        }
        learner = build_learner(run.plan, model.path, scratch, **options)
        stack.callback(learner.close)
        monitor = stack.enter_context(run.watched(learner))
        budget = Budget(config.budget, counted="trained")
        return _SftRun(
            config=config,
            directory=run.directory,
            learner=learner,
            monitor=monitor,
            watchdog=watchdog,
            memory=run.memory,
            ending=Ending(budget, config.early_stop, lambda: batches.tokens_taken, Spending(), monitor.note),
            last_step=last_step,
            data=data,
            batches=batches,
            held_out=run.held_out,
            client=client,
        ).execute(step)


@dataclass(slots=True)
class _SftRun(TrainingRun):
    """Rows of conversations, in epochs."""

    command = "whet train sft"
    has_rollouts = False

    config: SftConfig
    data: SftData
    batches: Batches
    held_out: list[tuple[str, Environment]]
    client: PolicyClient | None  # of the policy that is evaluated

    def _restore(self, step: int, state: dict[str, Any]) -> None:
        """Continue after the rows that were trained. Raises `RunError` where the rows are not the same any more."""
        if not state:
            self.batches.taken = 0
            return
        taken = state.get("rows_taken")
        if state.get("data") != self.data.fingerprint or not isinstance(taken, int):
            raise RunError(
                f"the data is not what the checkpoint of step {step} was trained on, so rows would be trained twice or "
                "never. Restore the files of [data] and [validation], or start another run from the exported weights."
            )
        self.batches.taken = taken
        if self.batches.epochs is not None:
            self.last_step = step + self.batches.left()

    def _notes(self) -> Sequence[str]:
        return [*remarks(self.config, None if self.client is None else self.client.max_context), *self.data.notes]

    def _loop(self, records: Records) -> SftLoop:
        last_step, most = self.last_step, self.config.budget.max_rows
        if most is not None:
            last_step = min(last_step, self.learner.version + self.batches.left(most))
        return SftLoop(
            config=self.config,
            data=self.data,
            batches=self.batches,
            last_step=last_step,
            learner=self.learner,
            records=records,
            monitor=self.monitor,
            evaluate=self._evaluate(),
            watchdog=self.watchdog,
            memory=self.memory,
            ending=self.ending,
        )

    def _evaluate(self) -> Evaluate | None:
        """Scores of the weights of now; None where nothing is evaluated."""
        if self.client is None:
            return None
        engine = self.client.engine
        evaluation = HeldOutEvaluation(self.config, self.held_out, self.client, self.monitor)

        async def evaluate(moment: str, step: int) -> EvalReport:
            if step or self.config.lora is not None:
                await engine.load_weights(self.learner.publish())
            return await evaluation(moment, step, engine.version)

        return evaluate

    async def _close(self) -> None:
        if self.client is not None:
            await self.client.engine.close()

    def _plan(self) -> Mapping[str, Any]:
        limit = f" or {self.config.batch_tokens} tokens" if self.config.batch_tokens else ""
        batch = f"{self.config.batch_size} of {len(self.data.train)} rows{limit}"
        return {
            "environments": [],
            "batch_size": self.config.batch_size,
            "rollouts_per_example": 1,
            "batch": batch,
        }

    def _next_command(self, weights: Path) -> str | None:
        return f"whet eval run {self.config.eval.env[0].id} -m {weights}" if self.config.samples else None
