"""The line of a vLLM server's output that says why it failed. Pure.

A failure is printed by each of the server's processes, each with a traceback, and the last one says "see above".
"""

from __future__ import annotations

import re

_PREFIX = re.compile(r"^\([^()]+ pid=\d+\) ?(?:[A-Z]+ \d\d-\d\d [\d:]+ \[[^\]]+\] ?)?")
"""`(EngineCore pid=12) ERROR 11-25 16:07:09 [core.py:1510] `"""
_EXCEPTION = re.compile(r"(?:[A-Za-z_]\w*\.)*[A-Z]\w*(?:Error|Exception|Exit|Interrupt|Failure): \S")
_ARGUMENTS = re.compile(r"[\w.\- ]+: error: (.+)")
_PYTHON = re.compile(r"/\S+: (Error while finding module specification.*|No module named \S+.*)")
_WRAPPERS = re.compile(
    r"root cause|check the stack trace|Executor failed|EngineCore encountered|EngineDead|Engine core|leaked \w+ objects"
)
LONGEST = 500


def root_cause(output: str) -> str | None:
    """Of the failures in the output the last that does not only refer to another; None where there is none."""
    lines = [_PREFIX.sub("", line).rstrip() for line in output.splitlines()]
    found = None
    for number, line in enumerate(lines):
        if argument := _ARGUMENTS.fullmatch(line) or _PYTHON.fullmatch(line):
            found = argument[1]
        elif _EXCEPTION.match(line) and not _WRAPPERS.search(line):
            is_pydantic = "validation error" in line and number + 1 < len(lines)  # its message is in the next lines
            found = lines[number + 1].strip() if is_pydantic else line
    return found if found is None or len(found) <= LONGEST else f"{found[:LONGEST]}…"
