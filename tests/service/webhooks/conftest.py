"""A receiver of webhooks."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("cryptography")


def _load() -> Any:
    spec = importlib.util.spec_from_file_location("webhook_receiver", Path(__file__).with_name("receiver.py"))
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def receive() -> Iterator[Callable[..., Any]]:
    """Starts a receiver; see `receiver.py`."""
    module, started = _load(), []

    def start(*answers: Any, **more: Any) -> Any:
        started.append(module.Receiver(*answers, **more))
        return started[-1]

    yield start
    for one in started:
        one.close()
