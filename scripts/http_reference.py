"""Write docs/http.md from the routes of hub and service. A test checks that it has been done."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from fastapi import FastAPI

from whet import __version__
from whet.dashboard.app import API
from whet.hub.api import accounts, environments, pushes
from whet.service.api.app import ROUTERS as OF_SERVICE

TARGET = Path(__file__).parents[1] / "docs" / "http.md"
HEADER = """# HTTP interface of hub and service

Written by `scripts/http_reference.py` from the routes themselves. A running hub or service answers with the same as
OpenAPI below `/api/v1/openapi.json`. [The hub's](design/hub.md) and [the service's](design/service.md#http-interface)
contracts say what the routes do, who may use them and which errors they have; the dashboard's data is there too.
A `?` marks what may be left out.
"""
Schema = Mapping[str, Any]


def openapi() -> Schema:
    app = FastAPI(title="whet", version=__version__)
    for router in (accounts.router, environments.router, pushes.router):
        app.include_router(router)
    for router in OF_SERVICE:
        app.include_router(router, prefix=API)
    return app.openapi()


def reference() -> str:
    found = openapi()
    models = {name: model for name, model in found["components"]["schemas"].items() if is_own(name)}
    lines = [HEADER, "## Routes\n", "| route | query | body | answer |", "|---|---|---|---|"]
    for path, methods in found["paths"].items():
        lines += [f"| `{method.upper()} {path}` | {' | '.join(cells(route))} |" for method, route in methods.items()]
    for title, wanted in (("Bodies", False), ("Answers", True)):
        lines.append(f"\n## {title}\n")
        for name in sorted(models):
            if (name in answered(found)) == wanted:
                lines += [f"### {name}\n", *table(models[name])]
    return "\n".join(lines).rstrip("\n") + "\n"


def is_own(name: str) -> bool:
    return name not in ("HTTPValidationError", "ValidationError") and not name.startswith("Page_")


def answered(found: Schema) -> set[str]:
    """The models of answers, and those inside of them."""
    names: set[str] = set()
    for methods in found["paths"].values():
        for route in methods.values():
            names |= set(references({code: said for code, said in route["responses"].items() if code < "400"}))
    while more := {inner for name in names for inner in references(found["components"]["schemas"][name])} - names:
        names |= more
    return names


def references(value: Any) -> Iterator[str]:
    if isinstance(value, Mapping):
        if "$ref" in value:
            yield value["$ref"].rpartition("/")[2]
        for inner in value.values():
            yield from references(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from references(inner)


def cells(route: Schema) -> tuple[str, str, str]:
    """Query, body and answer of a route."""
    query = [
        f"`{one['name']}{'' if one.get('required') else '?'}`"
        for one in route.get("parameters", [])
        if one["in"] == "query"
    ]
    body = route.get("requestBody", {}).get("content", {}).get("application/json", {}).get("schema")
    code = min(route["responses"])
    content = route["responses"][code].get("content", {}).get("application/json", {}).get("schema")
    answer = f"{code}: {shown(content)}" if content else code
    return ", ".join(query), shown(body) if body else "", answer


def shown(schema: Schema) -> str:
    """The type of a value, with a link to the model that it has."""
    if "$ref" in schema:
        name = schema["$ref"].rpartition("/")[2]
        inner = name.removeprefix("Page_").removesuffix("_")
        return f"a page of [{inner}](#{inner.lower()})" if name != inner else f"[{name}](#{name.lower()})"
    if "anyOf" in schema:
        return " or ".join(shown(one) for one in schema["anyOf"])
    if "enum" in schema:
        return ", ".join(f"`{one}`" for one in schema["enum"])
    if schema.get("type") == "array":
        return f"list of {shown(schema['items'])}"
    return str(schema.get("type", "any")) if "const" not in schema else f"`{schema['const']}`"


def table(model: Schema) -> list[str]:
    about = [model["description"] + "\n"] if "description" in model else []
    required = model.get("required", [])
    rows = [
        f"| `{name}{'' if name in required else '?'}` | {shown(field)} |" for name, field in model["properties"].items()
    ]
    return [*about, "| field | value |", "|---|---|", *rows, ""]


if __name__ == "__main__":
    TARGET.write_text(reference())
