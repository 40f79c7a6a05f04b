"""Which models a request may use: an `Access` reads the key that it carries, a `Visitor` is what that key may use."""

from __future__ import annotations

import hmac
from collections.abc import Mapping, Sequence
from typing import Protocol

from whet.clients.client import AnyClient
from whet.gateway.wire import RequestError
from whet.types import Response


class Visitor(Protocol):
    """What the requests with one key may use. What it may not see is for it as if it did not exist."""

    def models(self) -> Sequence[str]:
        """The names of the models that this key may use."""

    def find(self, model: str) -> AnyClient | None:
        """The client of a model; None for one that this key may not use. Raises `RequestError` for one that is known
        and cannot answer now."""

    def answered(self, model: str, responses: Sequence[Response]) -> None:
        """Count one request that was answered, with the response of each of its choices."""


class Access(Protocol):
    """Decides by the key of a request."""

    async def visitor(self, key: str | None) -> Visitor:
        """Raises `RequestError` with status 401 for a key that is missing or not valid."""


class OneKey:
    """All of `models` for requests with the key; for every request where there is none."""

    def __init__(self, models: Mapping[str, AnyClient], key: str | None) -> None:
        self._models, self._key = models, key

    async def visitor(self, key: str | None) -> Visitor:
        if self._key is not None and not (key and hmac.compare_digest(key.encode(), self._key.encode())):
            raise RequestError("the API key is missing or wrong", status=401)
        return self

    def models(self) -> Sequence[str]:
        return list(self._models)

    def find(self, model: str) -> AnyClient | None:
        return self._models.get(model)

    def answered(self, model: str, responses: Sequence[Response]) -> None:
        """Nothing: the gateway's own figures have no users."""
