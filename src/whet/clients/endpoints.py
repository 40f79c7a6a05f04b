"""`configs/endpoints.toml`: short names for models behind endpoints.

    [[endpoint]]
    endpoint_id = "mini"                     # what `-m mini` looks up
    model = "gpt-4.1-mini"
    url = "https://api.openai.com/v1"
    key = "OPENAI_API_KEY"                   # the environment variable that holds the key, never the key itself
    api_client_type = "openai_chat_completions"
    headers = { X-Team = "evals" }
    price = { input = 0.4, output = 1.6 }    # dollars for a million tokens
    fields = { max_completion_tokens = "max_tokens", reasoning_content = "" }  # renamed, and never sent
    forms = ["no_null_content"]              # forms of messages that it insists on

Several tables with one `endpoint_id` are replicas of one model. The format is that of `verifiers` 0.1.14, with `price`,
`max_concurrent`, `timeout`, `max_retries`, `fields` and `forms` added.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import AliasChoices, Field, field_validator, model_validator

from whet.clients.config import ClientConfig, ClientType, EndpointConfig, MessageForm, Price
from whet.config import StrictModel, read_toml, validate
from whet.errors import ConfigError

DEFAULT_FILE = Path("configs/endpoints.toml")


class EndpointEntry(StrictModel):
    """`[[endpoint]]`: one endpoint under a short name."""

    endpoint_id: str = Field(min_length=1, description="The short name; repeated, the tables are replicas.")
    model: str = Field(min_length=1, description="The model's name at the endpoint.")
    url: str = Field(
        min_length=1, validation_alias=AliasChoices("url", "api_base_url"), description="Where the endpoint is."
    )
    key: str = Field(
        "OPENAI_API_KEY",
        validation_alias=AliasChoices("key", "api_key_var"),
        description="Environment variable, or name in the keyring, that holds the key.",
    )
    api_client_type: ClientType = Field(
        "openai_chat_completions",
        validation_alias=AliasChoices("api_client_type", "type"),
        description="Which interface the endpoint speaks.",
    )
    headers: dict[str, str] = Field(
        default_factory=dict,
        validation_alias=AliasChoices("headers", "extra_headers"),
        description="Sent with every request. No secrets here.",
    )
    price: Price | None = Field(None, description="Dollars for a million tokens: input and output.")
    max_concurrent: int | None = Field(None, ge=1, description="Requests at once.")
    timeout: float = Field(3600.0, gt=0, description="Seconds one request may take.")
    max_retries: int = Field(10, ge=0, description="How often a failed request is sent again.")
    fields: dict[str, str] = Field(
        default_factory=dict, description='Fields it does not take: its own name for each, or "" where it has none.'
    )
    forms: tuple[MessageForm, ...] = Field((), description="Forms of messages that it insists on.")

    @model_validator(mode="before")
    @classmethod
    def _one_spelling(cls, data: Any) -> Any:
        """A setting under both of its names counts once where they say the same."""
        if not isinstance(data, dict):
            return data
        for field in cls.model_fields.values():
            names = getattr(field.validation_alias, "choices", [])
            if len(names) == 2 and names[0] in data and data.get(names[1]) == data[names[0]]:
                data = {name: value for name, value in data.items() if name != names[1]}
        return data

    @field_validator("key")
    @classmethod
    def _is_a_name(cls, value: str) -> str:
        if not value.isidentifier():
            # Not shown: it may be the key itself.
            raise ValueError("should name the environment variable that holds the key, as in OPENAI_API_KEY")
        return value

    def settings(self) -> dict[str, Any]:
        """The fields of `EndpointConfig` that the entry sets."""
        return {
            "api_base_url": self.url,
            "api_key_var": self.key,
            "extra_headers": self.headers,
            "price": self.price,
            "max_concurrent": self.max_concurrent,
            "timeout": self.timeout,
            "max_retries": self.max_retries,
            "fields": self.fields,
            "forms": list(self.forms),
        }


class EndpointsFile(StrictModel):
    """The whole file."""

    endpoint: tuple[EndpointEntry, ...] = Field((), description="One table for each endpoint or replica.")


@dataclass(frozen=True, slots=True)
class Endpoint:
    """The model and the client of a short name."""

    model: str
    client: ClientConfig


def read_endpoints(path: Path) -> dict[str, Endpoint]:
    """Every short name of a file. Raises `ConfigError` for what is wrong in it."""
    entries: dict[str, list[EndpointEntry]] = {}
    for entry in validate(EndpointsFile, read_toml(path), str(path)).endpoint:
        entries.setdefault(entry.endpoint_id, []).append(entry)
    return {name: _endpoint(path, name, replicas) for name, replicas in entries.items()}


def find_endpoint(name: str, path: Path = DEFAULT_FILE) -> Endpoint | None:
    """The endpoint called `name`; None where the file has no such name, or the default file does not exist."""
    if not path.exists() and path == DEFAULT_FILE:
        return None
    return read_endpoints(path).get(name)


def _endpoint(path: Path, name: str, replicas: list[EndpointEntry]) -> Endpoint:
    first = replicas[0]
    for other in replicas[1:]:
        for field in ("model", "api_client_type"):
            if getattr(other, field) != getattr(first, field):
                raise ConfigError(
                    f"{path}: the replicas of '{name}' differ in {field}: '{getattr(first, field)}' and "
                    f"'{getattr(other, field)}'. Replicas serve the same model; give one of them a name of its own."
                )
    config = ClientConfig(client_type=first.api_client_type, **first.settings())
    if len(replicas) > 1:
        spread = [EndpointConfig(client_idx=index, **one.settings()) for index, one in enumerate(replicas)]
        config = config.model_copy(update={"endpoint_configs": spread})
    return Endpoint(first.model, config)
