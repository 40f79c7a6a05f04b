"""How values look on a page: filters of the templates, and small drawings whose parts are numbers alone."""

from __future__ import annotations

import math
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

from whet.display.chart import SAME
from whet.display.text import number, usage_text
from whet.system.terminal import duration

SPARK = (92, 24)
"""Width and height of a small line, as `spark` of parts.html has it."""


def iso(seconds: float | None) -> str:
    """For the `datetime` of a <time>."""
    moment = _moment(seconds)
    return "" if moment is None else moment.isoformat(timespec="seconds").replace("+00:00", "Z")


def clock(seconds: float | None) -> str:
    """A moment as a page without scripts shows it."""
    moment = _moment(seconds)
    return "-" if moment is None else moment.strftime("%Y-%m-%d %H:%M UTC")


def _moment(seconds: float | None) -> datetime | None:
    try:
        return None if seconds is None else datetime.fromtimestamp(seconds, UTC)
    except (ValueError, OverflowError, OSError):
        return None


def minute(text: str | None) -> str:
    """A moment of the interface (`2026-11-23T03:25:59Z`) to the minute; "never" where there is none."""
    return "never" if not text else f"{text[:16].replace('T', ' ')} UTC"


def lasted(seconds: float | None) -> str:
    """How long: `41 s`, `2:05`."""
    return "-" if seconds is None or not math.isfinite(seconds) else duration(max(0.0, seconds))


def percent(share: float) -> str:
    """A share between none and all; neither of both where it is neither."""
    return "under 1 %" if 0 < share < 0.01 else "over 99 %" if 0.99 < share < 1 else f"{share:.0%}".replace("%", " %")


def compact(value: Any, digits: int = 4) -> str:
    """A measured value with so many digits, as short as they allow."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        return "-"
    if abs(value) < 1e15 and (float(value).is_integer() or abs(value) >= 1_000):
        return f"{value:,.0f}"
    return f"{value:.{digits}g}"


def size(count: float | None) -> str:
    """Bytes in a unit that leaves few digits."""
    if count is None:
        return "-"
    for unit in ("bytes", "KB", "MB", "GB"):
        if count < 1000 or unit == "GB":
            return f"{count:,.0f} {unit}" if unit == "bytes" or count >= 100 else f"{count:.1f} {unit}"
        count /= 1000
    raise AssertionError


def sparkline(values: Sequence[float | None]) -> str:
    """The `d` of a path over these values; "" for fewer than two."""
    known = [(index, value) for index, value in enumerate(values) if value is not None and math.isfinite(value)]
    if len(known) < 2:
        return ""
    width, height = SPARK
    low, high = min(value for _, value in known), max(value for _, value in known)
    last = known[-1][0] - known[0][0]
    varies = high - low > SAME * max(abs(low), abs(high))
    points = (
        (
            (index - known[0][0]) / last * (width - 2) + 1,
            height - 2 - ((value - low) / (high - low) if varies else 0.5) * (height - 4),
        )
        for index, value in known
    )
    return "M" + "L".join(f"{x:.1f},{y:.1f}" for x, y in points)


def coordinate(value: float) -> str:
    """A coordinate with one decimal at most."""
    return f"{value:.1f}".removesuffix(".0")


def count(value: float, digits: int = 0) -> str:
    """`1,234`."""
    return f"{value:,.{digits}f}"


def share(value: float) -> str:
    """`12.5%`."""
    return f"{value:.1%}"


def dollars(value: float | None) -> str:
    return "-" if value is None else f"${value:.4f}"


def cut(text: str, most: int) -> str:
    """The beginning of `text`, and how many characters follow."""
    return text if len(text) <= most else f"{text[:most]}… ({len(text) - most:,} more characters)"


FILTERS = {
    "coordinate": coordinate,
    "count": count,
    "share": share,
    "dollars": dollars,
    "usage": usage_text,
    "cut": cut,
    "iso": iso,
    "clock": clock,
    "minute": minute,
    "lasted": lasted,
    "compact": compact,
    "percent": percent,
    "size": size,
    "score": number,
    "is_finite": math.isfinite,
    "sparkline": sparkline,
}
