"""An agent environment under one library. Started by the tests:

    python agent_driver.py verifiers|whet PORT MAX_TURNS OUTPUT

The sandbox of 0.1.14 is a hosted service's, so there it is this machine, without a boundary: `OnThisMachine` has the
methods of the service's client. Everything else of `CliAgentEnv` is the library's own.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import sys
import types
from pathlib import Path
from typing import Any

side, port, max_turns, output = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), Path(sys.argv[4])
FOLDER = "/tmp/whet-parity-agent"
AGENT = f"""
import json, os, urllib.request

def ask(messages, **more):
    body = json.dumps({{"model": "any", "messages": messages, **more}}).encode()
    headers = {{"Content-Type": "application/json", "Authorization": "Bearer intercepted"}}
    request = urllib.request.Request(os.environ["OPENAI_BASE_URL"] + "/chat/completions", body, headers)
    with urllib.request.urlopen(request) as response:
        return json.load(response)["choices"][0]["message"]["content"]

parameters = {{"type": "object", "properties": {{"a": {{"type": "integer"}}}}}}
tools = [{{"type": "function", "function": {{"name": "add", "description": "Add.", "parameters": parameters}}}}]
messages = [{{"role": "system", "content": "You count."}}]
messages += [{{"role": "user", "content": open("{FOLDER}/task.txt").read()}}]
messages += [{{"role": "assistant", "content": ask(messages, tools=tools)}}, {{"role": "user", "content": "Sure?"}}]
second = ask(messages, tools=tools)
ask([{{"role": "user", "content": "Be brief."}}])
open("{FOLDER}/answer.txt", "w").write(second)
"""
SCRIPT = ["41", "42", "ok"]

if side == "whet":
    import whet

    whet.install_verifiers_alias()

import verifiers as vf  # noqa: E402
from verifiers.clients import Client  # noqa: E402
from verifiers.envs.experimental import cli_agent_env  # noqa: E402
from verifiers.types import Response, ResponseMessage  # noqa: E402


class OnThisMachine:
    """The methods of the hosted service's client that `CliAgentEnv` calls."""

    async def create(self, request: Any) -> Any:
        self.env = request.environment_vars
        return types.SimpleNamespace(id="sandbox")

    async def wait_for_creation(self, *args: Any, **kwargs: Any) -> None: ...

    async def delete(self, *args: Any, **kwargs: Any) -> None:
        shutil.rmtree(FOLDER, ignore_errors=True)

    bulk_delete = delete

    async def upload_file(self, sandbox_id: str, path: str, local: str, **kwargs: Any) -> None:
        Path(path).parent.mkdir(exist_ok=True)
        shutil.copy(local, path)

    async def read_file(self, sandbox_id: str, path: str, **kwargs: Any) -> Any:
        return types.SimpleNamespace(content=Path(path).read_text() if Path(path).exists() else "")

    async def start_background_job(self, sandbox_id: str, command: str, **kwargs: Any) -> Any:
        process = await asyncio.create_subprocess_shell(command, env={**os.environ, **self.env}, stdout=-1, stderr=-1)
        self.done = asyncio.ensure_future(process.communicate())
        return process

    async def get_background_job(self, sandbox_id: str, process: Any, **kwargs: Any) -> Any:
        if not self.done.done():
            return types.SimpleNamespace(completed=False)
        out, err = (part.decode() for part in self.done.result())
        return types.SimpleNamespace(completed=True, exit_code=process.returncode, stdout=out, stderr=err)

    def teardown(self, *args: Any, **kwargs: Any) -> None: ...


class Solver(cli_agent_env.CliAgentEnv):
    async def post_sandbox_setup(self, state: Any) -> None:
        await self.upload_content(state["sandbox_id"], AGENT, f"{FOLDER}/agent.py")
        await self.upload_content(state["sandbox_id"], state["prompt"][-1]["content"], f"{FOLDER}/task.txt")

    async def post_rollout(self, state: Any) -> None:
        state["said"] = await self.read_file(state["sandbox_id"], f"{FOLDER}/answer.txt") or ""


class Scripted(Client):  # type: ignore[misc]
    def __init__(self) -> None:
        self.answers = iter(SCRIPT)

    async def get_response(self, prompt: Any, model: str, sampling_args: Any, tools: Any = None, **kwargs: Any) -> Any:
        names = [tool["name"] if isinstance(tool, dict) else tool.name for tool in tools or []]
        text = " ".join([next(self.answers), *names])
        message = ResponseMessage(
            content=text, finish_reason="stop", is_truncated=False, reasoning_content=None, tool_calls=None, tokens=None
        )
        return Response(id="r", created=0, model=model, usage=None, message=message)


Scripted.__abstractmethods__ = frozenset()  # how messages reach a provider: there is none


async def right(state: Any, answer: str) -> float:
    return float(state["said"].startswith(answer))


def plain(value: Any) -> Any:
    if hasattr(value, "model_dump"):
        value = value.model_dump()
    if isinstance(value, dict):
        return {key: plain(item) for key, item in value.items() if item is not None}
    return [plain(item) for item in value] if isinstance(value, list | tuple) else value


row = {"prompt": [{"role": "user", "content": "6 * 7 = ?"}], "answer": "42", "example_id": 0, "info": {}}
rows: Any = [row]
if side == "verifiers":
    from datasets import Dataset

    rows = Dataset.from_list([{"question": "6 * 7 = ?", "answer": "42"}])
    cli_agent_env.CreateSandboxRequest = types.SimpleNamespace  # the installed one is of a later service
env = Solver(
    run_command=f"python3 {FOLDER}/agent.py",
    dataset=rows,
    rubric=vf.Rubric(funcs=[right]),
    poll_interval=0.2,
    interception_port=port,
    interception_url=f"http://127.0.0.1:{port}",
    max_turns=max_turns,
)
if side == "verifiers":
    env.sandbox_client = OnThisMachine()
columns = ["trajectory", "agent_exit_code", "said", "agent_completed"]
(result,) = asyncio.run(env.generate(inputs=[row], client=Scripted(), model="m", state_columns=columns))["outputs"]
kept = (
    "prompt",
    "completion",
    "reward",
    "metrics",
    "stop_condition",
    "is_completed",
    "is_truncated",
    "error",
    *columns[1:],
)
steps = [{"prompt": step["prompt"], "completion": step["completion"]} for step in result["trajectory"]]
output.write_text(json.dumps(plain({**{name: result.get(name) for name in kept}, "steps": steps})))
