"""Two tenants of one service."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from typing import Any

import pytest


@pytest.fixture
def tenants(service: Any, serving: Any, packages: Any) -> Any:
    """See `tenants.py`."""
    spec = importlib.util.spec_from_file_location("service_tenants", Path(__file__).with_name("tenants.py"))
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    found = module.Tenants(service, packages, serving.CONFIG)
    found.module = module
    return found
