"""What libraries print as they begin and end, kept off the terminal, which is for the run's view or for --json."""

from __future__ import annotations

import contextlib
import io
import logging
from collections.abc import Iterator


@contextlib.contextmanager
def quietly(logger: logging.Logger) -> Iterator[None]:
    """Lines printed inside become debug messages of `logger`."""
    said = io.StringIO()
    try:
        with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
            yield
    finally:
        for line in filter(None, map(str.strip, said.getvalue().splitlines())):
            logger.debug("%s", line)
