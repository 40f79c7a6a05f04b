"""The messages of a worker: a line of JSON, and after it, as they stand in the file, rows.

What runs the code of environments gets to unpickle nothing in the session. To a worker messages are pickled tuples:
dataset rows are any Python values.
"""

from __future__ import annotations

import json
from typing import Any

from whet.system.channel import BrokenFrameError

FIELDS: dict[str, tuple[str, ...]] = {
    "ready": (),
    "alive": (),
    "rows": ("job", "indices"),
    "states": ("job", "indices"),
    "ended": ("job",),
    "freed": ("job",),
    "settled": ("frames",),
    "spent": ("cost", "unpriced_tokens"),
    "log": ("logger", "level", "text"),
    "ask": ("number", "source", "rollout", "turn", "model", "job"),
    "forget": ("number",),
    "release": ("rollout",),
    "mistake": ("error",),
    "bug": ("traceback",),
}
"""The messages of a worker, and their fields."""


def read_head(frame: bytes) -> tuple[dict[str, Any], bytes]:
    """Head and body of a worker's frame. Raises `BrokenFrameError` where it is none, or lacks what its kind has."""
    line, _, body = frame.partition(b"\n")
    try:
        head = json.loads(line)
    except ValueError as error:
        raise BrokenFrameError(f"a head that is not JSON ({error})") from None
    if not isinstance(head, dict):
        raise BrokenFrameError("a head that is no object")
    kind = head.get("kind")
    if not isinstance(kind, str) or kind not in FIELDS:
        raise BrokenFrameError(f"a message of the kind {kind!r}")
    lacking = [name for name in FIELDS[kind] if name not in head]
    if lacking:
        raise BrokenFrameError(f"a message of the kind {kind!r} without {', '.join(lacking)}")
    words = head.get("error", ["", "", ""])
    if not (isinstance(words, list) and len(words) == 3 and all(isinstance(word, str) for word in words)):
        raise BrokenFrameError("an error that is not its class, its text and its line")
    return head, body
