"""`environments.json` of a run: which environments it trains on and evaluates with, by their names in metrics.

A resumed run trains on the same environments, or it would be another run.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from whet.envs.identity.record import changed_fields, identify, identity_differences
from whet.errors import RunError
from whet.records.differences import refuse
from whet.rl.sections.training import TrainingEnvConfig
from whet.system.files import write_whole
from whet.system.redaction import redacted

FILE = "environments.json"
TRAINED, EVALUATED = "trained", "evaluated"

Identities = dict[str, dict[str, dict[str, Any]]]


def identities_of(trained: Iterable[TrainingEnvConfig], evaluated: Iterable[TrainingEnvConfig]) -> Identities:
    """The identities of environments that were loaded."""
    return {
        kind: {one.label: identify(one.id).as_dict() for one in sections}
        for kind, sections in ((TRAINED, trained), (EVALUATED, evaluated))
    }


def read_identities(run: Path) -> Identities | None:
    """What the run recorded; None for one that began before runs did. Raises `RunError` for a damaged file."""
    try:
        found: Identities = json.loads((run / FILE).read_text(encoding="utf-8"))
        return {kind: {name: dict(one) for name, one in found[kind].items()} for kind in (TRAINED, EVALUATED)}
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise RunError(f"{run / FILE} cannot be read ({error}). Remove it to resume without a comparison.") from None


def check_identities(run: Path, now: Identities) -> None:
    """Raise `RunError` where an environment that the run trains on is not the one that it began with."""
    before = read_identities(run)
    if before is None:
        return
    refuse(
        [f"{name}: {line}" for name, line in _differences(before[TRAINED], redacted(now)[TRAINED])],
        f"--resume: {run} was trained on other environments:",
        "Install or restore what it had, or begin another run from its weights "
        f'(model = "{run / "checkpoints"}/step_N" in the config).',
    )


def write_identities(run: Path, now: Identities) -> None:
    write_whole(run / FILE, json.dumps(redacted(now), indent=2) + "\n")


def environment_differences(a: Path, b: Path) -> dict[str, tuple[Any, Any]]:
    """Path -> (a, b) of what differs in the environments that two runs trained on, where both recorded them."""
    first, second = read_identities(a), read_identities(b)
    if first is None or second is None:
        return {}
    return {
        f"environments.{name}.{key}": (one[name].get(key), other[name].get(key))
        for one, other in [(first[TRAINED], second[TRAINED])]
        for name in sorted(one.keys() & other.keys())
        for key in changed_fields(one[name], other[name])
    }


def _differences(before: Mapping[str, Any], now: Mapping[str, Any]) -> Iterable[tuple[str, str]]:
    for name in sorted(before.keys() & now.keys()):  # others are differences of the config
        for line in identity_differences(before[name], now[name]):
            yield name, line
