"""From a config to a finished search: loads, plans, opens the directory, searches in a thread, compares in the end.

Mistakes in a config are found before the directory is made, and nothing is paid for before the plan is printed. Every
end, also a failure or an interruption, becomes a `SearchOutcome`, and finished work is kept.
"""

from __future__ import annotations

import asyncio
import dataclasses
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AsyncExitStack
from typing import Any

from whet import __version__
from whet.calls import call_all
from whet.clients.config import Price
from whet.clients.usage import Spending, spending
from whet.envs.answers import check_answers
from whet.envs.environment import Environment
from whet.envs.loading import load_environment
from whet.errors import ConfigError, DatasetError
from whet.evals.config import EvalConfig
from whet.evals.model import (
    Models,
    about_length,
    check_models,
    endpoint_of,
    find_models,
    most_tokens,
    report_speed,
)
from whet.gepa.calls.budget import CallBudget, CostCap
from whet.gepa.calls.call_log import CallLog
from whet.gepa.calls.calls import Calls, RolloutExecutor
from whet.gepa.calls.outage import Outage
from whet.gepa.components import best_files, seed_candidate
from whet.gepa.config import GepaConfig
from whet.gepa.options import evaluate_commands, resume_command
from whet.gepa.plan import describe, held_out_wanted, make_plan
from whet.gepa.progress import SearchProgress
from whet.gepa.records.candidates import CandidateWriter
from whet.gepa.records.run_directory import SearchDirectory, identity_of
from whet.gepa.reflection.log import ReflectionLog
from whet.gepa.reflection.reflection import Reflection
from whet.gepa.reflection.rollout_records import JUDGED
from whet.gepa.splits import EnvRows, Splits, split_examples
from whet.gepa.types import BudgetSpent, CandidateRecord, Forwarder, SearchObserver, SearchOutcome, SearchResult
from whet.records.directory import REFLECTIONS, failure_message, report_or_note
from whet.records.lock import EndState
from whet.rollouts.pace import paced
from whet.system import cancellation
from whet.system.env_files import load_env_files
from whet.system.offline import check_loopback, go_offline
from whet.system.signals import StoppedBySignal, cancelled_by_signals

FEWEST_PAIRS = 2
"""Held-out examples without which there is nothing to compare."""


def run_search(
    config: GepaConfig, observer: SearchObserver, *, resume: bool = False, dry_run: bool = False
) -> SearchOutcome:
    """Search, from the start or (resumed) with a log that answers. `observer` is closed in the end.

    With `dry_run` only the plan is returned. Raises `WhetError` for a mistake that was found before the search began.
    """
    environments: dict[str, Environment] = {}
    try:
        _prepare(config)
        directory = SearchDirectory(config.directory)
        if not resume:
            directory.check_new()
        models = [config.policy(), config.reflector()]
        check_models(models)
        if not dry_run:
            named = [section.label for section in config.env]
            observer.note(f"loading {', '.join([*named, *dict.fromkeys(one.model for one in models if one.local)])}")
        for section in config.env:
            environments[section.label] = load_environment(section.id, **section.loader_args())
        search = _Search(config, observer, environments)
        directory.check(search.identity, config.max_calls, resume=resume)
        if not dry_run:
            find_models(models)
        plan = [*describe(search.plan), *search.cautions()]
        if dry_run:
            return SearchOutcome("planned", "nothing was run; without --dry-run it begins", config.directory, plan=plan)
        for line in plan:
            observer.note(line)
        for name in sorted(name for name, text in search.seed.items() if not text):
            observer.note(f"{name}: there is none yet, so the search begins from an empty text (or from --seed-prompt)")
        observer.planned(search.plan)
        directory.open(config, search.identity, resume=resume)
        try:
            return search.execute(directory)
        finally:
            directory.close()
    finally:
        observer.close()
        cancellation.run(_close(environments.values()))  # a search that ran has closed them


def _prepare(config: GepaConfig) -> None:
    if config.offline:
        go_offline()
        for model in (config.policy(), config.reflector()):
            for url in model.base_url.split(",") if model.base_url is not None else ():
                check_loopback(url)
    load_env_files(config.env_file)


class _Search:
    """The parts of one search, and how each of its ends is recorded."""

    def __init__(self, config: GepaConfig, observer: SearchObserver, environments: Mapping[str, Environment]) -> None:
        """Find the examples and make the plan; nothing is written."""
        self.config, self.environments = config, environments
        self.policy, self.reflector = config.policy(), config.reflector()
        self.seed = seed_candidate(environments, config.components, config.seed_prompt)
        for env in environments.values():
            env.set_concurrency(config.max_concurrent)
        self.splits = self._split()
        self.plan = make_plan(config, self.splits, _price(self.policy))
        if config.max_cost is not None and not (_price(self.policy) and _price(self.reflector)):
            raise ConfigError(
                "max_cost needs the prices of both models: give each a short name in configs/endpoints.toml, with its "
                "price = { input = ..., output = ... } in dollars for a million tokens."
            )
        self.identity = identity_of(config, self.policy, self.reflector, self.seed, self.splits)
        self.observer = observer
        self.progress = SearchProgress()
        self.cost: Callable[[], float | None] = lambda: None

    def _split(self) -> Splits:
        sources = []
        for section in self.config.env:
            env = self.environments[section.label]
            train, held_out = env.build_dataset(), env.build_eval_dataset()
            rows = train if train is not None else held_out
            if rows is None or not len(rows):
                raise DatasetError(f"environment {section.id}: there is no task to learn from")
            for split in (train, held_out):
                check_answers(env, split or (), section.id)
            sources.append(EnvRows(section.label, rows, held_out if train is not None else None, section.weight))
        return split_examples(
            sources,
            num_train=self.config.num_train,
            num_val=self.config.num_val,
            held_out=held_out_wanted(self.config),
            exact=self.config.gepa.held_out is not None,
            seed=self.config.search_seed,
        )

    def cautions(self) -> list[str]:
        """Lines about answers that may take long."""
        given = self._sampling.values()
        lines = (about_length(self.policy, one, self.config.max_calls, "--max-tokens") for one in given)
        return [line for line in dict.fromkeys(lines) if line]

    @property
    def _sampling(self) -> dict[str, Any]:
        """Sampling arguments in each environment."""
        return {label: self.policy.resolved_sampling(env.sampling_args) for label, env in self.environments.items()}

    def execute(self, directory: SearchDirectory) -> SearchOutcome:
        """Search until the end, an interruption or a failure; in each case records and report are left whole."""
        self.directory = directory
        self.began = time.monotonic() - directory.seconds
        self.observer = Several(self.observer, CandidateWriter(directory.path), self.progress)
        directory.write(plan=self.plan, seed_candidate=self.seed, version_info={"whet": __version__})
        try:
            reason = cancellation.run(self._run())
            return self._ended("finished", reason)
        except StoppedBySignal as stopped:
            return self._ended("interrupted", "stopped; what has finished is kept", 128 + stopped.number)
        except BaseException as error:
            failure = failure_message(error, directory.path)
            if failure is not None:
                return self._ended("failed", failure, 1)
            directory.write(state="failed", reason=f"{type(error).__name__}: {error}", **self._so_far())
            raise

    async def _run(self) -> str:
        """Why the search ended. Raises `StoppedBySignal` on Ctrl-C or SIGTERM."""
        models = Models([self.policy, self.reflector])
        async with AsyncExitStack() as stack:
            stack.enter_context(cancelled_by_signals(say=self.observer.note, restore=self.observer.close))
            stack.push_async_callback(_close, self.environments.values())
            stack.push_async_callback(models.close)
            spent = stack.enter_context(spending())
            if not self.policy.local:
                stack.enter_context(paced())
            log = CallLog(self.directory.path)
            reflections = ReflectionLog(self.directory.path / REFLECTIONS)
            cost = _Cost(spent, log, reflections)
            stack.callback(lambda: log.close(cost()))
            calls = self._calls(await models.client(0), log, cost)
            stack.push_async_callback(calls.close)
            self.cost = cost
            self.observer.watch(models.sampling)
            most = max(most_tokens(self.policy, one, self.config.max_calls) for one in self._sampling.values())
            if most:
                speaking = asyncio.ensure_future(report_speed(models, most, self.observer.note))
                stack.callback(speaking.cancel)
            reflection = self._reflection(await models.client(1), reflections)
            # In a thread: the library calls, and waits for what the event loop does.
            return await asyncio.to_thread(self._search, calls, reflection, asyncio.get_running_loop())

    def _calls(self, client: Any, log: CallLog, cost: Callable[[], float | None]) -> Calls:
        config = self.config
        judged = (JUDGED,) if "judge" in config.components else ()
        execute = RolloutExecutor(
            self.environments,
            client,
            self.policy.model,
            self._sampling,
            seed=_seed_sent(self.policy),
            timeout=config.timeout,
            state_columns=(*config.state_columns, *judged),
        )
        return Calls(
            execute=execute,
            budget=CallBudget(config.max_calls, self.plan.reserved, log.begun, log.confirming),
            cap=CostCap(config.max_cost),
            log=log,
            observer=self.observer,
            max_concurrent=config.max_concurrent,
            outage=Outage(config.gepa.max_retries, config.gepa.retry_delay),
            max_retries=config.gepa.max_retries,
            cost=cost,
        )

    def _reflection(self, client: Any, log: ReflectionLog) -> Reflection:
        return Reflection(
            client,
            self.reflector.model,
            self.config.gepa,
            log,
            self.observer,
            asyncio.get_running_loop(),
            sampling=self.reflector.resolved_sampling({}),
            seed=_seed_sent(self.reflector),
        )

    def _search(self, calls: Calls, reflection: Reflection, loop: asyncio.AbstractEventLoop) -> str:
        """The search and the final comparison, in a thread of their own; why the search ended."""
        from whet.gepa.search.search import search

        observer = FromThread(self.observer, loop)
        result = search(self.config, self.seed, self.splits.train, self.splits.val, calls, reflection, observer)
        self._confirm(result, calls, observer)
        return result.ended

    def _confirm(self, result: SearchResult, calls: Calls, observer: SearchObserver) -> None:
        from whet.gepa.search.search import confirm

        best, held_out = result.best, self.splits.held_out
        if best.verdict == "seed" or not held_out:
            return
        pairs = calls.affordable([self.seed, best.texts], held_out)
        if pairs < FEWEST_PAIRS:
            observer.note("no calls are left for the final comparison; raise -B and continue with --resume")
            return
        try:
            observer.confirmed(confirm(self.seed, best.texts, held_out[:pairs], calls))
        except BudgetSpent as error:
            observer.note(f"the final comparison is not finished: {error}; raise the budget and continue with --resume")

    def _ended(self, state: EndState, reason: str, exit_code: int = 0) -> SearchOutcome:
        from whet.gepa.report import write_report

        progress, directory = self.progress, self.directory
        evaluate: list[str] = []
        if progress.best is not None:
            directory.write_files(best_files(progress.best.texts, self.environments))
            if state == "finished":
                evaluate = evaluate_commands(self.config, self.policy, self.environments, progress.best.texts)
        directory.write(state=state, reason=reason, evaluate=evaluate, **self._so_far())
        return SearchOutcome(
            state=state,
            message=reason,
            directory=directory.path,
            spent=progress.spent,
            max_calls=self.config.max_calls,
            cost=self.cost(),
            candidates=progress.proposals,
            accepted=progress.count("accepted"),
            seed_mean=progress.seed.val_mean if progress.seed is not None else None,
            best=progress.best,
            confirmation=progress.confirmation,
            evaluate=evaluate,
            report=report_or_note(write_report, directory.path, self.observer.note),
            resume=None if state == "finished" else resume_command(self.config),
            exit_code=exit_code,
        )

    def _so_far(self) -> dict[str, Any]:
        progress = self.progress
        best = progress.best
        return {
            "time": time.monotonic() - self.began,
            "spent": progress.spent,
            "cost": self.cost(),
            "proposals": progress.proposals,
            "accepted": progress.count("accepted"),
            "best": None if best is None else {"id": best.id, "number": best.number, "val_mean": best.val_mean},
            "confirmation": progress.confirmation,
        }


class _Cost:
    """Dollars of a run so far, those of earlier processes included; None where no price is known."""

    def __init__(self, spent: Spending, log: CallLog, reflections: ReflectionLog) -> None:
        self._spent = spent
        self._before = max(log.cost, sum(log.paid) + (reflections.cost or 0.0))

    def __call__(self) -> float | None:
        if self._spent.cost is None:
            return self._before or None
        return self._before + self._spent.cost


async def _close(environments: Iterable[Environment]) -> None:
    await call_all(env.close for env in environments)


def _price(model: EvalConfig) -> Price | None:
    """The price of a model behind an endpoint; None where it is not known, or the model is run here."""
    return None if model.local else endpoint_of(model).spread()[0].price


def _seed_sent(model: EvalConfig) -> int | None:
    """The seed that seeds of requests are made of; None where none are sent."""
    if not model.local and endpoint_of(model).client_type == "anthropic_messages":
        return None
    return model.resolved_seed


class Several(Forwarder):
    """Forwards to all of them in order. All are closed, also where closing one fails."""

    def __init__(self, *observers: SearchObserver) -> None:
        self._observers = observers

    def send(self, event: str, *args: Any) -> None:
        for one in self._observers:
            getattr(one, event)(*args)

    def close(self) -> None:
        failure: Exception | None = None
        for one in self._observers:
            try:
                one.close()
            except Exception as error:
                failure = failure or error
        if failure is not None:
            raise failure


class FromThread(Forwarder):
    """Forwards each event to the event loop, in order; a record as it is at that moment."""

    def __init__(self, observer: SearchObserver, loop: asyncio.AbstractEventLoop) -> None:
        self._observer, self._loop = observer, loop

    def send(self, event: str, *args: Any) -> None:
        self._loop.call_soon_threadsafe(getattr(self._observer, event), *args)

    def decided(self, record: CandidateRecord) -> None:
        now = dataclasses.replace(record, minibatch=dict(record.minibatch), val_rewards=dict(record.val_rewards))
        self.send("decided", now)

    def proposed(self, number: int, parent: str, texts: Mapping[str, str], changed: Sequence[str]) -> None:
        self.send("proposed", number, parent, dict(texts), list(changed))
