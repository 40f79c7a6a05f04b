"""`Calls`: makes the calls of a search, each within the budget and logged before it counts.

score ──▶ keys ──▶ in the log? ──▶ answered, for nothing
                      └──▶ room for all the others? ──▶ each: logged as begun, a slot, attempted, logged as finished
                                └──▶ BudgetSpent, and none is begun

The search waits in its thread; everything here runs on the event loop. How one call is attempted is `Execute`:
`RolloutExecutor` runs it as a rollout of an environment with the candidate's texts.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from concurrent.futures import CancelledError
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, cast

from whet.clients.client import Client
from whet.envs.environment import Environment
from whet.errors import GepaError, WhetError
from whet.evals.environment import needs_groups
from whet.gepa.calls.budget import CallBudget, CostCap, PromisedCalls
from whet.gepa.calls.call_log import CallLog, cost_of_row
from whet.gepa.calls.outage import Outage, endpoint_failure
from whet.gepa.components import with_components
from whet.gepa.types import (
    BudgetSpent,
    Candidate,
    Phase,
    RolloutCall,
    Scored,
    SearchExample,
    SearchObserver,
    candidate_id,
)
from whet.rollouts.groups import run_group
from whet.rollouts.jobs import seed_of
from whet.rollouts.limits import Limit
from whet.rollouts.results import state_to_output
from whet.system.cancellation import cancel
from whet.types import RolloutInput, SamplingArgs

AHEAD = 4
"""One call is logged ahead for this many that may be in flight: a kill loses these as well."""


class SearchStopped(BaseException):
    """Ends the thread of a search. A `BaseException`, so that no `except Exception` on the way catches it."""


@dataclass(frozen=True, slots=True)
class Attempt:
    """How one call went."""

    row: Mapping[str, Any]  # a result row
    failure: str | None = None  # an error of neither the model nor the task: the call has to be repeated


Execute = Callable[[Candidate, SearchExample, RolloutCall, Limit], Awaitable[Attempt]]
"""Attempts one call. The rollout itself happens inside the `Limit`, which is entered once; its scoring need not.

What holds for every call is raised as a `WhetError`.
"""


class Calls:
    """Implements `Rollouts`."""

    def __init__(
        self,
        *,
        execute: Execute,
        budget: CallBudget,
        cap: CostCap,
        log: CallLog,
        observer: SearchObserver,
        max_concurrent: int,
        outage: Outage,
        max_retries: int = 2,
        cost: Callable[[], float | None] = lambda: None,
    ) -> None:
        """Create it on the event loop that runs the calls. `cost` returns the cost of the whole run so far."""
        self._execute, self._budget, self._cap, self._log = execute, budget, cap, log
        self._observer, self._cost = observer, cost
        self._slots = asyncio.Semaphore(max_concurrent)
        # The next few are logged while they wait, so that no slot waits for the disk; not with a limit of cost, where
        # each may be the last.
        ahead = max(1, max_concurrent // AHEAD) if cap.most is None else 0
        self._written = asyncio.Semaphore(max_concurrent + ahead)
        self._outage, self._max_retries = outage, max_retries
        self._loop = asyncio.get_running_loop()
        self._requested: Counter[tuple[str, str]] = Counter()
        self._rounds: set[asyncio.Task[Any]] = set()
        self._in_flight = 0
        self._ended = asyncio.Event()  # set when a call ends, then replaced
        self._failure: BaseException | None = None
        self._closed = False
        for cost_before in log.paid:
            cap.learn(cost_before)

    @property
    def left(self) -> int:
        return self._budget.left

    def score(self, candidate: Candidate, examples: Sequence[SearchExample], phase: Phase) -> list[Scored]:
        """See `Rollouts`. Raises `GepaError` where calls keep failing because of the endpoint."""
        if self._closed:
            raise SearchStopped
        try:
            work = self._round(dict(candidate), list(examples), phase)
            return asyncio.run_coroutine_threadsafe(work, self._loop).result()
        except (CancelledError, asyncio.CancelledError):
            raise SearchStopped from None

    async def close(self) -> None:
        """Cancel the running calls; no call is begun afterwards."""
        self._closed = True
        await cancel(self._rounds)

    def affordable(self, candidates: Sequence[Candidate], examples: Sequence[SearchExample]) -> int:
        """How many of the examples, from the first on, the final comparison of `candidates` can still pay for."""
        room, needed = self._budget.room("confirmation"), 0
        for number, example in enumerate(examples):
            keys = {RolloutCall(candidate_id(candidate), example.key, 0).key for candidate in candidates}
            needed += sum(key not in self._log for key in keys)
            if needed > room:
                return number
        return len(examples)

    async def _round(self, candidate: Candidate, examples: Sequence[SearchExample], phase: Phase) -> list[Scored]:
        if self._closed:  # closed between the request and now
            raise asyncio.CancelledError
        task = asyncio.current_task()
        assert task is not None
        self._rounds.add(task)
        try:
            return await self._scored(candidate, examples, phase)
        finally:
            self._rounds.discard(task)

    async def _scored(self, candidate: Candidate, examples: Sequence[SearchExample], phase: Phase) -> list[Scored]:
        if self._failure is not None:
            raise self._failure
        calls = self._calls_for(candidate_id(candidate), examples)
        known = {call: self._log.answer(call) for call in calls if call.key in self._log}
        missing = {call: example for call, example in zip(calls, examples, strict=True) if call not in known}
        self._check_cost(len(missing), phase)
        promised = self._budget.promise(len(missing), phase)
        self._requested.update((call.candidate, call.example) for call in calls)
        self._budget.recall(call.key for call in calls)
        self._observer.phase(phase, candidate_id(candidate), len(calls))
        for scored in known.values():
            self._observer.finished(scored, self._budget.spent, self._cost(), True)
        if missing:
            known |= await self._made(candidate, missing, promised)
        return [known[call] for call in calls]

    def _calls_for(self, candidate: str, examples: Sequence[SearchExample]) -> list[RolloutCall]:
        """The next call of each example; none is counted as requested yet."""
        again: Counter[str] = Counter()
        calls = []
        for example in examples:
            sample = self._requested[candidate, example.key] + again[example.key]
            calls.append(RolloutCall(candidate, example.key, sample))
            again[example.key] += 1
        return calls

    def _check_cost(self, calls: int, phase: Phase) -> None:
        if not self._cap.affords(self._cost() or 0.0, calls, kept_back=self._kept_back(phase)):
            raise BudgetSpent(f"{calls} calls would cost more than is left of ${self._cap.most:g}")

    def _kept_back(self, phase: Phase) -> int:
        return 0 if phase == "confirmation" else self._budget.reserved

    async def _made(
        self, candidate: Candidate, calls: Mapping[RolloutCall, SearchExample], promised: PromisedCalls
    ) -> dict[RolloutCall, Scored]:
        """The results of calls that no log holds; on the disk when this returns, as far as they finished."""
        tasks = [
            asyncio.ensure_future(self._make(candidate, example, call, promised)) for call, example in calls.items()
        ]
        try:
            # Also where one fails: the others are paid for, so they are awaited.
            results = await asyncio.gather(*tasks, return_exceptions=True)
        except asyncio.CancelledError:
            await cancel(tasks)
            raise
        finally:
            promised.release()
        await self._log.flush()
        failures = [result for result in results if isinstance(result, BaseException)]
        if failures:
            raise self._failure or failures[0]
        return {result.call: result for result in results if isinstance(result, Scored)}

    async def _make(
        self, candidate: Candidate, example: SearchExample, call: RolloutCall, promised: PromisedCalls
    ) -> Scored:
        tried = 0
        while True:
            probe = _Probe()
            try:
                attempt = await self._execute(candidate, example, call, self._slot(call, promised, probe))
            except BaseException as error:
                self._outage.left(probe.probes)
                if isinstance(error, WhetError):
                    raise self._ends(error) from None
                raise
            if attempt.failure is None:
                self._outage.succeeded(probe.probes)
                return self._finished(
                    call, {**attempt.row, "phase": promised.phase, "environment": example.environment}
                )
            tried += 1
            is_news = probe.probes or not self._outage.lasts  # others that were in flight fail for the same reason
            if not self._outage.failed(probe.probes) or tried > self._max_retries:
                raise self._ends(
                    GepaError(
                        f"calls keep failing: {attempt.failure}. What has finished is kept; fix the cause, then "
                        "--resume."
                    )
                )
            if is_news:
                self._observer.note(f"{call.example} failed and is called again: {attempt.failure}")
            promised.add(1)

    def _ends(self, failure: BaseException) -> BaseException:
        """What ends the run: the first that went wrong. Nothing is begun after it."""
        self._failure = self._failure or failure
        self._outage.give_up()
        return self._failure

    def _finished(self, call: RolloutCall, row: Mapping[str, Any]) -> Scored:
        scored = self._log.finish(call, row)
        cost = cost_of_row(row)
        if cost is not None:
            self._cap.learn(cost)
        self._observer.finished(scored, self._budget.spent, self._cost(), False)
        return scored

    @asynccontextmanager
    async def _slot(self, call: RolloutCall, promised: PromisedCalls, probe: _Probe) -> AsyncIterator[None]:
        """The `limit` of one attempt: logs the call as begun, and is held while it is in flight."""
        async with self._written:
            await self._wait_for_money(promised.phase)
            self._check()
            promised.begin()
            self._in_flight += 1
            try:
                await self._log.begin(call.key, promised.phase, self._cost())
                async with self._slots:
                    probe.probes = await self._outage.enter()
                    self._check()
                    yield
            finally:
                self._in_flight -= 1
                self._ended.set()
                self._ended = asyncio.Event()

    def _check(self) -> None:
        if self._failure is not None:
            raise self._failure

    async def _wait_for_money(self, phase: Phase) -> None:
        while not self._cap.allows(self._cost() or 0.0, self._in_flight, kept_back=self._kept_back(phase)):
            if self._in_flight == 0:
                raise BudgetSpent(f"the cost has reached what {self._cap.most:g} dollars allow")
            await self._ended.wait()


@dataclass(slots=True)
class _Probe:
    """Whether an attempt probes an endpoint that has failed."""

    probes: bool = False


class RolloutExecutor:
    """Implements `Execute`."""

    def __init__(
        self,
        environments: Mapping[str, Environment],
        client: Client[Any, Any, Any, Any],
        model: str,
        sampling: Mapping[str, SamplingArgs],
        *,
        seed: int | None,
        timeout: float | None = None,
        state_columns: Sequence[str] = (),
    ) -> None:
        """`environments` and `sampling` by label; without a `seed` none is sent."""
        self._environments, self._client, self._model = environments, client, model
        self._sampling, self._seed = sampling, seed
        self._timeout, self._state_columns = timeout, list(state_columns)
        self._together = {label: needs_groups(env) for label, env in environments.items()}

    async def __call__(self, candidate: Candidate, example: SearchExample, call: RolloutCall, limit: Limit) -> Attempt:
        env = self._environments[example.environment]
        sampling = self._sampling[example.environment]
        if self._seed is not None:
            sampling = {**sampling, "seed": seed_of("gepa", self._seed, call.key)}
        with with_components(env, example.environment, candidate):
            [state] = await run_group(
                env,
                [cast(RolloutInput, example.row)],
                self._client,
                self._model,
                sampling,
                limit=limit,
                trajectory_ids=[call.key],
                independent_scoring=not self._together[example.environment],
                timeout=self._timeout,
            )
            row = state_to_output(state, self._state_columns)
            error = state.get("error")
            failed = env.parse_failed(state) if error is None else None
        row["task_id"] = row["example_id"]
        if failed is not None:
            row["parse_failed"] = failed
        return Attempt(row, endpoint_failure(error))
