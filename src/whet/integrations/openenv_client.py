"""OpenEnv's servers: a session of one, and one as a child process (`child_server.py`)."""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import httpx

from whet.calls import describe
from whet.errors import ConfigError, EnvError, InfraError
from whet.integrations.child_server import ChildServer, Launch, is_local, server_at
from whet.parsing import as_number, parse_json
from whet.types import Tool

MAX_BYTES = 16 << 20
"""Of a message of the server."""
VERSIONS = "openenv 0.10 or later, before 1.0"
SESSIONS = "64"
"""Of a server that has its number of sessions from the environment variable MAX_CONCURRENT_ENVS."""
_LOAD = """
folder, module = arguments
if folder:
    sys.path.insert(0, folder)
app = importlib.import_module(module).app
"""


class OpenEnvServer(ChildServer):
    """The server of a package or a folder."""

    def __init__(self, target: str, python: str | None, timeout: float) -> None:
        path, folder = Path(target).expanduser(), ""
        if path.is_dir() or target.startswith((".", "/", "~")):
            if not (path / "server" / "app.py").is_file():
                raise ConfigError(
                    f"'openenv:{target}': {path} has no server/app.py; give the folder of an environment."
                )
            folder, target = str(path.resolve().parent), path.resolve().name
        package = re.sub(r"[-.]+", "_", target)
        if not package.isidentifier():
            raise ConfigError(f"'openenv:{target}' should be openenv:http://HOST:PORT, a package or a folder.")
        self.module = f"{package}.server.app"
        super().__init__(
            Launch(
                f"the OpenEnv server {self.module}",
                ("openenv", "openenv-core"),
                VERSIONS,
                ((0, 10), (1, 0)),
                _LOAD,
                (folder, self.module),
                {"MAX_CONCURRENT_ENVS": SESSIONS},
            ),
            python,
            timeout,
        )


def server_of(target: str, python: str | None, timeout: float) -> str | OpenEnvServer:
    """The address of a running server, or one that is started. Raises `ConfigError`."""
    return server_at("openenv", target, python) if "://" in target else OpenEnvServer(target, python, timeout)


class SessionsFullError(Exception):
    """The server has no session free."""


class ActionRefusedError(Exception):
    """The server says that the action is not valid."""


class OpenEnvSession:
    """One WebSocket, which is one environment of the server."""

    def __init__(self, url: str, timeout: float) -> None:
        self._url, self._timeout = url, timeout
        self._socket: Any = None

    async def ask(self, message: Mapping[str, Any]) -> dict[str, Any]:
        """An observation: `observation`, a finite `reward` and `done`. Raises `InfraError` and `EnvError`."""
        from websockets.exceptions import WebSocketException

        try:
            async with asyncio.timeout(self._timeout):
                reply = parse_json(await self._exchange(json.dumps(message)))
        except TimeoutError:
            raise InfraError(f"the OpenEnv server at {self._url} did not respond in {self._timeout:g} s") from None
        except (OSError, EOFError, WebSocketException) as error:
            raise InfraError(f"the OpenEnv server at {self._url} was lost: {describe(error)}") from error
        except ValueError as error:
            raise InfraError(f"the OpenEnv server at {self._url} sent what is no JSON: {error}") from error
        data = reply.get("data") if isinstance(reply, dict) else None
        if not isinstance(data, dict):
            raise InfraError(f"the OpenEnv server at {self._url} sent no message of its protocol: {reply!r:.120}")
        if reply.get("type") == "error":
            raise self._error(data)
        reward, done = data.get("reward"), data.get("done")
        reward = 0.0 if reward is None else as_number(float(reward) if isinstance(reward, bool) else reward)
        if not isinstance(data.get("observation"), dict) or reward is None or not isinstance(done, bool):
            raise InfraError(f"the OpenEnv server at {self._url} sent no observation, reward and done: {data!r:.120}")
        return {"observation": data["observation"], "reward": float(reward), "done": done}

    async def _exchange(self, message: str) -> str | bytes:
        from websockets.asyncio.client import connect
        from websockets.exceptions import ConnectionClosed

        if self._socket is None:
            address = re.sub(r"^http", "ws", self._url) + "/ws"
            direct: dict[str, Any] = {"proxy": None} if is_local(self._url) else {}
            self._socket = await connect(address, max_size=MAX_BYTES, close_timeout=2, **direct)
        with contextlib.suppress(ConnectionClosed):  # a refused session has its reason waiting to be read
            await self._socket.send(message)
        reply: str | bytes = await self._socket.recv()
        return reply

    def _error(self, data: Mapping[str, Any]) -> Exception:
        code, text = data.get("code"), str(data.get("message"))
        if code == "CAPACITY_REACHED":
            return SessionsFullError(f"the OpenEnv server at {self._url} has no session free: {text}")
        if code == "VALIDATION_ERROR":
            errors = data.get("errors")
            details = (
                [str(one.get("msg")) for one in errors if isinstance(one, dict)] if isinstance(errors, list) else []
            )
            return ActionRefusedError("; ".join(details)[:500] or text[:500])
        return EnvError(f"the OpenEnv server at {self._url} failed ({code}): {text:.500}")

    async def close(self) -> None:
        socket, self._socket = self._socket, None
        if socket is not None:
            with contextlib.suppress(Exception):
                await socket.close()


async def action_schema(url: str, seconds: float) -> dict[str, Any]:
    """The JSON schema of an action, from the server's `/schema`. Raises `InfraError` and `ConfigError`."""
    schema = None
    try:
        async with httpx.AsyncClient(timeout=seconds, trust_env=not is_local(url)) as client:
            response = await client.get(f"{url}/schema")
        if response.status_code >= 500:
            raise InfraError(f"the OpenEnv server at {url} failed: {response.status_code}")
        with contextlib.suppress(ValueError, LookupError, TypeError):
            schema = parse_json(response.content, MAX_BYTES)["action"]
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        raise InfraError(f"the OpenEnv server at {url} cannot be reached: {describe(error)}") from error
    if response.status_code != 200 or not isinstance(schema, dict) or not isinstance(schema.get("properties"), dict):
        raise ConfigError(
            f"{url}/schema answered {response.status_code} and no schema of actions; a server of {VERSIONS} has one."
        )
    return schema


def offered_tools(reply: Mapping[str, Any]) -> list[Tool]:
    """The tools of a server. Raises `InfraError` for what is no list of them."""
    tools = reply["observation"].get("tools")
    if not isinstance(tools, list) or not all(
        isinstance(tool, dict) and isinstance(tool.get("name"), str) and isinstance(tool.get("input_schema"), dict)
        for tool in tools
    ):
        raise InfraError(f"the OpenEnv server listed no tools: {reply['observation']!r:.120}")
    return [Tool(tool["name"], str(tool.get("description") or ""), tool["input_schema"]) for tool in tools]


def tool_text(observation: Mapping[str, Any]) -> str:
    """What a tool returned, as text: its data, or the texts of its content, or the error."""
    error, result = observation.get("error"), observation.get("result")
    if error is not None:
        return f"Error: {error.get('message') if isinstance(error, dict) else error}"
    if isinstance(result, dict) and result.get("data") is not None:
        result = result["data"]
    elif isinstance(result, dict) and isinstance(result.get("content"), list):
        result = "\n".join(str(part.get("text", "")) for part in result["content"] if isinstance(part, dict))
    return result if isinstance(result, str) else json.dumps(result, ensure_ascii=False)
