"""Two tenants of one service."""

from __future__ import annotations

import importlib.util
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest


def _module() -> Any:
    if "service_tenants" not in sys.modules:
        spec = importlib.util.spec_from_file_location("service_tenants", Path(__file__).with_name("tenants.py"))
        assert spec is not None
        assert spec.loader is not None
        module = sys.modules["service_tenants"] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
    return sys.modules["service_tenants"]


@contextmanager
def _tenants(folder: Path, first: tuple[Path, dict[str, str]], serving: Any, packages: Any) -> Iterator[Any]:
    shutil.copytree(first[0], folder / "service")
    with serving.running_service(folder / "service") as service:
        service.tokens = dict(first[1])
        found = _module().Tenants(service, packages, serving.CONFIG)
        found.module = _module()
        yield found


@pytest.fixture
def tenants(first_service: Any, serving: Any, packages: Any, tmp_path: Path) -> Iterator[Any]:
    """See `tenants.py`."""
    with _tenants(tmp_path, first_service, serving, packages) as found:
        yield found


@pytest.fixture(scope="module")
def same_tenants(
    first_service: Any, serving: Any, packages: Any, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Any]:
    """The same, for tests that change nothing of them."""
    with _tenants(tmp_path_factory.mktemp("tenants"), first_service, serving, packages) as found:
        yield found
