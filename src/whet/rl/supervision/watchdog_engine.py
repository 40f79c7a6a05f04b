"""An engine that is watched: how long requests have waited without any answer, and how much it has
sampled, in all and for each rollout under way."""

from __future__ import annotations

from dataclasses import dataclass, field

from whet.inference.protocol import (
    Engine,
    OnTokens,
    Sample,
    SampleRequest,
    WeightUpdate,
    engine_metrics,
    sleeping_engine,
    trouble_text,
)
from whet.rl.data.lengths import Lengths
from whet.rl.supervision.watchdog import ENGINE, Wait
from whet.rl.supervision.watchdog_thread import Watchdog, in_context_of


@dataclass(slots=True)
class WatchedEngine:
    """Another engine, as it is. One wait spans from a request, or the answer before, to the next answer."""

    engine: Engine
    watchdog: Watchdog
    lengths: Lengths = field(default_factory=Lengths)
    tokens: int = 0  # sampled since it was made
    _asking: int = 0
    _wait: Wait | None = None

    @property
    def version(self) -> int:
        return self.engine.version

    @version.setter
    def version(self, version: int) -> None:
        self.engine.version = version

    @property
    def recomputes(self) -> bool:
        return self.engine.recomputes

    async def sample(self, request: SampleRequest, *, on_tokens: OnTokens | None = None) -> Sample:
        self._asking += 1
        wait = self._wait or self._begin()
        turn, count = self.lengths.ask(request.rollout_key, request.params.max_tokens), None
        try:
            with in_context_of(wait):  # a task that the engine starts for itself is not the rollout's
                if on_tokens is None:
                    sample = await self.engine.sample(request)
                else:
                    sample = await self.engine.sample(request, on_tokens=on_tokens)
            self.tokens += (count := len(sample.ids))
            self._end(answered=True)
            return sample
        finally:
            self.lengths.end(turn, count)
            self._asking -= 1
            if not self._asking:
                self._end(answered=False)
            elif self._wait is None:
                self._begin()

    async def load_weights(self, update: WeightUpdate) -> None:
        await self.engine.load_weights(update)

    async def sleep(self) -> int:
        return await sleeping_engine(self.engine).sleep()

    async def wake(self, update: WeightUpdate) -> None:
        await sleeping_engine(self.engine).wake(update)

    async def unload_adapter(self, name: str) -> None:
        await self.engine.unload_adapter(name)

    async def release(self, rollout_key: str) -> None:
        await self.engine.release(rollout_key)

    async def close(self) -> None:
        await self.engine.close()

    def metrics(self) -> dict[str, float]:
        return engine_metrics(self.engine)

    def _begin(self) -> Wait:
        dog = self.watchdog
        self._wait = dog.waits.begin(
            ENGINE, "every rollout", "an answer of the engine", dog.clock(), dog.stop, detail=self._describe
        )
        return self._wait

    def _end(self, *, answered: bool) -> None:
        if self._wait is not None:
            self.watchdog.waits.end(self._wait, self.watchdog.clock(), usual=answered)
            self._wait = None

    def _describe(self) -> str:
        trouble = trouble_text(self.engine)
        return f"{self._asking} requests are waiting{f'; {trouble}' if trouble else ''}"
