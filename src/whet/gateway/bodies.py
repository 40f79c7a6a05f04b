"""Bodies of requests, as JSON: within limits of size and time, and without holding up the event loop.

What parsing costs depends on how many values there are, much less on how long they are, and Python cannot do anything
else meanwhile, in no thread. So a body that may hold many values is parsed by a process of its own (`parse_body.py`),
which returns what it found if that is little enough.
"""

from __future__ import annotations

import asyncio
import marshal
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from starlette.requests import Request

from whet.gateway.parse_body import parse
from whet.gateway.wire import RequestError
from whet.system.peer_timeout import peer_timeout

MAX_BODY_BYTES = 32 << 20
MAX_HELD_BYTES = 256 << 20
"""Of all bodies that are arriving or being parsed."""
MAX_VALUES = 100_000
BODY_S = 60.0  # for all of a body to arrive
PARSE_S = 60  # of processor time
_MARKS = (b",", b"[", b"{", b"\\")
_MARKS_AT_ONCE = 25_000
_BYTES_AT_ONCE = 1 << 20
"""Of a body that is parsed right here: a few milliseconds of values, or of escapes in text."""
_SCRIPT = Path(__file__).with_name("parse_body.py")
_parsers = ThreadPoolExecutor(max_workers=1, thread_name_prefix="whet-parse")


class Bodies:
    """The bodies of one gateway's requests."""

    def __init__(self) -> None:
        self._held = 0

    async def read_json(self, request: Request) -> Any:
        """Raises `RequestError` for what is too large, too slow or no JSON, and `ClientDisconnect`."""
        announced = request.headers.get("content-length", "")
        if announced.isdecimal() and int(announced[:20]) > MAX_BODY_BYTES:
            raise _too_long()
        before = self._held
        own = 0
        chunks: list[bytes] = []
        try:
            async with peer_timeout(BODY_S):
                async for chunk in request.stream():
                    own += len(chunk)
                    self._held += len(chunk)
                    if own > MAX_BODY_BYTES:
                        raise _too_long()
                    if self._held > MAX_HELD_BYTES and before:
                        raise RequestError("too many large requests at once; try again later", status=429)
                    chunks.append(chunk)
            return await _parsed(b"".join(chunks))
        except TimeoutError:
            raise RequestError(f"the body did not arrive within {BODY_S:g} s", status=408) from None
        finally:
            self._held -= own


def _too_long() -> RequestError:
    return RequestError(f"the body is longer than {MAX_BODY_BYTES} bytes", status=413)


async def _parsed(body: bytes) -> Any:
    if len(body) > _BYTES_AT_ONCE or sum(map(body.count, _MARKS)) > _MARKS_AT_ONCE:
        return await asyncio.get_running_loop().run_in_executor(_parsers, _parsed_elsewhere, body)
    return _found(*parse(body, MAX_VALUES))


def _parsed_elsewhere(body: bytes) -> Any:
    with tempfile.TemporaryFile() as file:
        file.write(body)
        file.seek(0)
        command = [sys.executable, "-I", "-S", str(_SCRIPT), str(MAX_VALUES), str(PARSE_S)]
        done = subprocess.run(command, stdin=file, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, check=False)
    if done.returncode != 0 or not done.stdout:
        raise RequestError("the body is not JSON that can be read here: it holds too much", status=413)
    return _found(*marshal.loads(done.stdout))  # our own process has written it


def _found(is_json: bool, value: Any) -> Any:
    if not is_json:
        raise RequestError(f"the body is not JSON: {value}")
    return value
