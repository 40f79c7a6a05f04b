"""What tests of the hub share."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from typing import Any

import pytest


def beside(name: str) -> Any:
    """A module of this folder: tests are imported by path, so that it is not on the path for imports."""
    spec = importlib.util.spec_from_file_location(f"hub_{name}", Path(__file__).with_name(f"{name}.py"))
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


_packages = beside("packages")


@pytest.fixture(scope="session")
def packages() -> Any:
    """Wheels and source archives; see `packages.py`."""
    return _packages
