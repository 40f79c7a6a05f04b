"""From a config to a finished run of supervised fine-tuning: builds the parts and runs the loop.

Everything that can be wrong with config and data is found before a run directory is left; files and directories
that are missing before torch is imported. How a run begins and ends is in `supervision/lifecycle.py`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from whet.clients.usage import Spending
from whet.envs.environment import Environment
from whet.errors import RunError
from whet.inference.loading import load_policy
from whet.rl.loop.evaluation import HeldOutEvaluation
from whet.rl.loop.training_loop import Evaluate
from whet.rl.monitors.protocol import EvalReport, Outcome
from whet.rl.plan import remarks
from whet.rl.sft.config import SftConfig
from whet.rl.sft.data import Batches, SftData, load_data
from whet.rl.sft.loop import SftLoop
from whet.rl.storage.records import Records
from whet.rl.storage.weight_directory import weights_directory
from whet.rl.supervision.backends import build_learner
from whet.rl.supervision.ending import Budget, Ending
from whet.rl.supervision.lifecycle import TrainingRun, begin
from whet.rl.supervision.watchdog_thread import Watchdog, WatchedEngine

if TYPE_CHECKING:
    from whet.inference.policy_client import PolicyClient


def run_sft(config: SftConfig, *, resume: bool = False, step: int | None = None, json_output: bool = False) -> Outcome:
    """Fine-tune, from the start, from the newest checkpoint, or (resumed) from that of `step`.

    With `json_output` the terminal is left to the caller; the run directory is the same. Raises `WhetError` for a
    mistake that was found before training began; what goes wrong later is an `Outcome` in state `failed`.
    """
    with ExitStack() as stack:
        run = stack.enter_context(begin(config, resume=resume, quiet=json_output))
        config, model = run.plan.config, run.model
        data = load_data(config, model.renderer, context=model.arch.max_context)
        batches = data.batches(config)
        last_step = config.max_steps or batches.left()
        scratch = stack.enter_context(weights_directory())
        threads, dtype = config.deployment.torch_threads(), config.sampler.dtype
        watchdog = Watchdog(config.watchdog)
        client = None
        if run.held_out:
            from whet.inference.policy_client import PolicyClient

            policy = load_policy(model, dtype=dtype, device=config.sampler.device, threads=threads)
            engine = WatchedEngine(policy.engine, watchdog)
            client = PolicyClient(engine, model.renderer, max_context=model.arch.max_context)
        learner = build_learner(run.plan, model.path, scratch, threads=threads, last_step=last_step, dtype=dtype)
        stack.callback(learner.close)
        monitor = stack.enter_context(run.watched(learner))
        budget = Budget(config.budget, counted="trained")
        return _SftRun(
            config=config,
            directory=run.directory,
            learner=learner,
            monitor=monitor,
            watchdog=watchdog,
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
        return SftLoop(
            config=self.config,
            data=self.data,
            batches=self.batches,
            last_step=self.last_step,
            learner=self.learner,
            records=records,
            monitor=self.monitor,
            evaluate=self._evaluate(),
            watchdog=self.watchdog,
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
        return f"whet eval run {self.config.eval.env[0].id} -m {weights}" if self.config.eval else None
