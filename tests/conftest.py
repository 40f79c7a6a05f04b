"""What tests of every room share."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

_spec = importlib.util.spec_from_file_location("terminals", Path(__file__).with_name("terminals.py"))
assert _spec is not None
assert _spec.loader is not None
_terminals = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(_terminals)


@pytest.fixture
def terminals() -> Iterator[Any]:
    """Real terminals: `terminals.open(command, columns=80, rows=24)`; see `terminals.py`."""
    opened = _terminals.Terminals()
    yield opened
    opened.close()
