"""What tests of the runner share."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("sqlalchemy")


def load(name: str) -> Any:
    """A module of this folder: tests are imported by path, so that it is not on the path for imports."""
    if name not in sys.modules:
        spec = importlib.util.spec_from_file_location(name, Path(__file__).with_name(f"{name}.py"))
        assert spec is not None
        assert spec.loader is not None
        module = sys.modules[name] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
    return sys.modules[name]


@pytest.fixture
def working(queue: Any, tmp_path: Path) -> Iterator[Any]:
    """A service's folder with its queue, whose runs are not isolated; see `working.py`."""
    found = load("working").Working(queue, tmp_path)
    yield found
    found.close()


@pytest.fixture(scope="session")
def apart() -> Any:
    """How runs are isolated on this machine; skips where they cannot be."""
    from whet.errors import SandboxUnavailableError
    from whet.service.runner.isolation import choose

    try:
        return choose("auto")
    except SandboxUnavailableError as error:
        pytest.skip(str(error))


@pytest.fixture
def isolated(queue: Any, tmp_path: Path, apart: Any) -> Iterator[Any]:
    """The same with runs in bubblewrap."""
    found = load("working").Working(queue, tmp_path, apart)
    yield found
    found.close()


@pytest.fixture
def training(tmp_path: Path) -> tuple[str, dict[str, str]]:
    """The config of a short run on whet/tiny, and the files of its submission, in the store."""
    module = load("working")
    return module.TRAINING, module.example(tmp_path)
