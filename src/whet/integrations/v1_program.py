"""The program that plays a taskset of verifiers 0.4, by the interpreter that has its dependencies: `v1_process.py`.

It imports nothing of whet. Requests and replies are lines of JSON, on standard input and on what was standard output.
What comes first is the config; the reply names the roles, or says why there is none. Then `tasks` lists the tasks, and
`run` plays one: its model is at whet's gateway, by the client that verifiers trains with where `renderer` is given.

A role without a harness of its own has the chat loop below, without a process for each rollout; with tools it has
verifiers' own program of it. Source: verifiers 0.4.0, `v1/serve/server.py`, `v1/harness.py`, `v1/configs/env.py`.
"""

from __future__ import annotations

import asyncio
import importlib.metadata as metadata
import itertools
import json
import os
import sys
from types import ModuleType
from typing import Any

WRONG_VERSION = 3
"""Exit code of an interpreter without verifiers, or with another version."""
LONGEST_LINE = 1 << 28
CHAT = "whet_chat"
"""Id of the harness of this file."""


def check_version(wanted: str) -> None:
    try:
        version = metadata.version("verifiers")
    except metadata.PackageNotFoundError:
        version = ""
    if version != wanted:
        installed = f"verifiers {version}" if version else "no verifiers"
        print(f"{sys.executable} has {installed}; whet works with verifiers {wanted}", file=sys.stderr)
        sys.exit(WRONG_VERSION)


def add_chat_harness() -> None:
    import httpx
    from verifiers.v1.dialects.chat import message_to_wire
    from verifiers.v1.harnesses.null.harness import NullHarness
    from verifiers.v1.runtimes import ProgramResult

    class ChatHarness(NullHarness):  # type: ignore[misc]
        """One answer to the conversation, requested in this process; with tools, verifiers' own loop."""

        async def setup(self, runtime: Any) -> None:
            """Nothing: the loop with tools is prepared when there are some."""

        async def launch(
            self,
            ctx: Any,
            trace: Any,
            runtime: Any,
            endpoint: str,
            secret: str,
            mcp_urls: dict[str, str],
            data: Any,
            tool_interception_url: str | None = None,
        ) -> Any:
            if mcp_urls:
                return await super().launch(
                    ctx, trace, runtime, endpoint, secret, mcp_urls, data, tool_interception_url
                )
            system, prompt = self.resolve_prompt(data)
            messages = [{"role": "system", "content": system}] if system else []
            if isinstance(prompt, str):
                messages.append({"role": "user", "content": prompt})
            else:
                messages += [message_to_wire(message) for message in prompt or []]
            async with httpx.AsyncClient(timeout=None, trust_env=False) as client:
                answer = await client.post(
                    f"{endpoint}/chat/completions",
                    json={"model": ctx.model, "messages": messages},
                    headers={"Authorization": f"Bearer {secret}"},
                )
            failed = answer.status_code != 200
            return ProgramResult(int(failed), "", answer.text if failed else "")

    module = ModuleType(CHAT)
    module.__dict__.update(__all__=["ChatHarness"], ChatHarness=ChatHarness)
    sys.modules[CHAT] = module


def load(config: dict[str, Any]) -> Any:
    """The environment of a config: roles run on this machine, with the chat loop, unless it or the taskset say so.

    Raises `ValueError` for a role whose harness would run on this machine what the model writes.
    """
    from verifiers.v1.configs.agent import AgentConfig, agent_config_fields
    from verifiers.v1.utils import loaders

    add_chat_harness()
    taskset = config["taskset"]["id"]
    for name, field in loaders.env_config_type(taskset, config.get("id", "")).model_fields.items():
        default = field.default
        if isinstance(default, AgentConfig):
            role = config.setdefault(name, {})
            if "runtime" not in role and "runtime" not in default.model_fields_set:
                role["runtime"] = {"type": "subprocess"}
            own = default.harness.id if default.harness is not None else None
            if "harness" not in role and (
                own == "null" or (own is None and loaders.default_harness_id(taskset) == "bash")
            ):
                role["harness"] = {"id": CHAT}
    env = loaders.load_environment(loaders.resolve_env_config(config))
    for name, role in agent_config_fields(env.config).items():
        harness = loaders.load_harness(role.harness or env._default_harness)
        if role.runtime.type == "subprocess" and harness.EXECUTES_CODE:
            raise ValueError(
                f"the harness {harness.config.id!r} of {name} runs what the model writes on this machine; give {name} "
                'a box such as {"runtime": {"type": "docker"}}, or {"harness": {"id": "null"}}'
            )
    return env


class Player:
    """Answers requests until there are no more; each is a task of the event loop."""

    def __init__(self, env: Any, key_var: str) -> None:
        self._env, self._key_var = env, key_var
        self.running: dict[int, asyncio.Task[Any]] = {}

    async def tasks(self, request: dict[str, Any]) -> dict[str, Any]:
        first = itertools.islice(self._env.taskset, request["limit"])
        return {"tasks": [task.data.model_dump(mode="json") for task in first]}

    async def run(self, request: dict[str, Any]) -> dict[str, Any]:
        """An episode: its traces, and what failed."""
        from verifiers.v1.clients import ModelContext
        from verifiers.v1.configs.client import EvalClientConfig, TrainClientConfig
        from verifiers.v1.types import SamplingConfig

        env = self._env
        task_type = type(env.taskset).task_type()
        task = task_type(task_type.data_type().model_validate(request["task"]), env.config.taskset.task)
        where = {"base_url": request["url"], "api_key_var": self._key_var}
        tokens = request["renderer"]
        client = EvalClientConfig(**where) if tokens is None else TrainClientConfig(**where, **tokens)
        context = ModelContext(model=request["model"], client=client, sampling=SamplingConfig(**request["sampling"]))
        (slot,) = env.slots(task)
        episode = await env.run_slot(slot, context)
        return {
            "ok": bool(env.complete(episode)),
            "errors": [_error(error) for error in episode.errors],
            "traces": [_trace(trace) for trace in episode.traces],
        }

    async def answer(self, request: dict[str, Any], out: Any) -> None:
        try:
            reply = await {"tasks": self.tasks, "run": self.run}[request["do"]](request)
        except Exception as error:
            reply = {"failed": f"{type(error).__name__}: {error}"}
        finally:
            self.running.pop(request["number"], None)
        send(out, {"number": request["number"], **reply})


def _error(error: Any) -> dict[str, Any]:
    return {"type": error.type, "message": error.message}


def _trace(trace: Any) -> dict[str, Any]:
    nodes = [
        {"parent": node.parent, "sampled": node.sampled, "ids": node.token_ids, "mask": node.mask}
        | {"message": node.message.model_dump(mode="json", exclude_none=True)}
        for node in trace.nodes
    ]
    return {
        "id": trace.id,
        "agent": trace.agent.name,
        "trainable": trace.agent.trainable,
        "reward": trace.reward,
        "metrics": {name: value for name, value in trace.metrics.items() if value is not None},
        "rewards": {name: reward.score for name, reward in trace.rewards.items() if reward is not None},
        "stop_condition": trace.stop_condition,
        "is_truncated": trace.is_truncated,
        "errors": [_error(error) for error in ([] if trace.ok else trace.errors)],
        "tools": [tool.model_dump(mode="json", include={"name", "description", "parameters"}) for tool in trace.tools],
        "nodes": nodes,
    }


def send(out: Any, reply: dict[str, Any]) -> None:
    out.write(json.dumps(reply).encode() + b"\n")
    out.flush()


async def play(env: Any, key_var: str, out: Any) -> None:
    """Until standard input ends; what is running then is cancelled, so that its boxes and servers end."""
    reader = asyncio.StreamReader(limit=LONGEST_LINE)
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    player = Player(env, key_var)
    async with env.serving():
        send(out, {"ready": True})
        while line := await reader.readline():
            request = json.loads(line)
            if request["do"] == "cancel":
                if (task := player.running.get(request["number"])) is not None:
                    task.cancel()
                continue
            player.running[request["number"]] = asyncio.create_task(player.answer(request, out))
        left = list(player.running.values())
        for task in left:
            task.cancel()
        await asyncio.gather(*left, return_exceptions=True)


def main() -> None:
    """`python v1_program.py VERSION KEY_VARIABLE`"""
    check_version(sys.argv[1])
    out = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what the taskset prints is no reply
    try:
        env = load(json.loads(os.fdopen(0, "rb", buffering=0, closefd=False).readline()))
    except Exception as error:
        send(out, {"failed": f"{type(error).__name__}: {error}"})
        return
    asyncio.run(play(env, sys.argv[2], out))


if __name__ == "__main__":
    main()
