"""What one config says that another does not: a run's against the defaults, or one run's against another's. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel
from pydantic_core import PydanticUndefined

from whet.rl.config import RunConfig
from whet.rl.sft.config import SftConfig

ABSENT = "absent"
OF_THE_RUN_ITSELF = ("name", "runs_directory")


def flat(value: Any, prefix: str = "") -> dict[str, Any]:
    """`{"env.0.id": "calculator", ...}`: the leaves of a config by their path."""
    items: list[tuple[str, Any]]
    if isinstance(value, Mapping):
        items = [(str(key), item) for key, item in value.items()]
    elif isinstance(value, list | tuple) and any(isinstance(item, Mapping) for item in value):
        items = [(str(place), item) for place, item in enumerate(value)]
    else:
        return {prefix: list(value) if isinstance(value, tuple) else value}
    return {
        path: leaf for key, item in items for path, leaf in flat(item, f"{prefix}.{key}" if prefix else key).items()
    }


def differences(before: Mapping[str, Any], after: Mapping[str, Any]) -> dict[str, tuple[Any, Any]]:
    """Path -> (before, after) where the two differ; what one of them does not have is `absent`."""
    left, right = flat(before), flat(after)
    return {
        path: (left.get(path, ABSENT), right.get(path, ABSENT))
        for path in sorted(left.keys() | right.keys())
        if path.split(".")[0] not in OF_THE_RUN_ITSELF and left.get(path, ABSENT) != right.get(path, ABSENT)
    }


def changed(config: Mapping[str, Any]) -> dict[str, Any]:
    """What a config sets to something else than its default, by path; of an optional section all there is."""
    kind = SftConfig if "data" in config else RunConfig
    return {path: value for path, (_, value) in differences(_defaults(kind), config).items() if value != ABSENT}


def _defaults(model: type[BaseModel]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, field in model.model_fields.items():
        value = field.get_default(call_default_factory=True)
        if isinstance(value, BaseModel):
            found[name] = value.model_dump(mode="json", exclude_none=True)
        elif value is PydanticUndefined and (section := _section(field.annotation)) is not None:
            found[name] = _defaults(section)
        elif value is not PydanticUndefined and value is not None:
            found[name] = value
    return found


def _section(annotation: Any) -> type[BaseModel] | None:
    return annotation if isinstance(annotation, type) and issubclass(annotation, BaseModel) else None
