"""`SandboxEnv`: the model has a shell (`bash`) in a sandbox of its own, one for each rollout.

The sandbox is made in the background while the model takes its first turn, and ended when the rollout is over, however
it ends. What the model's command does wrong is text for the model: a non-zero exit, a time-out, too much output, no
memory left. What the host does wrong is a `SandboxError` of that rollout, which may be attempted again.

Interface and metrics are those of `verifiers` 0.1.14, whose sandboxes are a hosted service's.
"""

from __future__ import annotations

import asyncio
import functools
import random
import signal
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, TypedDict, TypeVar

from pydantic import ValidationError

from whet.decorators import cleanup, teardown
from whet.envs.sandboxed import programs as host_programs
from whet.envs.sandboxed.client import CommandTimeoutError, SandboxClient, encodable
from whet.envs.sandboxed.client import SandboxCreationError as SandboxCreationError
from whet.envs.sandboxed.client import SandboxNotReadyError as SandboxNotReadyError
from whet.envs.sandboxed.request import CreateSandboxRequest, as_request, invalid_request, spec_of
from whet.envs.tool_env import StatefulToolEnv
from whet.errors import InfraError, SandboxError, WhetError
from whet.rubrics.rubric import Rubric
from whet.sandboxes.protocol import MIB, ExecResult
from whet.types import Messages, State, ToolMessage

T = TypeVar("T")


class SandboxState(TypedDict):
    """What a rollout knows of its sandbox; times are seconds."""

    ready: bool
    ready_wait_time: float
    command_execution_times: list[float]


class SandboxTimesRubric(Rubric):
    """Records how long a rollout waited for its sandbox, and how long its commands took."""

    def __init__(self) -> None:
        super().__init__()
        self.add_metric(self.sandbox_ready_wait_time)
        self.add_metric(self.sandbox_command_execution_time)

    def sandbox_ready_wait_time(self, state: State) -> float:
        """Seconds that the first command waited for the sandbox."""
        return float(state["sandbox_state"]["ready_wait_time"])

    def sandbox_command_execution_time(self, state: State) -> float:
        """Mean seconds of a command; 0 where there was none."""
        times = state["sandbox_state"]["command_execution_times"]
        return sum(times) / len(times) if times else 0.0


SandboxMonitorRubric = SandboxTimesRubric
"""Its name in the 0.1 contract, which has another class of that name in `envs.experimental.sandbox_mixin`."""


class SandboxEnv(StatefulToolEnv):
    """The model has a shell, `bash`, in a sandbox of its own for each rollout.

    Args:
        sandbox_name: what the sandboxes are for, in logs.
        docker_image: image for the docker and podman backends; bubblewrap shows this system's own programs.
        start_command: run in the background as soon as a sandbox is there.
        cpu_cores: processor cores of a sandbox.
        memory_gb: its memory, in GiB.
        disk_size_gb: its home, /tmp and /dev/shm together, in GiB.
        gpu_count: more than 0 is refused: no sandbox of whet has a GPU.
        timeout_minutes: a sandbox is closed so long after its creation.
        timeout_per_command_seconds: a command is ended so long after its start; its result says so.
        environment_vars: environment variables of every command. The model can read them.
        team_id: of a hosted service; without meaning here, and said so.
        advanced_configs: of a hosted service; without meaning here, and said so.
        labels: kept in `sandbox_request`; whet's sandboxes have no labels.
        max_retries: how often the creation of a sandbox is tried.
        base_delay: seconds before the second attempt.
        backoff_factor: from one delay to the next, for what is wrapped in `with_retry`.
        max_backoff_seconds: the longest delay of `with_retry`.
        jitter: seconds by which the delays of `with_retry` vary.
        stop_errors: tool errors that end the rollout, besides those of the sandbox's host, which always do.
        sandbox_client_max_workers, sandbox_client_max_connections, sandbox_client_max_keepalive_connections: of a
            hosted service's client; have no effect.
        backend: "bubblewrap", "docker", "podman", "subprocess" or another package's; None = bubblewrap on Linux,
            docker elsewhere.
        network: hosts that code in the sandbox may reach; none by default.
        read_only: absolute path inside: folder of the host shown there.
        writable: absolute paths of empty folders inside that can be written to, besides home and /tmp: "/app".
        programs: what commands in the sandbox need, such as "node" or "gcc". One that this machine has outside
            /usr is shown; a missing one is an error with the command that installs it.
        max_sandboxes: how many this environment may have at once; the process's own cap holds besides.
        max_output_bytes: a command that writes more is ended; its result says so.
        max_output_chars: the middle of a longer tool answer is left out before the model reads it; None = never.
        kwargs: arguments of `StatefulToolEnv`.
    """

    def __init__(
        self,
        sandbox_name: str = "sandbox-env",
        docker_image: str | None = None,
        start_command: str | None = None,
        cpu_cores: float = 1,
        memory_gb: float = 2,
        disk_size_gb: float = 5,
        gpu_count: int = 0,
        timeout_minutes: float = 60,
        timeout_per_command_seconds: float = 30,
        environment_vars: dict[str, str] | None = None,
        team_id: str | None = None,
        advanced_configs: Any = None,
        labels: Sequence[str] | None = None,
        max_retries: int = 5,
        base_delay: float = 0.5,
        backoff_factor: float = 2.0,
        max_backoff_seconds: float = 30.0,
        jitter: float = 1e-3,
        stop_errors: Sequence[type[Exception]] | None = None,
        sandbox_client_max_workers: int = 50,
        sandbox_client_max_connections: int = 100,
        sandbox_client_max_keepalive_connections: int = 50,
        *,
        backend: str | None = None,
        network: Sequence[str] = (),
        read_only: dict[str, str] | None = None,
        writable: Sequence[str] = (),
        programs: Sequence[str] = (),
        max_sandboxes: int | None = None,
        max_output_bytes: int = MIB,
        max_output_chars: int | None = None,
        **kwargs: Any,
    ) -> None:
        # Errors of the host end a rollout by themselves, and as what they are, so that it can be attempted again.
        others = [error for error in stop_errors or () if not issubclass(error, InfraError)]
        super().__init__(stop_errors=others, **kwargs)
        self.timeout_per_command_seconds = timeout_per_command_seconds
        self.max_output_chars = max_output_chars
        self.programs = list(programs)
        self._checked_images: set[str | None] = set()
        try:
            self.sandbox_request = CreateSandboxRequest(
                name=sandbox_name,
                docker_image=docker_image,
                start_command=start_command,
                cpu_cores=cpu_cores,
                memory_gb=memory_gb,
                disk_size_gb=disk_size_gb,
                gpu_count=gpu_count,
                timeout_minutes=timeout_minutes,
                environment_vars=environment_vars,
                network=list(network),
                read_only=read_only or {},
                writable=list(writable),
                team_id=team_id,
                advanced_configs=advanced_configs,
                labels=list(labels or []),
            )
        except ValidationError as error:
            raise invalid_request(error) from error
        spec_of(self.sandbox_request, timeout_per_command_seconds, max_output_bytes)
        self.sandbox_client = SandboxClient(
            backend=backend,
            max_sandboxes=max_sandboxes,
            timeout_s=timeout_per_command_seconds,
            output_bytes=max_output_bytes,
            attempts=max_retries,
            delay_s=base_delay,
        )
        self.sandbox_client.say_what_is_ignored(self.sandbox_request)
        self.active_sandboxes: set[str] = set()
        self.with_retry = functools.partial(
            with_retry, max_retries, base_delay, backoff_factor, max_backoff_seconds, jitter
        )
        self.add_rubric(SandboxTimesRubric())
        self.add_tool(self.bash, args_to_skip=["sandbox_id", "sandbox_state", "working_dir"])

    # What a subclass may override

    def get_sandbox_request(self, state: State) -> Any:
        """What this rollout's sandbox is like: a copy of `self.sandbox_request`, which may be changed."""
        return self.sandbox_request.model_copy(deep=True)

    async def post_sandbox_setup(self, state: State) -> None:
        """Prepare a fresh sandbox, before the model's first command: upload files, build something.

        Runs in the background, once `state["sandbox_id"]` is there for `self.sandbox_client` and `self.bash`. An
        exception here makes the rollout errored when it first uses the sandbox.
        """

    async def post_rollout(self, state: State) -> None:
        """Look at the sandbox before it is gone, for instance run tests and keep their result in the state."""

    # One rollout

    async def setup_state(self, state: State, **kwargs: Any) -> Any:
        """Begin to make the sandbox. Gives the state back, as environments for early 0.1 expect."""
        request = await self._complete_request(as_request(self.get_sandbox_request(state)))
        sandbox = await self.sandbox_client.create(request)
        self.active_sandboxes.add(sandbox.id)
        state["sandbox_id"] = sandbox.id
        state["sandbox_state"] = SandboxState(ready=False, ready_wait_time=0.0, command_execution_times=[])
        await super().setup_state(state)
        self.sandbox_client.set_up(sandbox.id, functools.partial(self._prepare_sandbox, state))
        return state

    async def _complete_request(self, request: CreateSandboxRequest) -> CreateSandboxRequest:
        """The request with what this kind of environment needs besides."""
        if self.programs and self.sandbox_client.backend == "bubblewrap":
            await self.sandbox_client.check()
            shown = host_programs.to_be_shown(self.programs)
            request.read_only = {**request.read_only, **shown}
            if shown:
                variables = request.environment_vars or {}
                request.environment_vars = {**variables, "PATH": host_programs.path_with_shown(variables.get("PATH"))}
        return request

    async def _prepare_sandbox(self, state: State) -> None:
        if self.programs:
            sandbox = await self.sandbox_client.sandbox(state["sandbox_id"])
            if sandbox.spec.image not in self._checked_images:
                await host_programs.check(sandbox, self.programs, self.sandbox_client.backend)
                self._checked_images.add(sandbox.spec.image)
        await self.post_sandbox_setup(state)

    async def bash(
        self, command: str, sandbox_id: str, sandbox_state: SandboxState, working_dir: str | None = None
    ) -> str:
        """Run a command in a bash shell. Files stay from one call to the next.

        Args:
            command: The command, or several lines of them.
        """
        if not sandbox_state["ready"]:
            await self._wait_for_sandbox_ready(sandbox_state, sandbox_id)
        start = time.monotonic()
        try:
            response = await self.sandbox_client.execute_command(
                sandbox_id, command, working_dir=working_dir, timeout=self.timeout_per_command_seconds
            )
            result = response.result
        except CommandTimeoutError as error:
            result = error.result or timed_out(self.timeout_per_command_seconds)
        finally:
            sandbox_state["command_execution_times"].append(time.monotonic() - start)
        return self._command_text(result)

    def update_tool_args(
        self, tool_name: str, tool_args: dict[str, Any], messages: Messages, state: State, **kwargs: Any
    ) -> dict[str, Any]:
        """Fill in what a tool has hidden of sandbox_id, sandbox_state and working_dir (`state["working_dir"]`)."""
        offered = self._hidden_arguments(state)
        return {
            **tool_args,
            **{name: offered[name] for name in self.skipped_args.get(tool_name, ()) if name in offered},
        }

    def _hidden_arguments(self, state: State) -> dict[str, Any]:
        return {
            "sandbox_id": state["sandbox_id"],
            "sandbox_state": state["sandbox_state"],
            "working_dir": state.get("working_dir"),
        }

    async def call_tool(
        self, tool_name: str, tool_args: dict[str, Any], tool_call_id: str, **kwargs: Any
    ) -> ToolMessage:
        message = await super().call_tool(tool_name, tool_args, tool_call_id, **kwargs)
        if isinstance(message["content"], str):
            message["content"] = shortened(encodable(message["content"]), self.max_output_chars)
        return message

    @cleanup
    async def destroy_sandbox(self, state: State) -> None:
        """End the rollout's sandbox, after `post_rollout` has looked at it."""
        sandbox_id = state.get("sandbox_id")
        try:
            await self.post_rollout(state)
        finally:
            if sandbox_id is not None:
                await self._delete(sandbox_id)

    @teardown
    async def teardown_sandboxes(self) -> None:
        """End every sandbox that is left."""
        await self.sandbox_client.close()
        self.active_sandboxes.clear()

    async def bulk_delete_sandboxes(self, global_ids: Sequence[str]) -> None:
        """End several sandboxes."""
        await self.sandbox_client.bulk_delete(global_ids)
        self.active_sandboxes.difference_update(global_ids)

    async def _delete(self, sandbox_id: str) -> None:
        unseen = self.sandbox_client.creation_error(sandbox_id)
        if unseen is not None:
            self.logger.warning("sandbox %s could not be used: %s", sandbox_id, unseen)
        try:
            await self.sandbox_client.delete(sandbox_id)
        except SandboxError as error:  # what the rollout did is not changed by how its sandbox ended
            self.logger.warning("sandbox %s could not be ended: %s", sandbox_id, error)
        self.active_sandboxes.discard(sandbox_id)

    async def _wait_for_sandbox_ready(self, sandbox_state: SandboxState, sandbox_id: str) -> None:
        start = time.monotonic()
        await self.sandbox_client.wait_for_creation(sandbox_id)
        sandbox_state["ready"] = True
        sandbox_state["ready_wait_time"] = time.monotonic() - start

    def _command_text(self, result: ExecResult) -> str:
        """What the model reads: output, then what was written to stderr, then which limit ended the command."""
        parts = [result.stdout.strip()] if result.stdout.strip() else []
        if result.stderr.strip():
            parts.append(f"stderr:\n{result.stderr.strip()}")
        ended = how_it_ended(result, self.timeout_per_command_seconds)
        if ended:
            parts.append(f"Error: {ended}")
        return "\n".join(parts) or "(no output)"


def timed_out(timeout_s: float) -> ExecResult:
    """The result of a command of which no more is known than that its time was over."""
    return ExecResult(None, signal.SIGKILL, b"", b"", timeout_s, "time")


def how_it_ended(result: ExecResult, timeout_s: float) -> str:
    """The limit or signal that ended a command, in words for a model; empty where it ended by itself."""
    if result.limit == "time":
        return f"Command timed out after {timeout_s:g}s"
    if result.limit == "output":
        kept = len(result.stdout_bytes) + len(result.stderr_bytes)
        return f"Command was stopped: it wrote more than {kept} bytes of output"
    if result.limit == "memory":
        return "Command ran out of memory"
    if result.limit is not None:
        return f"Command was {result.describe()}"
    return f"Command was {result.describe()}" if result.signal is not None else ""


def shortened(text: str, limit: int | None) -> str:
    """At most about `limit` characters: beginning and end, with what was left out between them said."""
    if limit is None or len(text) <= limit:
        return text
    half = limit // 2
    left_out = len(text) - 2 * half
    return f"{text[:half]}\n[... {left_out} characters left out ...]\n{text[len(text) - half :]}"


def with_retry(
    attempts: int, delay: float, factor: float, longest: float, jitter: float, function: Callable[..., Awaitable[T]]
) -> Callable[..., Awaitable[T]]:
    """`function`, tried again when it raises; for environments that wrap their own calls in `self.with_retry`."""

    @functools.wraps(function)
    async def retried(*args: Any, **kwargs: Any) -> T:
        for attempt in range(attempts):
            try:
                return await function(*args, **kwargs)
            except WhetError:
                raise
            except Exception:
                if attempt == attempts - 1:
                    raise
            await asyncio.sleep(min(longest, delay * factor**attempt) + random.uniform(0, jitter))
        raise AssertionError("the last attempt returns or raises")

    return retried
