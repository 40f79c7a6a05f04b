"""Where two observations differ: by path, with both values.

Means differ in their last digit where one side adds up exactly and the other row by row: that is no difference.
"""

from __future__ import annotations

import math
from typing import Any

ROUNDING = 1e-14
MISSING = "(missing)"


def differences(peer: Any, own: Any, path: str = "") -> dict[str, tuple[Any, Any]]:
    """Paths like `rows.0.metrics.num_turns` to (the peer's value, ours). Lists of unequal length differ as wholes."""
    if isinstance(peer, dict) and isinstance(own, dict):
        found: dict[str, tuple[Any, Any]] = {}
        for key in sorted({*peer, *own}):
            found |= differences(peer.get(key, MISSING), own.get(key, MISSING), f"{path}.{key}" if path else key)
        return found
    if isinstance(peer, list) and isinstance(own, list) and len(peer) == len(own):
        found = {}
        for index, (one, other) in enumerate(zip(peer, own, strict=True)):
            found |= differences(one, other, f"{path}.{index}")
        return found
    if isinstance(peer, float) and isinstance(own, float) and math.isclose(peer, own, rel_tol=ROUNDING):
        return {}
    same = peer == own and (type(peer) is type(own) or {type(peer), type(own)} == {int, float})
    return {} if same else {path: (peer, own)}
