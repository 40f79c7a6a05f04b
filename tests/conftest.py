"""What tests of every room share."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest


def _beside(name: str) -> Any:
    """A module of this folder: tests are imported by path, so that it is not on the path for imports."""
    spec = importlib.util.spec_from_file_location(name, Path(__file__).with_name(f"{name}.py"))
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


_pages, _terminals, _warm = map(_beside, ("pages", "terminals", "warm"))


@pytest.fixture(scope="session")
def watching_server() -> Iterator[Any]:
    server = _warm.Warm(_warm.WATCHING)
    yield server
    server.close()


@pytest.fixture
def terminals(watching_server: Any) -> Iterator[Any]:
    """Real terminals: `terminals.open(command, columns=80, rows=24)`; see `terminals.py`."""
    opened = _terminals.Terminals(watching_server)
    yield opened
    opened.close()
    watching_server.clean()


@pytest.fixture(scope="session")
def warm_server() -> Iterator[Any]:
    server = _warm.Warm(_warm.TRAINING)
    yield server
    server.close()


@pytest.fixture
def warm(warm_server: Any) -> Iterator[Any]:
    """`whet` in processes that start at once: `warm.start("train", "run", config)`; see `warm.py`."""
    yield warm_server
    warm_server.clean()


@pytest.fixture
def read_page() -> Callable[[Path], Any]:
    """An HTML file as a browser would read it: tags, texts, and `check()`; see `pages.py`."""
    return _pages.Page


@pytest.fixture
def hostile() -> tuple[str, str]:
    """What a model might say to break out of a page, and how the page shows it."""
    return _pages.HOSTILE, _pages.HARMLESS
