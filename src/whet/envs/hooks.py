"""`Hooked`: finds and runs the `@stop`, `@setup`, `@cleanup` and `@teardown` methods of an environment.

Stop conditions and clean-up handlers, plain or async, take any of `state`, `env` and `task`. An exception in one is
recorded as the rollout's error (`EnvError`), with the place where it was raised.
"""

from __future__ import annotations

import asyncio
import atexit
import logging
import weakref
from abc import ABC
from collections.abc import Callable, Mapping
from typing import Any, final

from whet.calls import CallSpec, call_all, describe, errors_to, is_awaitable, resolve
from whet.decorators import discover_decorated
from whet.errors import EnvError, Error, SandboxFileError
from whet.rollouts.limits import to_the_end
from whet.rubrics.rubric import Rubric
from whet.types import State

Handler = Callable[..., Any]
logger = logging.getLogger(__name__)
_open: weakref.WeakSet[Hooked] = weakref.WeakSet()
"""Environments with `@teardown` handlers that are not closed yet: closed at exit."""


class Hooked(ABC):
    rubric: Rubric

    def _find_hooks(self) -> None:
        """To be called once, at construction. The lists hold functions, as in 0.1, and may be added to."""
        self._specs: dict[Handler, CallSpec] = {}
        self._stop_conditions: list[Handler] = discover_decorated(self, "stop")
        self._setup_handlers: list[Handler] = discover_decorated(self, "setup")
        self._cleanup_handlers: list[Handler] = discover_decorated(self, "cleanup")
        self._teardown_handlers: list[Handler] = discover_decorated(self, "teardown")
        self._closed = False
        if self._teardown_handlers:
            if not _open:
                atexit.unregister(_close_open)
                atexit.register(_close_open)
            _open.add(self)

    @final
    async def is_completed(self, state: State, **kwargs: Any) -> bool:
        """Whether a stop condition holds; the first that does is recorded."""
        for condition in self._stop_conditions:
            holds = self._invoke(condition, state, kwargs)
            if await holds if is_awaitable(holds) else holds:
                state["is_completed"] = True
                state["is_truncated"] = bool(state.get("is_truncated")) or any(
                    step.get("is_truncated", False) for step in state["trajectory"]
                )
                state["stop_condition"] = self._spec_of(condition).name
                return True
        return False

    async def cleanup(self, state: State) -> None:
        """Run the `@cleanup` handlers, once per rollout. One that raises does not keep the others from running."""
        if getattr(state, "cleaned_up", False):
            return
        object.__setattr__(state, "cleaned_up", True)
        for handler in self._cleanup_handlers:
            with self._recording(state, self._spec_of(handler).name):
                await resolve(self._invoke(handler, state))

    def _recording(self, state: State, where: str) -> errors_to:
        """Record an exception as the rollout's error; a mistake of the user is raised."""
        return errors_to(lambda error: self._record_error(state, error, where))

    def _record_error(self, state: State, error: Exception, where: str) -> None:
        """Make the rollout errored, unless it is already, or code in its sandbox caused the failure."""
        if isinstance(error, SandboxFileError) and where != "setup_state":
            state["sandbox_failure"] = str(error)
            return
        if not isinstance(error, Error):
            wrapped = EnvError(f"{where} raised {describe(error, type(self))}")
            wrapped.__cause__ = error
            error = wrapped
        if state.get("error") is None:
            state["error"] = error

    def _spec_of(self, handler: Handler) -> CallSpec:
        """A handler's signature, read once. Handlers may have been added to the lists after construction."""
        spec = self._specs.get(handler)
        if spec is None:
            spec = self._specs[handler] = CallSpec.of(handler)
        return spec

    def _invoke(self, handler: Handler, state: State, extra: Mapping[str, Any] | None = None) -> Any:
        spec = self._spec_of(handler)
        if spec.takes_state:
            return handler(state)
        return handler(**spec.select({"state": state, "env": self, "task": state["task"], **(extra or {})}))

    async def close(self) -> None:
        """Run the `@teardown` handlers of rubric and environment, once; to the end, even if cancelled."""
        if self._closed:
            return
        self._closed = True
        await to_the_end(call_all([self.rubric.teardown, *self._teardown_handlers]))

    async def _teardown(self) -> None:
        """`close`, by its name of 0.1."""
        await self.close()


def _close_open() -> None:
    for env in list(_open):
        try:
            asyncio.run(env.close())
        except Exception:  # the others are closed too
            logger.exception("closing %s at exit", type(env).__name__)
