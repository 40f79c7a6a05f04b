"""What the commands on runs of the service share."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Any

import typer

from whet.errors import ConfigError
from whet.system.terminal import safe_text

if TYPE_CHECKING:
    from whet.hub.client.connection import HubClient
    from whet.service.answers import SubmittedRun

ServiceRun = Annotated[
    str, typer.Argument(metavar="RUN", help="Id of a run on the service, OWNER/NAME, or the name of your newest.")
]
AnyRun = Annotated[
    str, typer.Argument(metavar="RUN", help="A run's directory, its name below runs/, or a run of the service.")
]
CapHours = Annotated[float | None, typer.Option("--cap-hours", min=0.001, help="Stop it after so many hours.")]
CapTokens = Annotated[int | None, typer.Option("--cap-tokens", min=1, help="Stop it after so many tokens.")]
CapCost = Annotated[float | None, typer.Option("--cap-cost", min=0.0, help="Stop it when it has cost so much.")]
NothingAsked = Annotated[bool, typer.Option("--yes", "-y", help="As elsewhere; this command asks nothing.")]
UNSAID = ("has_files", "may", "stopping", "priority", "attempts")
"""Fields of a run that `--json` has alone."""
UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400}
SHOWN = ("id", "owner", "name", "kind", "model", "state", "step", "submitted")


@contextmanager
def service_run(run: str, hub: str | None = None) -> Iterator[tuple[HubClient, SubmittedRun]]:
    """The service and the run that is meant. Raises `WhetError` where there is none."""
    from whet.service.client.connection import connect_service
    from whet.service.client.runs import find_run

    with connect_service(hub) as service:
        yield service, find_run(service, run)


def is_of_service(run: str) -> bool:
    """Whether a RUN is none of this machine, and there is a service to ask."""
    from whet.service.client import runs

    return runs.is_of_service(run)


def run_facts(run: SubmittedRun, url: str) -> dict[str, Any]:
    """A run for a person to read: times as such, sizes with their units, no empty fields."""
    facts = {
        key: value for key, value in run.as_dict().items() if value not in (None, "", [], {}) and key not in UNSAID
    }
    for key in ("submitted_at", "started_at", "ended_at", "updated_at"):
        if key in facts:
            facts[key] = moment(facts[key])
    if needs := facts.pop("needs", None):
        facts["needs"] = needs_text(needs)
    if caps := {key: value for key, value in (facts.pop("caps", None) or {}).items() if value is not None}:
        facts["caps"] = ", ".join(f"{key} {value:g}" for key, value in caps.items())
    if run.state == "queued" and run.place:
        facts["place"] = f"{run.place} in line"
    return {**facts, "page": f"{url}/runs/{run.id}"}


def caps_of(hours: float | None, tokens: int | None, cost: float | None) -> dict[str, float]:
    """Those that are given, as the service takes them."""
    caps = {"seconds": None if hours is None else hours * 3600.0, "tokens": tokens, "cost": cost}
    return {name: value for name, value in caps.items() if value is not None}


def needs_text(needs: Mapping[str, Any]) -> str:
    cores, devices = needs.get("cores") or 0, needs.get("devices") or 0
    text = f"{cores:g} core{'s' * (cores != 1)}, {size_text(needs.get('memory') or 0)}"
    return text + (f", {devices:g} GPU of {size_text(needs.get('device_memory') or 0)}" if devices else "")


def size_text(size: float) -> str:
    if size < 1 << 20:
        return f"{size / 1024:.1f} KiB"
    return f"{size / 2**20:.1f} MiB" if size < 1 << 30 else f"{size / 2**30:.1f} GiB"


def run_row(run: Mapping[str, Any]) -> dict[str, Any]:
    """A run as a line of a list."""
    steps = f"{run.get('step') or 0}" + (f"/{run['max_steps']}" if run.get("max_steps") else "")
    row = {**run, "step": steps, "submitted": moment(run.get("submitted_at"))}
    return {key: safe_text(str(row.get(key) or ""), 80) for key in SHOWN}


def moment(value: Any) -> str:
    """A time of the service in local time."""
    if isinstance(value, int | float):
        return datetime.fromtimestamp(value, UTC).astimezone().strftime("%Y-%m-%d %H:%M")
    return safe_text(str(value or ""), 40)


def since_when(text: str | None) -> float | None:
    """Seconds since 1970 of `10m`, `2h`, `1d` ago, or of a time such as 2026-11-23T10:00."""
    if text is None:
        return None
    ago = re.fullmatch(r"(\d+(?:\.\d+)?)([smhd])", text)
    if ago is not None:
        return time.time() - float(ago[1]) * UNITS[ago[2]]
    try:
        return datetime.fromisoformat(text).timestamp()
    except ValueError:
        raise ConfigError(
            f"--since {safe_text(text, 60)}: write 10m, 2h, 1d or a time like 2026-11-23T10:00."
        ) from None
