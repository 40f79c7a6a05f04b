"""`PythonEnv`: the model has a Python interpreter (`python`) in a sandbox, which keeps its variables between calls.

The interpreter starts while the model takes its first turn. A call that runs too long, writes too much or ends the
interpreter is answered with what happened and whether the variables are still there. Interface and metrics are those
of `verifiers` 0.1.14.
"""

from __future__ import annotations

import time
from typing import Any, TypedDict, cast

from whet.envs.sandbox_env import SandboxEnv, SandboxState
from whet.envs.sandboxed.client import SandboxNotReadyError
from whet.envs.sandboxed.packages import Packages
from whet.envs.sandboxed.repl import PythonRepl, ReplStartError, Reply
from whet.envs.sandboxed.request import CreateSandboxRequest
from whet.rubrics.rubric import Rubric
from whet.types import State


class PythonWorkerState(TypedDict):
    """What a rollout knows of its interpreter; times are seconds."""

    ready: bool
    execution_count: int
    ready_wait_time: float


class PythonWorkerNotReadyError(SandboxNotReadyError):
    """The interpreter did not start in a fresh sandbox."""


class PythonMonitorRubric(Rubric):
    """Records how long a rollout waited for its interpreter."""

    def __init__(self) -> None:
        super().__init__()
        self.add_metric(self.python_ready_wait_time)

    def python_ready_wait_time(self, state: State) -> float:
        """Seconds that the first call waited for sandbox and interpreter."""
        return float(state["python_state"]["ready_wait_time"])


class PythonEnv(SandboxEnv):
    """The model has a Python interpreter that keeps its variables, in a sandbox of its own for each rollout."""

    def __init__(
        self,
        pip_install_packages: str = "numpy sympy scipy",
        max_startup_wait_seconds: float = 30,
        sandbox_name: str = "python-env",
        **kwargs: Any,
    ) -> None:
        """Make an environment with a Python interpreter.

        Args:
            pip_install_packages: packages that code in the sandbox can import, as on pip's command line. They are
                installed as wheels, on this machine, when the first rollout starts, and kept for later runs.
            max_startup_wait_seconds: how long the interpreter may take to start.
            sandbox_name: what the sandboxes are for, in logs.
            kwargs: arguments of `SandboxEnv`.
        """
        self._packages = Packages(pip_install_packages)
        super().__init__(sandbox_name=sandbox_name, **kwargs)
        self.max_startup_wait_seconds = max_startup_wait_seconds
        self._repls: dict[str, PythonRepl] = {}
        self.add_rubric(PythonMonitorRubric())
        self.add_tool(self.python, args_to_skip=["sandbox_id", "sandbox_state", "python_state"])
        self.remove_tool(self.bash)

    async def setup_state(self, state: State, **kwargs: Any) -> Any:
        """Begin to make the sandbox and to start the interpreter."""
        state["python_state"] = PythonWorkerState(ready=False, execution_count=0, ready_wait_time=0.0)
        return await super().setup_state(state, **kwargs)

    async def python(
        self, code: str, sandbox_id: str, sandbox_state: SandboxState, python_state: PythonWorkerState
    ) -> str:
        """Run code in a Python interpreter that keeps its variables between calls, like a notebook.

        What it prints is shown, and the value of a last line that is an expression.

        Args:
            code: Python code, one line or many.
        """
        if not python_state["ready"]:
            await self._wait_for_worker_ready(sandbox_id, sandbox_state, python_state)
        return self._format_response(
            python_state, await self._send_worker_request(sandbox_id, sandbox_state, {"code": code})
        )

    def _hidden_arguments(self, state: State) -> dict[str, Any]:
        return {**super()._hidden_arguments(state), "python_state": state["python_state"]}

    async def _complete_request(self, request: CreateSandboxRequest) -> CreateSandboxRequest:
        """The request with the packages, which every Python in the sandbox finds."""
        request = await super()._complete_request(request)
        await self._packages.add_to(request, self.sandbox_client)
        return request

    async def _prepare_sandbox(self, state: State) -> None:
        """Start the interpreter first: a subclass's `post_sandbox_setup` may use it."""
        sandbox_id = state["sandbox_id"]
        sandbox = await self.sandbox_client.sandbox(sandbox_id)
        path = sandbox.spec.env.get("PYTHONPATH", "")
        repl = PythonRepl(sandbox, [part for part in path.split(":") if part], sandbox.spec.output_bytes)
        try:
            await repl.start(self.max_startup_wait_seconds)
        except ReplStartError as error:
            raise PythonWorkerNotReadyError(f"the Python interpreter did not start in a sandbox: {error}") from error
        self._repls[sandbox_id] = repl
        await super()._prepare_sandbox(state)

    async def _wait_for_worker_ready(
        self, sandbox_id: str, sandbox_state: SandboxState, python_state: PythonWorkerState
    ) -> None:
        start = time.monotonic()
        await self._wait_for_sandbox_ready(sandbox_state, sandbox_id)
        python_state["ready"] = True
        python_state["ready_wait_time"] = time.monotonic() - start

    async def _send_worker_request(
        self, sandbox_id: str, sandbox_state: SandboxState, payload: dict[str, Any]
    ) -> dict[str, Any]:
        """Run `payload["code"]`: a dict with status, stdout, stderr, result, execution_count and note."""
        start = time.monotonic()
        try:
            reply = await self._repls[sandbox_id].run(payload["code"], self.timeout_per_command_seconds)
        finally:
            sandbox_state["command_execution_times"].append(time.monotonic() - start)
        return cast(dict[str, Any], reply)

    def _format_response(self, python_state: PythonWorkerState, sandbox_response: dict[str, Any]) -> str:
        """What the model reads: output, stderr, the value or the traceback, and which limit ended the call."""
        reply = cast(Reply, sandbox_response)
        python_state["execution_count"] = reply["execution_count"]
        parts = [reply["stdout"].rstrip()]
        if reply["stderr"].rstrip():
            parts.append(f"stderr:\n{reply['stderr'].rstrip()}")
        if reply["result"] is not None:
            value = reply["status"] == "ok"
            parts.append(f"Out[{reply['execution_count']}]: {reply['result']}" if value else reply["result"].rstrip())
        parts.append(reply["note"])
        return "\n".join(part for part in parts if part) or "(no output)"

    async def _delete(self, sandbox_id: str) -> None:
        self._repls.pop(sandbox_id, None)
        await super()._delete(sandbox_id)
