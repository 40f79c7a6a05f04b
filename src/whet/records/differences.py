"""In what two configs, or two identities of runs, differ. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from whet.errors import RunError

ABSENT = "absent"
"""What a setting that a config lacks is called."""
OF_THE_RUN_ITSELF = ("name", "runs_directory")
"""Settings in which runs always differ."""


def flat(value: Any, prefix: str = "") -> dict[str, Any]:
    """`{"env.0.id": "calculator", ...}`: the values inside tables and lists of tables by their path."""
    items: list[tuple[str, Any]]
    if isinstance(value, Mapping):
        items = [(str(key), item) for key, item in value.items()]
    elif isinstance(value, list | tuple) and any(isinstance(item, Mapping) for item in value):
        items = [(str(index), item) for index, item in enumerate(value)]
    else:
        return {prefix: list(value) if isinstance(value, tuple) else value}
    return {
        path: leaf for key, item in items for path, leaf in flat(item, f"{prefix}.{key}" if prefix else key).items()
    }


def differences(before: Mapping[str, Any], now: Mapping[str, Any], absent: Any = None) -> dict[str, tuple[Any, Any]]:
    """Path -> (before, now) where the two differ; a value that one of them lacks is `absent`."""
    left, right = flat(before), flat(now)
    return {
        path: (left.get(path, absent), right.get(path, absent))
        for path in sorted(left.keys() | right.keys())
        if left.get(path, absent) != right.get(path, absent)
    }


def difference_lines(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """`path: was X, is Y`, a line for each difference."""
    return [f"{path}: was {old!r}, is {new!r}" for path, (old, new) in differences(before, now).items()]


def refuse(lines: Sequence[str], heading: str, advice: str = "") -> None:
    """Raise `RunError` with all `lines` below the heading, where there are any: a resumed run would be another run."""
    if lines:
        raise RunError("\n".join(filter(None, [heading, *(f"  {line}" for line in lines), advice])))
