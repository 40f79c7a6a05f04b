"""Where a program reaches the model of its rollout by HTTP: an address and a key, on loopback.

For commands, and for functions whose library needs an address.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from whet.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Opening:
    """The way to one rollout's model: `http://127.0.0.1:PORT` and `path`, for requests with `key`."""

    session_id: str
    port: int
    path: str
    key: str = field(repr=False)


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
