"""`MCPServerConfig`: one entry of `MCPEnv(mcp_servers=[...])`, read and checked."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import re
import shutil
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Self
from urllib.parse import urlsplit

from pydantic import BeforeValidator, Field, model_validator

from whet.config import StrictModel, validate
from whet.errors import ConfigError, MissingExtraError
from whet.system.offline import is_loopback

PORT = "{port}"
# The variables that every program needs. Others are passed by name only, so that no key of the host leaks to a server.
INHERITED = ("HOME", "LANG", "LC_ALL", "LOGNAME", "PATH", "SHELL", "TERM", "TMPDIR", "USER")
_SECRET_NAME = re.compile(r"KEY|TOKEN|SECRET|PASSW|CREDENTIAL|AUTH", re.IGNORECASE)


def _path_text(value: Any) -> Any:
    return os.fspath(value) if isinstance(value, os.PathLike) else value


def _or_empty(empty: Any) -> BeforeValidator:
    return BeforeValidator(lambda value: empty if value is None else value)


Text = Annotated[str, BeforeValidator(_path_text)]


class MCPServerConfig(StrictModel):
    """A server that MCPEnv starts (`command`) and speaks stdio with, one that runs already (`url`), or both.

    With both, the command is started and then spoken to over streamable HTTP; `{port}` in `url` and `args` is a free
    port.
    """

    name: str = Field(min_length=1, description="what the server is called in messages")
    command: Text | None = Field(None, description="program to start")
    args: Annotated[tuple[Text, ...], _or_empty(())] = Field((), description="its arguments")
    env: Annotated[dict[str, str], _or_empty({})] = Field(
        default_factory=dict, repr=False, description="environment variables it is given, besides a minimal few"
    )
    pass_env: tuple[str, ...] = Field((), description="variables of this process's environment that it is given too")
    cwd: Text | None = Field(None, description="directory it is started in; this process's own by default")
    url: str | None = Field(None, description="where it answers over streamable HTTP, usually ending in /mcp")
    headers: Annotated[dict[str, str], _or_empty({})] = Field(
        default_factory=dict, repr=False, description="HTTP headers sent with every request"
    )
    tool_prefix: str = Field("", description="put before the names of its tools")
    per_rollout: bool = Field(False, description="a server of its own for every rollout, instead of one for all")
    description: str = Field("", description="for the reader; not used")

    @model_validator(mode="after")
    def _makes_sense(self) -> Self:
        if self.command is None and self.url is None:
            raise ValueError("give a command to start (stdio) or a url to connect to (streamable HTTP)")
        if self.command is None:
            for field in ("args", "env", "pass_env", "cwd"):
                if getattr(self, field):
                    raise ValueError(f"'{field}' is for a server that is started; there is no command")
        if self.url is None:
            if self.headers:
                raise ValueError("'headers' are for a server that is reached over HTTP; there is no url")
        elif urlsplit(self.url).scheme not in ("http", "https") or not urlsplit(self.url).netloc:
            raise ValueError(f"'url' should begin with http:// or https://, and is '{self.url}'")
        elif PORT in self.url and self.command is None:
            raise ValueError(
                f"'{PORT}' in the url stands for the port of a server that is started; there is no command"
            )
        if self.url is None and any(PORT in arg for arg in self.args):
            raise ValueError(f"'{PORT}' in args stands for the port of a server reached over HTTP; there is no url")
        return self

    def environment(self) -> dict[str, str]:
        """The environment of its process. Raises `ConfigError` for a variable of `pass_env` that is not set."""
        missing = [name for name in self.pass_env if name not in os.environ]
        if missing:
            raise ConfigError(
                f"MCP server '{self.name}' is to be given {', '.join(missing)} (pass_env), not set here. Set it, or "
                "take it out of pass_env."
            )
        names = (*INHERITED, *self.pass_env)
        return {name: os.environ[name] for name in names if name in os.environ} | self.env

    def argv(self, port: int | None) -> list[str]:
        """The command line. Raises `ConfigError` for a program that does not exist."""
        assert self.command is not None
        here = self.command
        if os.sep in here and self.cwd is not None:
            here = os.path.join(self.cwd, here)
        if shutil.which(here, path=self.environment().get("PATH")) is None:
            raise ConfigError(
                f"MCP server '{self.name}': there is no program '{self.command}'. Install it, or give its full path "
                "(for this Python: sys.executable)."
            )
        if self.cwd is not None and not os.path.isdir(self.cwd):
            raise ConfigError(f"MCP server '{self.name}': its cwd {self.cwd} is no directory.")
        args = self.args if port is None else [arg.replace(PORT, str(port)) for arg in self.args]
        return [self.command, *args]

    def without_secrets(self, text: str) -> str:
        """`text` with the secrets of this server replaced by ***."""
        secrets = {value for name, value in self.env.items() if _SECRET_NAME.search(name)}
        secrets |= {os.environ.get(name, "") for name in self.pass_env}
        secrets |= {part for value in self.headers.values() for part in (value, value.rpartition(" ")[2])}
        for secret in sorted(secrets, key=len, reverse=True):
            if len(secret) >= 4:
                text = text.replace(secret, "***")
        return text

    @property
    def shown(self) -> str:
        """Its command line or address, for messages."""
        if self.command is not None:
            return self.without_secrets(" ".join((self.command, *self.args)))
        parts = urlsplit(self.url or "")
        return self.without_secrets(f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}")

    @property
    def is_on_loopback(self) -> bool:
        return is_loopback(urlsplit(self.url or "").hostname or "")


def require_mcp(feature: str) -> None:
    """Raise `MissingExtraError`, or `ConfigError` where the `mcp` package is too old, without importing it."""
    if importlib.util.find_spec("mcp") is None:
        raise MissingExtraError(feature, "mcp")
    version = importlib.metadata.version("mcp")
    if int(version.partition(".")[0]) < 2:
        raise ConfigError(f"{feature} needs mcp 2 or newer, and {version} is installed. Run: pip install 'whet[mcp]'")


def read_servers(mcp_servers: Any) -> list[MCPServerConfig]:
    """The servers of `MCPEnv(mcp_servers=...)`. Raises `ConfigError` with one line per mistake."""
    if isinstance(mcp_servers, Mapping | str) or not isinstance(mcp_servers, Sequence):
        raise ConfigError(f"mcp_servers should be a list of dicts, one per server, not {type(mcp_servers).__name__}.")
    servers = []
    for index, server in enumerate(mcp_servers):
        if not isinstance(server, MCPServerConfig):
            if not isinstance(server, Mapping):
                raise ConfigError(f"mcp_servers[{index}] should be a dict, not {type(server).__name__}.")
            server = validate(MCPServerConfig, server, f"mcp_servers[{index}]")
        servers.append(server)
    twice = [name for name, count in Counter(server.name for server in servers).items() if count > 1]
    if twice:
        raise ConfigError(f"two servers of mcp_servers are called '{twice[0]}'; give each a name of its own.")
    return servers
