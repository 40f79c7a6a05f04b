"""Requests with odd input, drawn from what the routes of an application declare, what is there, and what is hostile."""

from __future__ import annotations

import json
import posixpath
import random
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import unquote

from fastapi import FastAPI

ODD: tuple[Any, ...] = (
    "", "a", "..", ".", "%00", "\x00", "%2e%2e%2f", "a/b", "\u0430", "\U0001f600", "\ud800", "a" * 300, "-", "--", "'",
    '"', "%", "'; DROP TABLE accounts; --", "<script>", "1.0.0", "1e400", "-1", "99999999999999999999", "null",
    "\r\nX: y", "{}", "[]", "..%2f..%2f..%2fetc%2fpasswd", "nan", "0x10", "1_0", " 1", "{{7*7}}", "${7*7}",
)  # fmt: skip
VALUES: tuple[Any, ...] = (
    *ODD,
    None,
    True,
    0,
    -1,
    1.5,
    10**30,
    [],
    {},
    [[]] * 3,
    {"a": {"b": []}},
    "\x00",
    "\u202e",
    "x" * 5000,
)


@dataclass(frozen=True)
class FuzzedRoute:
    """A method and a path, with what it reads."""

    method: str
    path: str
    endpoint: Callable[..., Any]
    queries: tuple[str, ...]
    model: Any  # of a JSON body; None where there is none
    form: tuple[str, ...]  # fields of a form


LAST = ("/tokens/current", "/logout")
"""After these the user of the requests is none any more: asked last."""


def routes_of(app: FastAPI) -> list[FuzzedRoute]:
    """Every route of an application, also those of routers that it includes."""
    return list(_routes(app.routes))


def lasting(routes: Sequence[FuzzedRoute]) -> list[FuzzedRoute]:
    """Those after which a token is still valid."""
    return [route for route in routes if not route.path.endswith(LAST)]


def _routes(found: Sequence[Any]) -> Iterator[FuzzedRoute]:
    for route in found:
        if hasattr(route, "effective_candidates"):
            yield from _routes([*route.effective_candidates(), *route.effective_low_priority_routes()])
        elif getattr(route, "dependant", None) is not None:
            bodies = [*_parameters(route.dependant, "body_params")]
            types = [field.field_info.annotation for field in bodies]
            model = next((one for one in types if hasattr(one, "model_fields")), None)
            form = tuple(field.alias for field in bodies) if model is None else ()
            queries = tuple(dict.fromkeys(field.alias for field in _parameters(route.dependant, "query_params")))
            for method in sorted(route.methods):
                yield FuzzedRoute(method, route.path, route.endpoint, queries, model, form)


def _parameters(dependant: Any, kind: str) -> Iterator[Any]:
    """Of a route and of what it depends on."""
    yield from getattr(dependant, kind)
    for one in dependant.dependencies:
        yield from _parameters(one, kind)


def streams(path: str, mine: Sequence[str]) -> bool:
    """Whether an answer to this path would not end: events of a list, or of a run that the user sees."""
    parts = posixpath.normpath(unquote(path.partition("?")[0])).split("/")
    return parts[-1] == "events" and ("runs" not in parts or parts[-2] == "runs" or parts[-2] in mine)


class Draw:
    """Requests, drawn from a seed. `known` has values by the names of parameters; `credentials` are headers."""

    def __init__(
        self,
        seed: int,
        routes: Sequence[FuzzedRoute],
        known: Mapping[str, Sequence[Any]],
        credentials: Sequence[Mapping[str, str]],
        origin: str = "http://hub.test",
    ) -> None:
        self.rng = random.Random(seed)
        self.routes, self.known, self.credentials, self.origin = routes, known, credentials, origin
        self.good = False  # whether the next request is to be one that might be meant

    def value(self, name: str) -> Any:
        if self.rng.random() < (0.98 if self.good else 0.7) and self.known.get(name):
            return self.rng.choice(self.known[name])
        return self.rng.choice(VALUES)

    def segment(self, name: str) -> str:
        value = self.value(name)
        text = value if isinstance(value, str) else json.dumps(value)
        return re.sub(
            r"[^A-Za-z0-9._~%!+-]",
            lambda found: "".join(f"%{b:02X}" for b in found[0].encode("utf-8", "surrogatepass")),
            text,
        )

    def request(self, number: int) -> tuple[str, str, dict[str, Any]]:
        route = self.routes[number % len(self.routes)]
        self.good = self.rng.random() < 0.5
        method = route.method
        path = re.sub(r"\{(\w+)(?::\w+)?\}", lambda found: self.segment(found[1]) or "x", route.path)
        more: dict[str, Any] = {"headers": self.headers(route.path)}
        queries = [name for name in route.queries if self.rng.random() < (0.9 if name == "owner" else 0.4)]
        if self.rng.random() < 0.1:
            queries.append(self.rng.choice(("owner", "search", "limit", "cursor", "next", "unknown")))
        if queries:
            path += "?" + "&".join(f"{name}={self.segment(name)}" for name in queries)
        if route.model is not None or route.form:
            more |= self.body(route, more["headers"])
        elif method in ("PATCH", "PUT"):
            more["content"] = self.rng.randbytes(self.rng.choice((0, 1, 100)))
        if self.rng.random() < 0.02:
            method = self.rng.choice(("PUT", "OPTIONS", "TRACE", "FOO"))
        return method, path, more

    def body(self, route: FuzzedRoute, headers: dict[str, str]) -> dict[str, Any]:
        roll = self.rng.random()
        if roll < 0.05:
            return {"content": self.rng.choice((b"", b"{", b"\xff\xfe", b"[" * 5000, b'{"a": NaN}', b'"\\ud800"'))}
        if route.model is None:
            found = {name: self.value(name) for name in route.form if self.rng.random() < 0.9}
            return {"data": {name: str(value).encode("utf-8", "replace").decode() for name, value in found.items()}}
        given = self.object(route.model)
        if roll < 0.15:
            given["unknown"] = 1
        return {"content": json.dumps(given).encode(), "headers": {**headers, "Content-Type": "application/json"}}

    def object(self, model: Any) -> dict[str, Any]:
        """Fields of a model: known values, those of the models inside it, and odd ones."""
        found = {}
        for name, field in model.model_fields.items():
            if self.rng.random() < 0.1 and not (self.good and field.is_required()):
                continue
            inside = field.annotation
            nested = hasattr(inside, "model_fields") and self.rng.random() < 0.6
            found[name] = self.object(inside) if nested else self.value(name)
        return found

    def headers(self, path: str) -> dict[str, str]:
        """Of a request to a path: programs have tokens, pages have sessions."""
        page = not path.startswith(("/api/", "/index/", "/files/"))
        fitting = [one for one in self.credentials if ("Cookie" in one) == page]
        others: list[Mapping[str, str]] = [*self.credentials, {}, {"Authorization": "Bearer whet_wrong"}]
        found = dict(self.rng.choice(fitting if self.good and fitting else others))
        if self.rng.random() < 0.2:
            found["Upload-Offset"] = self.rng.choice(("0", "1", "-1", "x", "9" * 30))
        if "Cookie" in found:
            found["Origin"] = self.origin
        for name in ("Accept", "If-None-Match", "Range", "Origin", "Accept-Encoding", "Host", "X-Forwarded-For",
                     "Last-Event-ID", "Cookie"):  # fmt: skip
            if self.rng.random() < (0.005 if self.good else 0.05):
                texts = ("", "*", "bytes=9-1", "bytes=0-0,-1", "whet_hub_session=x", "text/html;q=9e9", "[", "a b")
                found[name] = self.rng.choice(texts)
        return found
