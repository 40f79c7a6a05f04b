"""Parses the JSON on stdin, in a process of its own; see `bodies.py`. Needs the standard library only.

python -I -S parse_body.py MAX_VALUES CPU_SECONDS < body > marshalled (True, value) or (False, what is wrong)
"""

import gc
import json
import marshal
import os
import resource
import sys
from typing import Any

MEMORY = 512 << 20
MAX_DEPTH = 200


def parse(body: bytes, most: int) -> tuple[bool, Any]:
    """Whether `body` is JSON of at most `most` values, and its value or what is wrong."""
    try:
        value = json.loads(body, parse_constant=_no_constant)
    except (ValueError, RecursionError) as error:
        return False, str(error)
    left, level = most, [value]
    for _ in range(MAX_DEPTH + 1):
        level = [held for held in level if isinstance(held, dict | list)]
        if not level:
            return True, value
        left -= sum(map(len, level))
        if left < 0:
            return False, f"it holds more than {most} values"
        level = [item for held in level for item in (held.values() if isinstance(held, dict) else held)]
    return False, "it is nested too deeply"


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is no JSON value")


def main() -> None:
    most, seconds = map(int, sys.argv[1:])
    os.nice(10)
    gc.disable()
    if sys.platform == "linux":  # macOS knows no such limit
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    outcome, value = parse(sys.stdin.buffer.read(), most)
    sys.stdout.buffer.write(marshal.dumps((outcome, value)))
    sys.stdout.flush()
    os._exit(0)  # without giving back what was parsed, value by value


if __name__ == "__main__":
    main()
