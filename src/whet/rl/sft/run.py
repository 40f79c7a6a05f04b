"""From a config to a finished run of supervised fine-tuning: builds the parts and runs the loop.

Everything that can be wrong with config and data is found before the run directory is made; files and directories
that are missing before torch is imported. How a run begins and ends is in `supervision/lifecycle.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from whet.clients.usage import Spending
from whet.envs.environment import Environment
from whet.errors import RunError
from whet.inference.loading import load_policy, read_model
from whet.rl.estimate import devices
from whet.rl.inference_config import InferenceConfig
from whet.rl.learner.make import make_learner
from whet.rl.learner.ranks.ranks_learner import RanksLearner, local_ranks
from whet.rl.loop.evaluation import HeldOutEvaluation
from whet.rl.loop.training_loop import Evaluate
from whet.rl.monitors.protocol import EvalReport, Outcome
from whet.rl.placement import rank_devices
from whet.rl.preflight import check_devices, check_start, load_held_out, remarks
from whet.rl.sft.batches import Batches
from whet.rl.sft.config import SftConfig
from whet.rl.sft.data import SftData, load_data
from whet.rl.sft.loop import SftLoop
from whet.rl.sft.sources import check_path
from whet.rl.storage.environments import identities_of, write_identities
from whet.rl.storage.records import Records
from whet.rl.storage.starting_point import check_starting_point, starting_model
from whet.rl.storage.weight_directory import weights_directory
from whet.rl.supervision.budgets import Budget
from whet.rl.supervision.ending import Ending
from whet.rl.supervision.lifecycle import TrainingRun, Watchers, begin, learner_options, settled
from whet.rl.supervision.watchdog_engine import WatchedEngine
from whet.rl.supervision.watchdog_thread import Watchdog

if TYPE_CHECKING:
    from whet.inference.policy_client import PolicyClient
    from whet.rl.supervision.lifecycle import AnyLearner


def run_sft(config: SftConfig, *, resume: bool = False, step: int | None = None, json_output: bool = False) -> Outcome:
    """Fine-tune, from the start, from the newest checkpoint, or (resumed) from that of `step`.

    With `json_output` the terminal is left to the caller; the run directory is the same. Raises `WhetError` for a
    mistake that was found before training began; what goes wrong later is an `Outcome` in state `failed`.
    """
    check_start(config)
    config = settled(config, resume=resume)
    paths = [section.path for section in (config.data, config.validation) if section and section.path is not None]

    def check() -> None:
        check_devices(config)
        check_starting_point(config.model, config.lora)
        for path in paths:
            check_path(path)

    loaded = [*map(str, paths)] or [str(config.data.dataset)]
    directory = begin(config, check, loaded, resume=resume, quiet=json_output)
    held_out_sections = () if config.eval is None else config.eval.env
    held_out = load_held_out(held_out_sections)
    watchers = Watchers.of(config, quiet=json_output)
    model = read_model(starting_model(config.model))
    data = load_data(config, model.renderer, context=model.arch.max_context)
    batches = data.batches(config)
    last_step = config.max_steps or batches.left()

    with ExitStack() as stack:
        scratch = stack.enter_context(weights_directory())
        threads = config.deployment.torch_threads()
        inference = (config.inference or InferenceConfig()).settled(None)
        dtype = inference.dtype
        watchdog = Watchdog(config.watchdog)
        client = None
        if held_out:
            from whet.inference.policy_client import PolicyClient

            policy = load_policy(model, dtype=dtype, device=inference.device, threads=threads)
            engine = WatchedEngine(policy.engine, watchdog)
            client = PolicyClient(engine, model.renderer, max_context=model.arch.max_context)
        of_rank = max(1, threads // config.ranks)
        options = learner_options(config, scratch, threads=of_rank, max_steps=last_step, publish_dtype=dtype)
        make: Callable[..., AnyLearner] = make_learner
        if config.ranks > 1:
            on = rank_devices(devices(config)["learner"], config.ranks)
            make = local_ranks(on, scratch, timeout_s=config.learner.rank_timeout_seconds)
        learner = make(model.path, **options)
        stack.callback(learner.close)
        children = [learner.log] if isinstance(learner, RanksLearner) else []
        monitor = stack.enter_context(watchers.of_run(directory, config, resume=resume, children=children))
        write_identities(directory.path, identities_of((), held_out_sections))
        budget = Budget(config.budget, counted="trained")
        ending = Ending(budget, config.early_stop, lambda: batches.tokens_taken, Spending(), monitor.note)
        parts = (config, directory, learner, monitor, watchdog, ending, last_step)
        return _SftRun(*parts, data, batches, held_out, client).execute(step)


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
