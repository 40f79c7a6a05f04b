"""`RLMEnv` of `verifiers.envs.experimental`: a model with a REPL, in which it calls fresh copies of itself.

    root model ─▶ call_python_repl(code) ─▶ sandbox: llm_batch(prompts), root tools ─▶ this process ─▶ sub-models, tools
                  answer["ready"] = True ─▶ state["final_answer"]: the rollout is over

Recursive language models are from https://alexzhang13.github.io/blog/2025/rlm. The interface is that of 0.1.14; prompts
are in words of whet's own. Functions called in the sandbox come to this process as requests to the rollout's address.

It deliberately has no summaries of turns (`enable_summarization`), and no worker script that could be customised.
"""

from __future__ import annotations

import asyncio
import json
import shlex
import time
import uuid
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from whet.calls import name_of
from whet.compat.experimental.cli_agent_env import HOSTED
from whet.compat.experimental.rlm_functions import FunctionSession, RLMFunctions
from whet.compat.experimental.rlm_metrics import RLMMonitorRubric, count_step
from whet.compat.experimental.rlm_texts import BASH_ANSWER, CLIENT, PRELUDE, answer_of, bash_cell, scaffold
from whet.decorators import cleanup, stop, teardown
from whet.envs.python_env import PythonEnv
from whet.envs.sandboxed.client import CommandTimeoutError
from whet.envs.sandboxed.request import CreateSandboxRequest
from whet.envs.tool_schemas import tool_from_function
from whet.errors import ConfigError, EnvError
from whet.messages import normalize_messages
from whet.sandboxes.protocol import ORIGIN_URL
from whet.tasksets.programs.session import Opening, SessionGateway, make_gateway
from whet.types import Messages, State, TrajectoryStep, UserMessage

VERBOSITIES = ("light", "medium", "heavy")
CONTEXT_BYTES = 1 << 30
SIZES = ("cpu_cores", "memory_gb", "disk_size_gb", "gpu_count", "timeout_minutes", "environment_vars", "labels")
UNUSED = HOSTED | {"sandbox_docker_image", "min_turns_in_context"}


class RLMEnv(RLMFunctions, PythonEnv):
    """The model has a REPL, in a sandbox, that calls copies of the model and functions of this process."""

    def __init__(
        self,
        max_turns: int = 50,
        tools: Sequence[Callable[..., Any]] | None = None,
        root_tools: Sequence[Callable[..., Any]] | None = None,
        sub_tools: Sequence[Callable[..., Any]] | None = None,
        sub_llm_max_turns: int = 5,
        sub_max_completion_tokens: int | None = None,
        root_max_completion_tokens: int | None = None,
        sub_model: str | None = None,
        sub_prompt_verbosity: str = "light",
        root_prompt_verbosity: str = "light",
        enable_sub_llms: bool = True,
        enable_summarization: bool = False,
        max_turns_in_context: int | None = None,
        max_output_length: int = 8192,
        max_sub_llm_parallelism: int = 5,
        system_prompt: str | None = None,
        repl_language: str = "bash",
        pip_install_packages: str = "",
        include_sub_llm_in_trajectory: bool = False,
        context_warning_threshold: float = 0.80,
        max_startup_wait_seconds: float = 120,
        code_execution_timeout: float = 120,
        abort_on_code_timeout: bool = False,
        retain_filesystem_after_rollout: bool = False,
        **kwargs: Any,
    ) -> None:
        """Make an environment.

        Args:
            tools: functions for the root model; `root_tools` are for its code, `sub_tools` for the sub-models.
            sub_llm_max_turns: turns of a sub-model with tools, before it has to answer.
            root_max_completion_tokens: of all turns of the root model; `sub_max_completion_tokens` of all sub-models.
            repl_language: "bash" or "python".
            include_sub_llm_in_trajectory: record the turns of sub-models as steps, which are trained.
            max_output_length: characters of an execution's output that the model reads.
            code_execution_timeout: seconds of an execution, calls of sub-models included.
            kwargs: arguments of `PythonEnv`, and `SIZES` of the sandbox with `sandbox_` before them.
        """
        _check(self, repl_language, {"sub": sub_prompt_verbosity, "root": root_prompt_verbosity}, {
            "enable_summarization": enable_summarization,
            "retain_filesystem_after_rollout": retain_filesystem_after_rollout,
            "customize_worker_script": hasattr(type(self), "customize_worker_script"),
        })  # fmt: skip
        sizes = {name: kwargs.pop(f"sandbox_{name}") for name in SIZES if f"sandbox_{name}" in kwargs}
        super().__init__(
            pip_install_packages=pip_install_packages,
            max_startup_wait_seconds=max_startup_wait_seconds,
            sandbox_name="rlm",
            tools=list(tools or []),
            max_turns=max_turns,
            timeout_per_command_seconds=code_execution_timeout,
            **sizes,
            **{name: kwargs[name] for name in kwargs if name not in UNUSED},
        )
        self.repl_language, self.custom_system_prompt = repl_language, system_prompt
        self.pip_install_packages = pip_install_packages
        self.sub_model, self.enable_sub_llms, self.sub_llm_max_turns = sub_model, enable_sub_llms, sub_llm_max_turns
        self.sub_max_completion_tokens = sub_max_completion_tokens
        self.root_max_completion_tokens = root_max_completion_tokens
        self.max_turns_in_context, self.max_output_length = max_turns_in_context, max_output_length
        self.include_sub_llm_in_trajectory = include_sub_llm_in_trajectory
        self.context_warning_threshold, self.abort_on_code_timeout = context_warning_threshold, abort_on_code_timeout
        self.code_execution_timeout = code_execution_timeout
        self.max_sub_llm_parallelism = max_sub_llm_parallelism
        self.root_tool_map = {name_of(tool): tool for tool in root_tools or ()}
        self.sub_tool_map = {name_of(tool): tool for tool in sub_tools or ()}
        if "llm_batch" in {**self.root_tool_map, **self.sub_tool_map}:
            raise ConfigError(
                f"{type(self).__name__}: llm_batch is the environment's own; call your tool something else."
            )
        self.root_tool_names = [*(["llm_batch"] if enable_sub_llms else []), *self.root_tool_map]
        self.root_tool_defs = [tool_from_function(tool) for tool in self.root_tool_map.values()]
        self.sub_tool_defs = [tool_from_function(tool) for tool in self.sub_tool_map.values()]
        self._gateway: SessionGateway | None = None
        self._calls: dict[str, tuple[FunctionSession, Opening]] = {}
        self.remove_tool(self.python)
        self.add_tool(self.call_python_repl if repl_language == "python" else self.call_bash_repl, ["state"])
        self.add_rubric(RLMMonitorRubric(self.root_tool_names))

    # What a subclass may override

    async def on_sandbox_ready(self, state: State, sandbox_id: str) -> None:
        """Prepare a fresh sandbox further."""

    # One rollout

    async def setup_state(self, state: State, **kwargs: Any) -> Any:
        """Open the address of the functions, and begin to make the sandbox."""
        state["rollout_id"] = f"rlm_{uuid.uuid4().hex[:8]}"
        state.setdefault("rlm_fs_root_remote", f"/tmp/rlm_{state['rollout_id']}/rlm_fs")
        state["rlm_root_tools"], state["rlm_sub_tools"] = self.root_tool_names, list(self.sub_tool_map)
        state["rlm_system_prompt"] = scaffold(self)
        if self._gateway is None:
            self._gateway = make_gateway(type(self).__name__)
        session = FunctionSession(state, self.call_root_tool)
        self._calls[state["trajectory_id"]] = (session, self._gateway.open(session))  # type: ignore[arg-type]
        return await super().setup_state(state, **kwargs)

    async def _complete_request(self, request: CreateSandboxRequest) -> CreateSandboxRequest:
        request = await super()._complete_request(request)
        if self.sandbox_client.backend != "subprocess":
            request.origin = f"127.0.0.1:{next(reversed(self._calls.values()))[1].port}"  # one server for all rollouts
            request.network_idle_s = request.timeout_minutes * 60
        return request

    async def post_sandbox_setup(self, state: State) -> None:
        """Write the context and the functions into the sandbox, and begin the REPL."""
        sandbox_id, root, info = state["sandbox_id"], state["rlm_fs_root_remote"], state.get("info") or {}
        sandbox = await self.sandbox_client.sandbox(sandbox_id)
        await self.sandbox_client.execute_command(sandbox_id, f"mkdir -p {shlex.quote(root)}")
        folder, context = info.get("context_dir"), info.get("context")
        if folder is not None:
            await sandbox.upload(await asyncio.to_thread(_checked_folder, Path(folder)), root)
        elif context is not None:
            name, text = ("txt", context) if isinstance(context, str) else ("json", json.dumps(context))
            await sandbox.write(f"{root}/context.{name}", text.encode())
        opening = self._calls[state["trajectory_id"]][1]
        is_boundary = self.sandbox_client.backend != "subprocess"
        origin = ORIGIN_URL if is_boundary else f"http://127.0.0.1:{opening.port}"
        settings = {"url": f"{origin}{opening.path}/v1/chat/completions", "names": self.root_tool_names, "root": root}
        state["rlm_control_dir_remote"] = control = f"{root.rpartition('/')[0]}/rlm_control"
        client = CLIENT.replace("SETTINGS", repr(json.dumps(settings)))
        for name in ("rlm_tools.py", *(f"bin/{name}" for name in self.root_tool_names)):
            await sandbox.write(f"{control}/{name}", client.encode())
        await self.sandbox_client.execute_command(sandbox_id, f"chmod -R +x {shlex.quote(control)}/bin || true")
        await self.on_sandbox_ready(state, sandbox_id)

    def _hidden_arguments(self, state: State) -> dict[str, Any]:
        return {**super()._hidden_arguments(state), "state": state}

    async def call_python_repl(self, code: str, state: Any) -> str:
        """Execute Python code in a persistent REPL environment."""
        return await self._call_repl(code, state, "answer['ready'] = True")

    async def call_bash_repl(self, code: str, state: Any) -> str:
        """Execute Bash commands in a persistent REPL environment."""
        return await self._call_repl(code, state, "export ANSWER_READY=1")

    async def _call_repl(self, code: str, state: State, finish: str) -> str:
        if not state["sandbox_state"]["ready"]:
            await self._wait_for_sandbox_ready(state["sandbox_state"], state["sandbox_id"])
        sandbox = await self.sandbox_client.sandbox(state["sandbox_id"])
        conversation = [
            message for step in self._main_steps(state)[-1:] for message in (*step["prompt"], *step["completion"])
        ]
        lines = "".join(f"{json.dumps(dict(message), default=str)}\n" for message in conversation)
        await sandbox.write(f"{state['rlm_fs_root_remote']}/.messages", lines.encode())
        start = time.monotonic()
        output, late = await (self._in_python if self.repl_language == "python" else self._in_bash)(code, state)
        state["repl_call_count"] = state.get("repl_call_count", 0) + 1
        state["repl_total_time_seconds"] = state.get("repl_total_time_seconds", 0.0) + time.monotonic() - start
        state["repl_mean_time_seconds"] = state["repl_total_time_seconds"] / state["repl_call_count"]
        stopped_by = self._calls[state["trajectory_id"]][0].stopped_by
        if stopped_by is not None:
            raise stopped_by
        if late and self.abort_on_code_timeout:
            raise EnvError(f"code took longer than code_execution_timeout = {self.code_execution_timeout:g} s")
        answer = await self._read_answer(state)
        if answer["ready"]:
            state["final_answer"] = answer["content"]
        if len(output) > self.max_output_length:
            output = f"{output[: self.max_output_length]}\n... [output truncated]"
        return output + self._context_warning(state, finish)

    async def _in_python(self, code: str, state: State) -> tuple[str, bool]:
        """Output and value of a cell, and whether its time was over."""
        repl = self._repls[state["sandbox_id"]]
        await repl.run(PRELUDE.format(control=state["rlm_control_dir_remote"]), self.timeout_per_command_seconds)
        reply = await self._send_worker_request(state["sandbox_id"], state["sandbox_state"], {"code": code})
        reply["execution_count"] = state.get("repl_call_count", 0) + 1
        return self._format_response(state["python_state"], reply), "timed out" in reply["note"]

    async def _in_bash(self, code: str, state: State) -> tuple[str, bool]:
        script = bash_cell(code, state["rlm_control_dir_remote"], state["rlm_fs_root_remote"])
        seconds = self.timeout_per_command_seconds
        try:
            done = await self.sandbox_client.execute_command(state["sandbox_id"], script, timeout=seconds)
        except CommandTimeoutError:
            return f"Code execution timed out after {seconds:g} seconds. Variables set by this code are lost.", True
        return done.stdout + done.stderr or "(no output)", False

    async def _read_answer(self, state: State) -> dict[str, Any]:
        """`ready` and `content` as the code has set them."""
        if self.repl_language == "python":
            said = (await self._repls[state["sandbox_id"]].run("__rlm_answer()", self.timeout_per_command_seconds))[
                "stdout"
            ]
        else:
            command = BASH_ANSWER.format(control=shlex.quote(state["rlm_control_dir_remote"]))
            said = (await self.sandbox_client.execute_command(state["sandbox_id"], command)).stdout
        return answer_of(said)

    def _context_warning(self, state: State, finish: str) -> str:
        """Said once, where the prompt comes near `max_seq_len`."""
        usage = self._main_steps(state)[-1]["response"].get("usage")
        used = 0 if usage is None else usage["prompt_tokens"]
        if (
            not self.max_seq_len
            or state.get("context_warning_sent")
            or used < self.max_seq_len * self.context_warning_threshold
        ):
            return ""
        state["context_warning_sent"] = True
        return f"\n\n[CONTEXT LIMIT WARNING] {used:,} of {self.max_seq_len:,} tokens are used. Answer soon: {finish}."

    # The root model's conversation, beside which the turns of sub-models may be recorded

    async def get_prompt_messages(self, state: State) -> Messages:
        steps = self._main_steps(state)
        if steps:
            before = [*steps[-1]["prompt"], *steps[-1]["completion"]]
            return [*before, *normalize_messages(await self.env_response(before, state), field_name="env_response")]
        state["raw_prompt"] = state["prompt"]
        prompt = [message.model_copy() for message in state["prompt"]]
        first = next((message for message in prompt if message["role"] == "user"), None)
        if first is None:
            prompt.append(UserMessage(state["rlm_system_prompt"]))
        elif isinstance(first["content"], str):
            first["content"] = state["rlm_system_prompt"] + first["content"]
        else:
            first["content"] = [{"type": "text", "text": state["rlm_system_prompt"]}, *first["content"]]
        state["prompt"] = prompt
        return prompt

    async def add_trajectory_step(self, state: State, trajectory_step: TrajectoryStep) -> None:
        count_step(state, trajectory_step)
        await super().add_trajectory_step(state, trajectory_step)

    async def env_response(self, messages: Messages, state: State, **kwargs: Any) -> Messages:
        """The answers to tool calls; the last ones where an answer is ready, or a limit is reached."""
        said = await super().env_response(messages, state, **kwargs)
        if 0 < (self.max_turns_in_context or 0) <= len(self._main_steps(state)):
            state["max_turns_in_context_stopped"] = True
        if "final_answer" in state or self._spent(state, "root") or state.get("max_turns_in_context_stopped"):
            state["final_env_response"] = said
        return said

    async def render_completion(self, state: State) -> None:
        steps = self._main_steps(state)
        whole = (
            [*steps[-1]["prompt"], *steps[-1]["completion"], *(state.get("final_env_response") or [])] if steps else []
        )
        state["completion"] = whole[len(state["prompt"]) :]

    @stop(priority=50)
    async def answer_ready(self, state: State) -> bool:
        return "final_answer" in state

    @stop
    async def max_turns_reached(self, state: State) -> bool:
        return 0 < self.max_turns <= len(self._main_steps(state))

    @stop
    async def no_tools_called(self, state: State) -> bool:
        steps = self._main_steps(state)
        return bool(steps) and not steps[-1]["completion"][-1].get("tool_calls")

    async def post_rollout(self, state: State) -> None:
        """Read the answer as it is, where the model has not said that it is ready."""
        if "final_answer" not in state and state.get("sandbox_state", {}).get("ready"):
            state["final_answer"] = (await self._read_answer(state))["content"]
        state.setdefault("final_answer", "")

    @cleanup(priority=-1)
    async def close_functions(self, state: State) -> None:
        """Refuse further calls of the rollout's code."""
        call = self._calls.pop(state["trajectory_id"], None)
        if call is not None and self._gateway is not None:
            await self._gateway.shut(call[1])

    @teardown
    async def close_gateway(self) -> None:
        if self._gateway is not None:
            await self._gateway.close()
            self._gateway = None


def _checked_folder(folder: Path) -> Path:
    """Raises EnvError for a folder with links, or of more than a GiB."""
    paths = [folder, *folder.rglob("*")]
    if not folder.is_dir() or any(path.is_symlink() for path in paths):
        raise EnvError(f"context_dir={str(folder)!r} should be a folder without links")
    if sum(path.stat().st_size for path in paths) > CONTEXT_BYTES:
        raise EnvError(f"context_dir={str(folder)!r} has more than {CONTEXT_BYTES >> 20} MiB")
    return folder


def _check(env: RLMEnv, language: str, verbosities: dict[str, str], refused: dict[str, bool]) -> None:
    """Raises ConfigError for a setting that is not possible."""
    where = type(env).__name__
    for name, value in verbosities.items():
        if value not in VERBOSITIES:
            raise ConfigError(f"{where}: {name}_prompt_verbosity={value!r} should be one of {', '.join(VERBOSITIES)}.")
    if language not in ("bash", "python"):
        raise ConfigError(f"{where}: repl_language={language!r} should be 'bash' or 'python'.")
    for name, given in refused.items():
        if given:
            raise ConfigError(f"{where}: {name} is not possible in whet, whose REPL is its own; leave it out.")
