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


def parse(body: bytes, most: int) -> tuple[bool, Any]:
    """Whether `body` is JSON of at most `most` values, and its value or what is wrong."""
    try:
        value = json.loads(body, parse_constant=_no_constant)
    except (ValueError, RecursionError) as error:
        return False, str(error)
    left, stack = most, [value]
    while stack:
        held = stack.pop()
        if isinstance(held, dict | list):
            left -= len(held)
            if left < 0:
                return False, f"it holds more than {most} values"
            stack.extend(held.values() if isinstance(held, dict) else held)
    return True, value


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
    found, value = parse(sys.stdin.buffer.read(), most)
    try:
        said = marshal.dumps((found, value))
    except ValueError:
        said = marshal.dumps((False, "it is nested too deeply"))
    sys.stdout.buffer.write(said)
    sys.stdout.flush()
    os._exit(0)  # without giving back what was parsed, value by value


if __name__ == "__main__":
    main()
