"""How to reach model endpoints: `EndpointConfig` for one, `ClientConfig` for one or several behind the same client.

Keys are named by environment variable and never written here, so that a config can be saved and shared.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator

from whet.types import Usage

ClientType = Literal["openai_chat_completions", "openai_completions", "openai_responses", "anthropic_messages"]
CLASSES: dict[ClientType, str] = {
    "openai_chat_completions": "whet.clients.providers.openai_chat:OpenAIChatCompletionsClient",
    "openai_completions": "whet.clients.providers.openai_completions:OpenAICompletionsClient",
    "openai_responses": "whet.clients.providers.openai_responses:OpenAIResponsesClient",
    "anthropic_messages": "whet.clients.providers.anthropic_messages:AnthropicMessagesClient",
}
"""The client of each interface, as `module:class`: a module is imported with its first client."""

MessageForm = Literal[
    "no_null_content", "images_as_user", "text_content", "system_as_user", "no_empty_content", "short_call_ids"
]
"""A form of messages that some endpoints of OpenAI's chat completions insist on."""


class Price(BaseModel):
    """What an endpoint charges, in dollars for a million tokens."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    input: float = Field(ge=0, description="for tokens of the prompt")
    output: float = Field(ge=0, description="for tokens the model writes, reasoning included")

    def of(self, usage: Usage) -> float:
        """Dollars for one response."""
        return float(usage.prompt_tokens * self.input + usage.completion_tokens * self.output) / 1_000_000


class EndpointConfig(BaseModel):
    """One endpoint."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    client_idx: int = 0
    api_key_var: str = Field("OPENAI_API_KEY", description="environment variable that holds the key")
    api_base_url: str = Field("https://api.openai.com/v1", description="where the endpoint is")
    timeout: float = Field(3600.0, gt=0, description="seconds one request may take")
    connect_timeout: float = Field(5.0, gt=0, description="seconds to wait for a connection")
    max_connections: int = Field(28000, ge=1, description="connections at once")
    max_keepalive_connections: int = Field(28000, ge=0, description="idle connections kept open")
    max_retries: int = Field(10, ge=0, description="how often a failed request is sent again")
    max_concurrent: int | None = Field(None, ge=1, description="requests at once; None = no limit of its own")
    extra_headers: dict[str, str] = Field(default_factory=dict, description="sent with every request")
    price: Price | None = Field(None, description="what tokens cost; None = unknown, and no cost is reported")
    fields: dict[str, str] = Field(
        default_factory=dict,
        description="fields the endpoint does not take: its own name for each, or '' for none",
    )
    forms: list[MessageForm] = Field(default_factory=list, description="forms of messages the endpoint insists on")


class ClientConfig(EndpointConfig):
    """A client: its kind, its endpoint, and replicas of it that groups are spread over in turn."""

    client_type: ClientType = Field("openai_chat_completions", description="which interface the endpoint speaks")
    extra_headers_from_state: dict[str, str] = Field(
        default_factory=dict, description="header name to the state field whose value it carries, for every request"
    )
    endpoint_configs: list[EndpointConfig] = Field(
        default_factory=list, description="replicas, used in turn, one per group; empty = only the endpoint above"
    )

    @field_validator("endpoint_configs", mode="before")
    @classmethod
    def _endpoints_alone(cls, value: Any) -> Any:
        """An entry may be a whole `ClientConfig`, of which the endpoint counts; not one with entries of its own."""
        return [_endpoint_of(entry) for entry in value] if isinstance(value, list) else value

    def spread(self) -> list[ClientConfig]:
        """One config per endpoint; what an endpoint does not set is that of this config."""
        own = self.model_copy(update={"endpoint_configs": []})
        return [
            own.model_copy(update={name: getattr(endpoint, name) for name in endpoint.model_fields_set})
            for endpoint in self.endpoint_configs
        ] or [own]


def _endpoint_of(entry: Any) -> Any:
    fields = entry.model_dump(exclude_unset=True) if isinstance(entry, ClientConfig) else entry
    if not isinstance(fields, Mapping):
        return entry
    if fields.get("endpoint_configs"):
        raise ValueError("entries of endpoint_configs cannot include endpoint_configs")
    of_clients = ClientConfig.model_fields.keys() - EndpointConfig.model_fields.keys()
    return {name: value for name, value in fields.items() if name not in of_clients}
