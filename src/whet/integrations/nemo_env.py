"""`NemoGymEnv`: a resources server of NeMo-Gym, `nemo:URL` of a running one, or `nemo:FOLDER` to start one.

    env = whet.load_environment("nemo:http://localhost:11001", dataset="train.jsonl")
    env = whet.load_environment("nemo:./Gym/resources_servers/mcqa", python="/opt/nemo/bin/python")

The rows are those of NeMo-Gym's datasets: `responses_create_params` with the conversation and the tools, and what the
server checks an answer by. Each rollout is a session of the server, known by its cookies. The model may call the tools
of its row, which are routes of the server; it ends with an answer that calls none, and `/verify` gives the reward and
the metrics. A server that is down, slow or returns junk fails the rollout. How answers are sampled is decided by the
run: temperature and lengths in a row have no effect.

Source of the protocol: nemo-gym 0.4, `nemo_gym/base_resources_server.py`, `responses_api_agents/simple_agent/app.py`.
"""

from __future__ import annotations

import asyncio
import json
import math
import time
from collections.abc import Mapping
from numbers import Real
from pathlib import Path
from typing import Any
from urllib.parse import quote

import httpx

from whet.calls import describe
from whet.decorators import cleanup, teardown
from whet.envs.config.arguments import Check, check_values
from whet.envs.tool_env import ToolEnv, read_arguments, tool_message
from whet.errors import ConfigError, DatasetError, EnvError, InfraError
from whet.gateway.interfaces.openai_responses import read_request, write_items
from whet.gateway.wire import RequestError
from whet.integrations.child_server import ChildServer, Launch, is_local, server_at
from whet.integrations.external_scores import ExternalScoreRubric
from whet.parsing import parse_json
from whet.types import Messages, State, Tool, ToolCall, ToolMessage

MAX_BYTES = 16 << 20
"""Of an answer of the server."""
_LOAD = """
root, kind, name = arguments
sys.path.insert(0, root)
module = importlib.import_module(f"{kind}.{name}.app")
from nemo_gym.base_resources_server import SimpleResourcesServer
from nemo_gym.config_types import BaseServerConfig
from nemo_gym.server_utils import ServerClient
from omegaconf import OmegaConf
made = [c for c in vars(module).values() if isinstance(c, type) and issubclass(c, SimpleResourcesServer)
        and c.__module__ == module.__name__]
settings = OmegaConf.create({})
path = os.path.join(root, kind, name, "configs", f"{name}.yaml")
config = OmegaConf.load(path) if os.path.exists(path) else OmegaConf.create({})
for key in config:
    settings = OmegaConf.select(config, f"{key}.{kind}.{name}") or settings
settings = {**OmegaConf.to_container(settings), "host": "127.0.0.1", "port": 0, "name": name, "entrypoint": "app.py"}
client = ServerClient(head_server_config=BaseServerConfig(host="127.0.0.1", port=0),
                      global_config_dict=OmegaConf.create({}))
server = made[-1](config=made[-1].model_fields["config"].annotation.model_validate(settings), server_client=client)
app = server.setup_webserver()
server.setup_exception_middleware(app)
"""
"""As `SimpleServer.run_webserver` makes it, without a Ray cluster and a head server."""
_POSITIVE: tuple[Check, str] = (lambda value: isinstance(value, Real) and float(value) > 0, "a number above 0")
_EXPECTED: dict[str, tuple[Check, str]] = {
    **dict.fromkeys(("dataset", "eval_dataset"), (str, "the path of a .jsonl file")),
    "python": (str, "the path of an interpreter"),
    **dict.fromkeys(("message_timeout", "start_timeout"), _POSITIVE),
}


def load_environment(target: str, **kwargs: Any) -> NemoGymEnv:
    """The environment `nemo:TARGET`."""
    return NemoGymEnv(target, **kwargs)


def verified_reward(state: State) -> float:
    return float(state["nemo_reward"])


class NemoGymEnv(ToolEnv):
    """Rollouts against a resources server of NeMo-Gym."""

    def __init__(
        self,
        target: str,
        dataset: str | None = None,
        eval_dataset: str | None = None,
        max_turns: int = 10,
        python: str | None = None,
        message_timeout: float = 60.0,
        start_timeout: float = 120.0,
        **kwargs: Any,
    ) -> None:
        """Make an environment; nothing is connected or started yet.

        Args:
            target: the URL of a server, or `resources_servers/NAME` of a checkout or an installation, which is started.
            dataset: JSON lines to train on; by default `data/train.jsonl` of the folder, else its `data/example.jsonl`.
            eval_dataset: JSON lines to evaluate on; by default `data/validation.jsonl` of the folder, if it is there.
            max_turns: model turns after which a rollout ends, and is verified.
            python: the interpreter that a folder is started with, in which nemo-gym is installed; by default this one.
            message_timeout: seconds that the server has to respond to a request.
            start_timeout: seconds that a server that is started has to respond.
            kwargs: arguments of `ToolEnv`, other than tools and rubric.
        """
        check_values(self, locals(), _EXPECTED)
        self.target, self.message_timeout = target, float(message_timeout)
        folder = None if "://" in target else _folder(target)
        self._server = _started(folder, python, start_timeout) if folder else server_at("nemo", target, python)
        if folder is not None:
            data = folder / "data"
            dataset = dataset or str(next((f for f in [data / "train.jsonl"] if f.is_file()), data / "example.jsonl"))
            if eval_dataset is None and (data / "validation.jsonl").is_file():
                eval_dataset = str(data / "validation.jsonl")
        if dataset is None:
            raise ConfigError(f"'nemo:{target}' needs its rows: give dataset, the path of a .jsonl file of NeMo-Gym.")
        self._rows: list[dict[str, Any]] = []
        self._tools: list[list[Tool] | None] = []
        super().__init__(
            dataset=self._read(dataset),
            eval_dataset=None if eval_dataset is None else self._read(eval_dataset),
            max_turns=max_turns,
            **{"rubric": ExternalScoreRubric(verified_reward), **kwargs},
        )

    def _read(self, path: str) -> list[dict[str, Any]]:
        """Rows for whet, of which `info["row"]` is the number in `_rows`. Raises `DatasetError` with the line."""
        rows = []
        try:
            with Path(path).expanduser().open(encoding="utf-8") as file:
                for number, line in enumerate(file, 1):
                    if not line.strip():
                        continue
                    try:
                        row = parse_json(line, MAX_BYTES)
                        request = read_request({"model": "", **row["responses_create_params"]})
                    except (RequestError, ValueError, LookupError, TypeError) as error:
                        raise DatasetError(f"{path}, line {number}, is no row of NeMo-Gym: {describe(error)}") from None
                    rows.append({"prompt": request.messages, "answer": "", "info": {"row": len(self._rows)}})
                    self._rows.append(row)
                    self._tools.append(request.tools)
        except (OSError, UnicodeDecodeError) as error:
            raise DatasetError(f"the rows of 'nemo:{self.target}' cannot be read: {error}.") from error
        if not rows:
            raise DatasetError(f"{path} has no rows.")
        return rows

    async def setup_state(self, state: State) -> None:
        url = self._server if isinstance(self._server, str) else await asyncio.to_thread(self._server.url)
        number = state["info"]["row"]
        state["tool_defs"] = self._tools[number] or []
        state["nemo_client"] = httpx.AsyncClient(  # with the cookies of this session alone
            base_url=url, timeout=self.message_timeout, trust_env=not is_local(url), verify=url.startswith("https:")
        )
        status, text = await self._post(state, "seed_session", self._rows[number])
        if status in (404, 405):
            raise EnvError(
                f"{url} has no /seed_session, so it is no resources server that NeMo-Gym's simple agent plays"
            )
        reply = _object(url, "seed_session", status, text)
        if "mcp" in reply and not state["tool_defs"]:
            raise EnvError(f"the tools of {url} are on its MCP server, and in no row; whet calls the tools of the rows")

    async def _post(self, state: State, route: str, body: Any) -> tuple[int, str]:
        """Status and text of an answer. Raises `InfraError` where there is none, or one that is too long."""
        client: httpx.AsyncClient = state["nemo_client"]
        chunks: list[bytes] = []
        size = 0
        try:
            async with (
                asyncio.timeout(self.message_timeout),
                client.stream("POST", f"/{quote(route, safe='')}", json=body) as response,
            ):
                async for chunk in response.aiter_bytes():
                    chunks.append(chunk)
                    size += len(chunk)
                    if size > MAX_BYTES:
                        raise InfraError(f"{client.base_url}{route} answered with more than {MAX_BYTES >> 20} MiB")
        except TimeoutError:
            raise InfraError(f"{client.base_url}{route} did not answer in {self.message_timeout:g} s") from None
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            raise InfraError(f"{client.base_url}{route} cannot be reached: {describe(error)}") from error
        if response.status_code in (502, 503, 504):
            raise InfraError(f"{client.base_url}{route} answered {response.status_code}")
        return response.status_code, b"".join(chunks).decode("utf-8", "replace")

    async def _answer(self, call: ToolCall, state: State, messages: Messages) -> ToolMessage:
        """What the tool's route answers, whatever its status: errors are for the model to read, as in NeMo-Gym."""
        tool = next((tool for tool in state["tool_defs"] if tool["name"] == call["name"]), None)
        if tool is None:
            return tool_message(f"Error: there is no tool '{call['name']}'", call["id"])
        try:
            arguments = read_arguments(call["arguments"], tool)
        except (ValueError, RecursionError) as error:
            return tool_message(json.dumps({"error": f"Invalid tool call arguments: {error}"}), call["id"])
        return tool_message((await self._post(state, call["name"], arguments))[1], call["id"])

    @cleanup
    async def verify(self, state: State) -> None:
        """Have the server score the conversation, and end the session."""
        client: httpx.AsyncClient | None = state.get("nemo_client")
        try:
            if state.get("error") is None and client is not None:
                row, last = self._rows[state["info"]["row"]], state["completion"][-1:]
                if state.get("stop_condition") == "max_turns_reached":  # calls of the last turn count, as in NeMo-Gym
                    state["completion"] += await self.env_response(last, state)
                with state["timing"].grading():
                    status, text = await self._post(state, "verify", {**row, "response": _response(state, row)})
                reply = _object(str(client.base_url), "verify", status, text)
                reward = _number(reply.get("reward"))
                if reward is None:
                    raise InfraError(f"{client.base_url}verify answered without a finite reward: {text:.120}")
                numbers = {name: _number(value) for name, value in reply.items() if name not in row}
                state["nemo_reward"] = reward
                state["external_metrics"] = {k: v for k, v in numbers.items() if v is not None and k != "reward"}
        finally:
            state.pop("nemo_client", None)
            if client is not None:
                await client.aclose()

    @teardown
    async def stop_server(self) -> None:
        if not isinstance(self._server, str):
            self._server.close()


def _folder(target: str) -> Path:
    path = Path(target).expanduser().resolve()
    if not (path / "app.py").is_file() or not path.name.isidentifier() or not path.parent.name.isidentifier():
        raise ConfigError(f"'nemo:{target}' should be nemo:http://HOST:PORT, or the folder resources_servers/NAME.")
    return path


def _started(folder: Path, python: str | None, timeout: float) -> ChildServer:
    arguments = (str(folder.parent.parent), folder.parent.name, folder.name)
    works, versions = "nemo-gym 0.4 or later, before 1.0", ((0, 4), (1, 0))
    return ChildServer(
        Launch(f"the resources server {folder.name}", ("nemo-gym",), works, versions, _LOAD, arguments), python, timeout
    )


def _response(state: State, row: Mapping[str, Any]) -> dict[str, Any]:
    """The whole rollout as the `response` object that the simple agent sends to `/verify`."""
    params = row["responses_create_params"]
    return {
        "id": f"resp_{state['trajectory_id']}",
        "object": "response",
        "created_at": int(time.time()),
        "model": state["model"],
        "output": write_items(state["completion"], state["trajectory_id"]),
        "parallel_tool_calls": params.get("parallel_tool_calls", True),
        "tool_choice": params.get("tool_choice", "auto"),
        "tools": params.get("tools") or [],
        "incomplete_details": {"reason": "max_output_tokens"} if state.get("is_truncated") else None,
    }


def _object(url: str, route: str, status: int, text: str) -> dict[str, Any]:
    """The JSON object of an answer. Raises `InfraError`, and `EnvError` for a request that the server refuses."""
    if status != 200:
        kind = EnvError if 400 <= status < 500 else InfraError
        raise kind(f"{url} answered {status} to /{route}: {text:.300}")
    try:
        reply = parse_json(text)
    except ValueError as error:
        raise InfraError(f"{url} answered what is no JSON to /{route}: {error}") from error
    if not isinstance(reply, dict):
        raise InfraError(f"{url} answered no object to /{route}: {text:.120}")
    return reply


def _number(value: Any) -> float | None:
    return float(value) if isinstance(value, bool | int | float) and math.isfinite(value) else None
