"""When the functions of taskset, harness and toolsets run in a rollout and in a group, and the objects they keep.

Updates run when a rollout is complete, cleanups when it has been scored. A rollout that will not be scored (it failed
or was cancelled) is cleaned up at its end; one whose scoring never came is cleaned up when the environment is closed.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

from whet.calls import describe, errors_to, resolve
from whet.decorators import cleanup, teardown
from whet.envs.multiturn_env import MultiTurnEnv
from whet.errors import EnvError, Error, WhetError
from whet.rollouts.limits import to_the_end
from whet.rubrics.rubric import mark_unscored
from whet.tasksets.programs.session import SessionGateway, make_gateway
from whet.tasksets.resolve import TasksetPlan
from whet.tasksets.signals import Function, Kind, in_order
from whet.tasksets.state import GROUP, TaskState
from whet.tasksets.tools.bindings import Objects, bound_arguments
from whet.types import State

if TYPE_CHECKING:
    from whet.tasksets.resolve import MCPTools


class Lifecycle(MultiTurnEnv):
    _plan: TasksetPlan

    def _keep_nothing_yet(self) -> None:
        self._objects = Objects()
        self._retired: list[MCPTools] = []
        self._gateway: SessionGateway | None = None
        self._unscored: dict[int, TaskState] = {}  # complete, and waiting for their scores

    @cleanup(priority=50)
    async def update_state(self, state: TaskState) -> None:
        """The updates of one rollout, once it is complete."""
        if state["is_completed"]:
            for function in self._functions("update", state):
                with self._recording(state, f"update '{function.name}'"):
                    await self._call(function, state)

    @cleanup(priority=-1000)
    async def clean_up_unscored(self, state: TaskState) -> None:
        """Clean up at once if the rollout will not be scored; otherwise after its scoring."""
        if state["error"] is not None or not state["is_completed"]:
            await self.clean_up(state)
        else:
            self._unscored[id(state)] = state

    async def clean_up(self, state: State) -> None:
        """Run all `@cleanup` functions of taskset, harness and toolsets, even if one raises; once per rollout."""
        if not isinstance(state, TaskState) or state.cleaned:
            return
        state.cleaned = True
        self._unscored.pop(id(state), None)
        await to_the_end(self._clean_up(state))

    async def _clean_up(self, state: TaskState) -> None:
        for function in self._functions("cleanup", state):
            with self._failing(state, f"cleanup '{function.name}'"):
                await self._call(function, state)
        tools, state.tools_now, state.session = state.tools_now, None, None
        if tools is not None:
            rollout = tools.scopes.keys["rollout"]
            with self._failing(state, "closing the objects of its tools"):
                if self._plan.mcp is not None:
                    await self._plan.mcp.close_own(rollout)
                await self._objects.release(rollout)

    @contextmanager
    def _failing(self, state: State, where: str) -> Iterator[None]:
        """Like `_recording`, for a rollout that may have been scored already."""

        def fail(error: Exception) -> None:
            self._record_error(state, error, where)
            state["reward"] = state["advantage"] = None

        with errors_to(fail):
            yield

    @property
    def updates_groups(self) -> bool:
        return bool(self._plan.for_groups["update"])

    async def update_group(self, states: Sequence[State]) -> None:
        await self._call_for_group("update", states)

    async def clean_up_group(self, states: Sequence[State]) -> None:
        await self._call_for_group("cleanup", states)
        for key in {state["runtime"].get(GROUP) for state in states if isinstance(state, TaskState)} - {None}:
            with errors_to(partial(mark_unscored, states, "closing the objects of its tools")):
                await self._objects.release(f"group {key}")

    @teardown
    async def close_parts(self) -> None:
        """Clean up rollouts that were never scored, run the teardowns, then close the objects of toolsets."""
        for state in list(self._unscored.values()):
            await self.clean_up(state)
        try:
            for function in self._plan.teardowns:
                await resolve(function.function())
        finally:
            for servers in (self._plan.mcp, *self._retired):
                if servers is not None:
                    await servers.close()
            if self._plan.harness.command is not None:
                await self._plan.harness.command.close()
            if self._gateway is not None:
                await self._gateway.close()
            await self._objects.release_all()

    def _gateway_of_programs(self) -> SessionGateway:
        """The gateway for libraries in programs that need the address of a model."""
        if self._gateway is None:
            self._gateway = make_gateway("state.get_endpoint_config()")
        return self._gateway

    def _functions(self, kind: Kind, state: TaskState) -> Sequence[Function]:
        """The functions of one rollout, in order: those of taskset and harness, and of its toolsets."""
        own = self._plan.own[kind]
        toolsets = state.tools_now.toolsets if state.tools_now is not None else []
        more = [function for toolset in toolsets for function in toolset.functions(kind) if function.stage == "rollout"]
        return in_order([*own, *more]) if more else own

    async def _call(self, function: Function, state: TaskState) -> Any:
        arguments = function.spec.select({"task": state["task"], "state": state})
        if function.owner is not None and function.owner.bindings and state.tools_now is not None:
            sources = bound_arguments(function.owner.bindings, function.name)
            arguments.update(await state.tools_now.bound(function.owner, sources))
        try:
            return await resolve(function.function(**arguments))
        except (Error, WhetError):
            raise
        except Exception as error:
            raise EnvError(f"{function.kind} '{function.name}' raised {describe(error)}") from error

    async def _call_for_group(self, kind: Kind, states: Sequence[State]) -> None:
        if not states:
            return
        for function in self._plan.for_groups[kind]:
            offered = {"tasks": [state["task"] for state in states], "states": list(states)}
            with errors_to(partial(mark_unscored, states, f"{kind} '{function.name}'")):
                await resolve(function.function(**function.spec.select(offered)))
