"""Where a program asks the model of its rollout by HTTP: an address and a key, on loopback.

For commands, and for functions whose library wants an address. The server behind it belongs to the gateway, a room
above this one. So it is described here, named once, and looked up when it is first needed.
"""

from __future__ import annotations

import importlib
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from whet.errors import ConfigError, MissingExtraError

if TYPE_CHECKING:
    from whet.tasksets.programs.session import Session

GATEWAY = ("whet.gateway.rollouts", "RolloutGateway")


@dataclass(frozen=True, slots=True)
class Opening:
    """The way to one rollout's model: `http://127.0.0.1:PORT` and `path`, for who sends `key`."""

    session_id: str
    port: int
    path: str
    key: str = field(repr=False)


class SessionGateway(Protocol):
    """Opens sessions to programs, for one environment."""

    def open(self, session: Session) -> Opening:
        """From now on, requests at the opening are turns of this rollout. To be called on its event loop."""
        ...

    async def shut(self, opening: Opening) -> None:
        """Requests there are refused from now on."""
        ...

    async def close(self) -> None:
        """This environment needs no server any more."""
        ...


_API_NAMES: dict[str, tuple[str, ...]] = {
    "openai_chat_completions": ("chat", "chat_completions"),
    "openai_completions": ("completions",),
    "openai_responses": ("responses",),
    "anthropic_messages": ("messages",),
}


def endpoint_config(opening: Opening, model: str, api: str) -> dict[str, str]:
    """Address, key and model as client libraries want them, for one of the interfaces that the gateway speaks."""
    kind = next((kind for kind, names in _API_NAMES.items() if api in (kind, *names)), None)
    if kind is None:
        known = ", ".join(name for names in _API_NAMES.values() for name in names)
        raise ConfigError(f"state.get_endpoint_config: there is no api '{api}'; there are: {known}.")
    root = f"http://127.0.0.1:{opening.port}{opening.path}"
    config = {"model": model, "api_key": opening.key, "api_client_type": kind}
    if kind == "anthropic_messages":  # its clients add /v1 themselves
        return {**config, "base_url": root}
    return {**config, "base_url": f"{root}/v1", "api_base": f"{root}/v1"}


def make_gateway(whose: str = "Harness(program={command = [...]})") -> SessionGateway:
    """Raises `MissingExtraError` where the server's packages are not installed."""
    module, name = GATEWAY
    try:
        made: SessionGateway = getattr(importlib.import_module(module), name)()
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] == "whet":
            raise
        raise MissingExtraError(whose, "serve") from error
    return made
