"""`CliAgentEnv` of `verifiers.envs.experimental`: a program in a sandbox, whose requests are the turns of the rollout.

    setup_state: sandbox ─▶ post_sandbox_setup ─▶ start_agent ─▶ its requests, one turn each ─▶ post_rollout ─▶ end

The sandbox is whet's (`SandboxMixin`), and the address that the agent is given leads to the gateway of this process
(`whet.gateway.rollouts`) instead of through a tunnel. Hooks, fields of the state and metrics are those of 0.1.14.

It deliberately has no images and no network: the programs of this machine stand in for a plain image, other images are
refused, and `network=` names the hosts that an agent may reach.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
import uuid
from collections.abc import Sequence
from pathlib import PurePosixPath
from typing import Any

from whet.calls import describe
from whet.compat.sandbox_mixin import SandboxMixin, SandboxMonitorRubric
from whet.decorators import cleanup, stop, teardown
from whet.envs.multiturn_env import MultiTurnEnv
from whet.envs.sandboxed.client import BackgroundJob, BackgroundJobStatus
from whet.envs.sandboxed.request import WITHOUT_IMAGES, CreateSandboxRequest
from whet.errors import ConfigError, Error, InfraError, SandboxError, WhetError
from whet.messages import normalize_messages
from whet.rubrics.rubric import Rubric
from whet.sandboxes.protocol import MIB, ORIGIN_URL, can_be_writable
from whet.tasksets.programs.session import Session, SessionGateway, make_gateway
from whet.types import Messages, Response, State, Tool

OUTPUT_BYTES = 8 * MIB
PLAIN_IMAGES = frozenset({"alpine", "bash", "buildpack-deps", "busybox", "debian", "node", "python", "ubuntu", "uv"})
"""Images that hold a system and nothing of a task, by the last part of their name."""
RETRIES = ("max_retries", "base_delay", "backoff_factor", "max_backoff_seconds", "jitter")
HOSTED = frozenset({
    "advanced_configs", "interception_port", "interception_url", "labels", "message_type", "poll_interval",
    "sandbox_client_max_connections", "sandbox_client_max_keepalive_connections", "sandbox_client_max_workers",
    "sandbox_creations_per_minute", "sandbox_transfer_max_retries", "sandbox_wait_for_creation_max_attempts",
    "start_command", "team_id",
})  # fmt: skip
"""Arguments of 0.1.14 for the hosted service, its tunnel and its client, which have no effect here."""
LIMITS = ("OPENAI_TIMEOUT", "OPENAI_REQUEST_TIMEOUT", "HTTPX_TIMEOUT")


class AgentError(InfraError):
    """The agent's program failed."""


class CliAgentMonitorRubric(Rubric):
    """Records whether the agent ran out of time, and whether it failed."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.add_metric(self.agent_timeout)
        self.add_metric(self.agent_error)

    def agent_timeout(self, state: State) -> float:
        return float(bool(state.get("timed_out")))

    def agent_error(self, state: State) -> float:
        return float(state.get("agent_exit_code") not in (None, 0))


class CliAgentEnv(SandboxMixin, MultiTurnEnv):
    """An agent's program attempts the tasks, in a sandbox of its own for each rollout."""

    PROTECTED_ENV_VARS = frozenset({"OPENAI_BASE_URL", "OPENAI_MODEL", "OPENAI_API_KEY", *LIMITS})
    WRITABLE: tuple[str, ...] = ("/app", "/workspace", "/task", "/logs", "/tests", "/oracle")

    def __init__(
        self,
        run_command: str,
        max_turns: int = -1,
        docker_image: str = "python:3.11-slim",
        cpu_cores: float = 1,
        memory_gb: float = 2,
        disk_size_gb: float = 5,
        gpu_count: int = 0,
        environment_vars: dict[str, str] | None = None,
        timeouts: Any = None,
        keep_sandbox_for_scoring: bool = False,
        *,
        network: Sequence[str] = (),
        writable: Sequence[str] = (),
        **kwargs: Any,
    ) -> None:
        """Make an environment whose tasks a program attempts.

        Args:
            run_command: the shell command that runs the agent.
            max_turns: requests of the agent after which a rollout ends; -1 = no limit.
            docker_image: a plain system such as python:3.11-slim, for which this machine's programs stand in.
            environment_vars: environment variables of the agent.
            keep_sandbox_for_scoring: leave the sandbox of a completed rollout to the rubric, which has to end it.
            network: hosts that the sandbox may reach besides its model; none by default.
            writable: absolute paths of empty folders inside, besides `WRITABLE`, home and /tmp.
            kwargs: arguments of `MultiTurnEnv`; those of `HOSTED` have no effect. The others size the sandbox.
        """
        retries = {name: kwargs.pop(name) for name in RETRIES if name in kwargs}
        super().__init__(max_turns=max_turns, **{name: kwargs[name] for name in kwargs if name not in HOSTED})
        given = retries if timeouts is None else {**retries, "timeouts": timeouts}
        self.init_sandbox_client(output_bytes=OUTPUT_BYTES, **given)
        self.run_command = run_command
        self.docker_image = docker_image
        self.cpu_cores, self.memory_gb, self.disk_size_gb = cpu_cores, memory_gb, disk_size_gb
        self.gpu_count = gpu_count
        self.environment_vars = environment_vars
        self.keep_sandbox_for_scoring = keep_sandbox_for_scoring
        self.network, self.writable = list(network), list(writable)
        self._gateway: SessionGateway | None = None
        self._sessions: dict[str, Session] = {}
        self.add_rubric(SandboxMonitorRubric())
        self.add_rubric(CliAgentMonitorRubric())

    # What a subclass may override

    async def get_docker_image(self, state: State) -> str:
        return self.docker_image

    def get_sandbox_resources(self, state: State) -> dict[str, Any]:
        """Sizes of this rollout's sandbox; `timeout_minutes` is its lifetime."""
        return {
            "cpu_cores": self.cpu_cores,
            "memory_gb": self.memory_gb,
            "disk_size_gb": self.disk_size_gb,
            "gpu_count": self.gpu_count,
            "gpu_type": None,
            "vm": self.gpu_count > 0,
            "timeout_minutes": self.compute_sandbox_timeout_minutes(),
        }

    async def build_env_vars(self, state: State) -> dict[str, str]:
        """Environment variables of the agent, with the address of its model."""
        variables = dict.fromkeys(LIMITS, "3600") | (self.environment_vars or {})
        variables |= {"OPENAI_BASE_URL": state["interception_base_url"], "OPENAI_MODEL": state["model"]}
        variables.setdefault("OPENAI_API_KEY", "intercepted")  # the address is all the key there is
        return variables

    def writable_folders(self, state: State) -> list[str]:
        """Absolute paths of empty folders of this rollout's sandbox that can be written to."""
        return [*self.WRITABLE, *self.writable]

    async def read_only_folders(self, state: State) -> dict[str, str]:
        """Absolute path inside: folder or file of this machine shown there."""
        return {}

    async def start_agent(self, state: State) -> None:
        """Start `run_command`; `state["completion_wait_task"]` ends with it."""
        try:
            job = await self.sandbox_client.start_background_job(state["sandbox_id"], self.run_command)
        except (Error, WhetError):
            raise
        except Exception as error:
            raise SandboxError(f"the agent could not be started: {describe(error)}") from error
        state["background_job"] = job
        state["agent_start_time"] = time.time()
        state["completion_wait_task"] = asyncio.create_task(self.wait_for_completion(state))

    async def poll_job_completion(self, state: State, sandbox_id: str, background_job: BackgroundJob) -> None:
        """Wait for the agent's end, and record it. An exit code other than 0 is an `AgentError` of the rollout."""
        status: BackgroundJobStatus = await self.sandbox_client.wait_background_job(background_job)
        state["agent_exit_code"] = status.exit_code
        state["agent_stdout"], state["agent_stderr"] = status.stdout, status.stderr
        if status.exit_code != 0:
            turns = len(state["trajectory"])
            when = f"after {turns} turn(s)" if turns else "before any LLM call"
            said = (status.stderr or status.stdout or "").strip()[-2000:]
            raise AgentError(f"the agent crashed {when} (exit_code={status.exit_code}): {said}")

    async def check_agent_completed(self, state: State) -> bool:
        return bool(state.get("agent_completed"))

    async def normalize_intercepted_messages(self, intercepted_messages: Any) -> Messages:
        """The messages of a request of the agent, as they go to the model."""
        return normalize_messages(intercepted_messages, field_name="messages")

    def normalize_intercepted_tools(self, intercept_tools: Any) -> list[Tool] | None:
        """The tools of a request of the agent, which are `Tool` objects already."""
        return list(intercept_tools)

    async def normalize_response(self, response: Response) -> Response:
        """The response as it is recorded; the agent is given the original."""
        return response

    async def post_rollout(self, state: State) -> None:
        """Look at the sandbox before it is gone, for instance run tests and keep their result in the state."""

    # One rollout

    async def setup_state(self, state: State) -> None:
        """Make the sandbox and start the agent."""
        await super().setup_state(state)
        state["rollout_id"] = f"rollout_{uuid.uuid4().hex[:8]}"
        if self._gateway is None:
            self._gateway = make_gateway(type(self).__name__)
        gateway = self._gateway

        async def agent() -> None:
            await (state.get("completion_wait_task") or self.wait_for_completion(state))

        session = self._sessions[state["trajectory_id"]] = Session(
            agent, state, _no_user, lambda: gateway, needs_key=False
        )
        opening = session.opening()
        is_boundary = self.sandbox_client.backend != "subprocess"
        origin = ORIGIN_URL if is_boundary else f"http://127.0.0.1:{opening.port}"
        state["interception_base_url"] = f"{origin}{opening.path}/v1"
        image, resources = await self.get_docker_image(state), self.get_sandbox_resources(state)
        if self.sandbox_client.backend in WITHOUT_IMAGES and _repository(image) not in PLAIN_IMAGES:
            raise ConfigError(
                f"{type(self).__name__} wants the image {image!r}, and agents run without images here, on this "
                f"machine's own programs. Those stand in for a plain one: {', '.join(sorted(PLAIN_IMAGES))}."
            )
        request = CreateSandboxRequest(
            name=state["rollout_id"],
            **{"docker_image": None if self.sandbox_client.backend in WITHOUT_IMAGES else image, **resources},
            environment_vars=await self.build_env_vars(state),
            network=self.network,
            origin=f"127.0.0.1:{opening.port}" if is_boundary else None,
            network_idle_s=resources["timeout_minutes"] * 60,  # a model may take long to answer
            read_only=await self.read_only_folders(state),
            writable=outermost(self.writable_folders(state)) if is_boundary else [],
        )
        await self.create_sandbox(state, request)
        state["agent_completed"] = False
        await self.start_agent(state)

    async def wait_for_completion(self, state: State) -> None:
        """Wait for the agent's end; a failure is the rollout's error."""
        try:
            if state.get("background_job") is not None:
                await self.poll_job_completion(state, state["sandbox_id"], state["background_job"])
        except WhetError:
            raise
        except Exception as error:
            failed = error if isinstance(error, Error) else AgentError(f"the agent was lost: {describe(error)}")
            self._record_error(state, failed, "the agent")
        finally:
            state["agent_completed"] = True

    async def get_prompt_messages(self, state: State) -> Messages:
        """The messages of the agent's next request; none once it has ended."""
        request = await self._sessions[state["trajectory_id"]].next_request()
        if request is None:
            state["agent_completed"], state["final_env_response"] = True, []
            return []
        state["_last_request_headers"] = request.headers
        return await self.normalize_intercepted_messages(request.prompt)

    def _tools_of_turn(self, state: State) -> list[Tool] | None:
        request = self._sessions[state["trajectory_id"]].current
        if request is None or not request.tools:
            return super()._tools_of_turn(state)
        return self.normalize_intercepted_tools(request.tools)

    async def add_model_response(self, state: State, prompt_messages: Messages, response: Response) -> None:
        """Give the agent its answer, and record the turn."""
        self._sessions[state["trajectory_id"]].give(response)
        if not state["trajectory"]:
            state["prompt"] = prompt_messages
        await super().add_model_response(state, prompt_messages, await self.normalize_response(response))

    async def env_response(self, messages: Messages, state: State, **kwargs: Any) -> Messages:
        """Nothing: the agent's next request is the next turn."""
        return []

    @stop(priority=50)
    async def agent_completed(self, state: State) -> bool:
        return await self.check_agent_completed(state)

    @cleanup(priority=1)
    async def cleanup_interception_context(self, state: State) -> None:
        """Refuse further requests of the agent, and stop to wait for it."""
        session = self._sessions.pop(state["trajectory_id"], None)
        if session is not None:
            await session.close()
        task = state.pop("completion_wait_task", None)
        if task is not None:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task
        state.pop("background_job", None)

    @cleanup
    async def destroy_sandbox(self, state: State) -> None:
        """End the sandbox after `post_rollout` has looked at it, unless the rubric of a completed rollout needs it."""
        completed, sandbox_id = state.get("is_completed", False), state.get("sandbox_id")
        try:
            if completed:
                await self.post_rollout(state)
        finally:
            if sandbox_id and self.keep_sandbox_for_scoring and completed:
                self.deregister_sandbox(sandbox_id)
            elif sandbox_id:
                await self.delete_sandbox(sandbox_id)

    @teardown
    async def teardown_resources(self) -> None:
        """Release the gateway."""
        if self._gateway is not None:
            await self._gateway.close()
            self._gateway = None


async def _no_user(messages: Messages) -> Messages:
    return []


def _repository(image: str) -> str:
    """`python` of `docker.io/library/python:3.11-slim`."""
    return image.rpartition("/")[2].partition("@")[0].partition(":")[0]


def outermost(paths: Sequence[str]) -> list[str]:
    """The paths that a sandbox may have as folders of its own and that lie in no other of them."""
    possible = sorted({str(PurePosixPath(path)) for path in paths if can_be_writable(path)})
    return [path for path in possible if not any(path.startswith(f"{other}/") for other in possible)]
