"""`run_evals`: one or several evaluations in one go, from configs to summaries.

    configs ──▶ environments, tasks, what is there already ──▶ jobs, in order ──▶ a runner ──▶ rows ──▶ summaries

Jobs are begun in the order of evaluations and tasks, each as soon as fewer rollouts are in flight than its evaluation
allows; so an evaluation's last rollouts, which leave permits free, are joined by the first of the next. They are run in
this process (`rollouts/driver.py`) or in several (`rollouts/workers/`).
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from whet.errors import RunError
from whet.evals.analysis.summary import EvalSummary
from whet.evals.config import EvalConfig
from whet.evals.environment import EvalParts
from whet.evals.model import check_models, endpoint_of, find_models, report_speed
from whet.evals.observer import EvalObserver
from whet.evals.report import write_report
from whet.evals.sessions.evaluation import Evaluation
from whet.rollouts.driver import JobRunner, LocalRunner
from whet.rollouts.jobs import Finished, RolloutJob
from whet.rollouts.workers.pool import WorkerPool
from whet.system import cancellation
from whet.system.signals import StoppedBySignal, cancelled_by_signals

ROLLOUTS_OF_A_WORKER = 256  # in flight, before another worker is started
KEPT_AT_ONCE = 64  # earlier rows that are counted before other tasks of the event loop run


@dataclass(frozen=True, slots=True)
class Unfinished:
    """An evaluation that did not come to its end."""

    environment: str
    model: str
    saved: int  # rollouts that are on the disk
    rollouts: int
    directory: Path | None  # None: it had not begun, or nothing was to be saved


class EvaluationsInterrupted(Exception):
    """Ctrl-C or SIGTERM ended a session. Its text says what is saved and how to continue."""

    def __init__(self, signal_number: int, unfinished: Sequence[Unfinished], evaluations: int) -> None:
        self.signal_number, self.unfinished = signal_number, list(unfinished)
        super().__init__("\n".join(["interrupted", *how_to_go_on(unfinished, evaluations)]))

    @property
    def exit_code(self) -> int:
        return 128 + self.signal_number


def how_to_go_on(unfinished: Sequence[Unfinished], evaluations: int) -> list[str]:
    """What is saved of a session of so many evaluations, and what to do, a line each; none where nothing is saved."""
    kept = [one for one in unfinished if one.saved]
    if not kept:
        return []
    lines = []
    for one in unfinished:
        name = f"{one.environment} with {one.model}"
        if one.directory is None:
            lines.append(f"{name} had not begun")
        else:
            lines.append(f"{one.saved} of {one.rollouts} rollouts of {name} are saved in {one.directory}")
    which = f"={kept[0].directory}" if evaluations == 1 else ""  # of several, each finds its own
    return [*lines, f"continue with the same command and --resume{which}"]


def run_evals(configs: Sequence[EvalConfig], observer: EvalObserver) -> list[EvalSummary]:
    """Run evaluations and sum them up, in the order of `configs`.

    Raises `WhetError` for a mistake of the user, and `EvaluationsInterrupted` after Ctrl-C or SIGTERM; whatever is
    raised, what had finished is saved. Rollouts that fail are counted.
    """
    parts: EvalParts | None = None
    try:
        check_models(configs)
        observer.note(loading_line(configs))
        parts = EvalParts(configs)
        started = time.perf_counter()
        # Not on the event loop: what loads an environment may want one of its own.
        loaded = [parts.environment(number, config.max_concurrent) for number, config in enumerate(configs)]
        load_s = time.perf_counter() - started
        evaluations = [Evaluation(number, *one) for number, one in enumerate(zip(configs, loaded, strict=True))]
        find_models(configs)
        return cancellation.run(_run(_Session(evaluations, parts, observer, load_s), parts, observer))
    except BaseException:
        if parts is not None:
            cancellation.run(parts.close())
        raise
    finally:
        observer.close()


def loading_line(configs: Sequence[EvalConfig]) -> str:
    """What is being loaded, on one line: the first that is shown, before anything slow begins."""
    models = dict.fromkeys(config.model for config in configs if config.local)
    return f"loading {', '.join([*dict.fromkeys(config.label for config in configs), *models])}"


async def _run(session: _Session, parts: EvalParts, observer: EvalObserver) -> list[EvalSummary]:
    try:
        with cancelled_by_signals(say=observer.note, restore=observer.close):
            try:
                return await session.run()
            finally:
                await parts.close()
    except StoppedBySignal as stopped:
        raise EvaluationsInterrupted(stopped.number, session.unfinished(), session.evaluations) from None


class _Session:
    """Feeds a runner with jobs, and evaluations with what comes back; the `Sink` of the runner."""

    def __init__(
        self, evaluations: Sequence[Evaluation], parts: EvalParts, observer: EvalObserver, load_s: float
    ) -> None:
        self._evaluations, self._parts, self._observer, self._load_s = evaluations, parts, observer, load_s
        self._summaries: dict[int, EvalSummary] = {}
        self._ending: list[asyncio.Task[None]] = []
        self._runner: JobRunner | None = None

    async def run(self) -> list[EvalSummary]:
        """All of them; whatever ends it, what has finished is saved."""
        try:
            for evaluation in self._evaluations:
                if evaluation.config.resume is not None:  # what it has already is a part of the plan
                    evaluation.open()
            self._observer.watch(self._parts.sampling)
            self._observer.start([evaluation.planned for evaluation in self._evaluations])
            async with self._saying_how_long(), self._make_runner() as runner:
                self._runner = runner
                for evaluation in self._evaluations:
                    await self._attempt(evaluation, runner)
                await runner.drain()
                await asyncio.gather(*self._ending)
            return [self._summaries[evaluation.number] for evaluation in self._evaluations]
        except Exception:
            await self._save_the_rest()
            for line in how_to_go_on(self.unfinished(), self.evaluations):
                self._observer.note(line)
            raise
        except asyncio.CancelledError:
            await self._save_the_rest()
            raise

    @asynccontextmanager
    async def _saying_how_long(self) -> AsyncIterator[None]:
        """While answers without a limit are sampled here, a line says how long that may take, once it is measured."""
        most = sum(evaluation.most_tokens for evaluation in self._evaluations)
        speaking = asyncio.ensure_future(report_speed(self._parts, most, self.note)) if most else None
        try:
            yield
        finally:
            if speaking is not None:
                speaking.cancel()
                await asyncio.gather(speaking, return_exceptions=True)

    def _make_runner(self) -> JobRunner:
        """This process, or as many workers as the evaluations need or were given."""
        configs = [evaluation.config for evaluation in self._evaluations]
        workers = [worker_count(config) for config in configs]
        if max(workers, default=1) == 1:
            return LocalRunner(self._evaluations, self._parts, self)
        make_parts = partial(EvalParts, configs, max(workers))
        return WorkerPool(self._evaluations, workers, self._parts, make_parts, self, load_s=self._load_s)

    async def _attempt(self, evaluation: Evaluation, runner: JobRunner) -> None:
        if evaluation.config.resume is None:
            evaluation.open()
        for shown, row in enumerate(evaluation.kept_rows(), start=1):
            self._observer.rollout(evaluation.number, row)
            if shown % KEPT_AT_ONCE == 0:
                await asyncio.sleep(0)
        if not evaluation.missing:
            self._end(evaluation)
            return
        await runner.begin(evaluation.number)
        for job in evaluation.jobs():
            await runner.submit(job)

    def rollouts(self, job: RolloutJob, finished: Sequence[Finished]) -> None:
        evaluation = self._evaluations[job.source]
        evaluation.take(job, list(finished))
        for one in finished:
            self._observer.rollout(job.source, one.row)
        if not evaluation.missing:
            self._end(evaluation)

    def note(self, text: str) -> None:
        self._observer.note(text)

    def _end(self, evaluation: Evaluation) -> None:
        self._ending.append(asyncio.get_running_loop().create_task(self._finish(evaluation)))

    async def _finish(self, evaluation: Evaluation) -> None:
        assert self._runner is not None
        summary = await evaluation.end("finished")
        self._summaries[evaluation.number] = summary
        await self._report(evaluation)
        for column in sorted(evaluation.empty_columns):
            self._observer.note(f"state column '{column}' was empty in every rollout: is that its name?")
        self._observer.finish(evaluation.number, summary)
        await self._runner.end(evaluation.number)

    async def _report(self, evaluation: Evaluation) -> None:
        """`report.html` in the directory of the rows. A failure is only reported: the rows are saved."""
        if evaluation.directory is None:
            return
        try:
            await asyncio.to_thread(write_report, evaluation.directory)
        except (OSError, RunError) as error:
            self._observer.note(f"no report: {error}")

    async def _save_the_rest(self) -> None:
        """What did not come to its end keeps what it has, and says so; whatever went wrong, all of them."""
        await asyncio.gather(*self._ending, return_exceptions=True)
        for evaluation in self._evaluations:
            if evaluation.number in self._summaries:
                continue
            try:
                await evaluation.end("interrupted")
                evaluation.discard_if_empty()
            except Exception as error:  # the error that ended the session is raised; this one is only reported
                self._observer.note(f"{evaluation.directory}: {error}")

    @property
    def evaluations(self) -> int:
        return len(self._evaluations)

    def unfinished(self) -> list[Unfinished]:
        return [
            Unfinished(
                environment=evaluation.config.environment,
                model=evaluation.config.model,
                saved=evaluation.saved,
                rollouts=evaluation.rollouts,
                directory=evaluation.directory if evaluation.begun else None,
            )
            for evaluation in self._evaluations
            if not evaluation.complete
        ]


def worker_count(config: EvalConfig) -> int:
    """Processes for the rollouts of an evaluation; never more than it may have requests or rollouts in flight."""
    wanted = config.workers or math.ceil(config.max_concurrent / ROLLOUTS_OF_A_WORKER)
    most = [config.max_concurrent]
    if not config.local:
        most += [one.max_concurrent for one in endpoint_of(config).spread() if one.max_concurrent is not None]
    return max(1, min(wanted, *most))
