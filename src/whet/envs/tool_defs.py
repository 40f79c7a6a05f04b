"""Tools as a caller describes them, as `Tool`s. Descriptions from Python functions are made in `tool_schemas.py`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from whet.errors import ConfigError
from whet.types import Tool


def normalize_tool_defs(tool_defs: Sequence[Any] | None) -> list[Tool] | None:
    """Tools as `Tool`, from dicts with name, description and parameters."""
    if tool_defs is None:
        return None
    tools = []
    for tool in tool_defs:
        fields = tool if isinstance(tool, dict) else tool.model_dump(exclude_none=True)
        if fields.get("type") == "function" and isinstance(fields.get("function"), dict):
            raise ConfigError(
                "tool_defs holds a tool in the OpenAI form; give {'name': ..., 'description': ..., 'parameters': ...}."
            )
        missing = [name for name in ("name", "description", "parameters") if name not in fields]
        if missing:
            raise ConfigError(f"a tool in tool_defs has no {' and no '.join(missing)}: {fields!r}.")
        tools.append(tool if isinstance(tool, Tool) else Tool(**fields))
    return tools
