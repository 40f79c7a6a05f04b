"""What tests of the training API share."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("tinker", reason="the SDK is in the extra `tinker`")
pytest.importorskip("sqlalchemy", reason="sqlalchemy is in the extra `hub`")


def _beside(name: str) -> Any:
    """A module of this folder: tests are imported by path, so that it is not on the path for imports."""
    spec = importlib.util.spec_from_file_location(f"tinker_{name}", Path(__file__).with_name(f"{name}.py"))
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


_serving = _beside("serving")


@pytest.fixture(autouse=True)
def _quiet(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """No telemetry; what clients do in the background ends with the test, or they would warn of a server that ended."""
    from tinker.lib.internal_client_holder import InternalClientHolder

    monkeypatch.setenv("TINKER_TELEMETRY", "0")
    monkeypatch.delenv("TINKER_API_KEY", raising=False)
    opened: list[InternalClientHolder] = []
    make = InternalClientHolder.__init__

    def init(holder: InternalClientHolder, *given: Any, **options: Any) -> None:
        opened.append(holder)
        make(holder, *given, **options)

    monkeypatch.setattr(InternalClientHolder, "__init__", init)
    yield
    for holder in opened:
        holder.close()


@pytest.fixture
def serving() -> Any:
    """Starts servers; see `serving.py`."""
    return _serving


@pytest.fixture
def served(database_url: str | None, tmp_path: Path) -> Iterator[Any]:
    """A running server of whet/tiny, on SQLite, and with the marker `parts` on PostgreSQL."""
    with _serving.serving(tmp_path / "data", database=database_url) as running:
        yield running


@pytest.fixture
def client(served: Any) -> Iterator[Any]:
    """The SDK's client of that server."""
    import tinker

    opened = tinker.ServiceClient(base_url=served.url, api_key=served.key)
    yield opened
    opened.close("success").result()


@pytest.fixture
def datum() -> Callable[..., Any]:
    """A sequence with its inputs: arrays by name."""
    import numpy as np
    from tinker import types

    def make(ids: list[int], **inputs: Any) -> Any:
        data = {
            name: types.TensorData.from_numpy(np.asarray(value, np.int64 if name == "target_tokens" else np.float32))
            for name, value in inputs.items()
        }
        return types.Datum(model_input=types.ModelInput.from_ints(ids), loss_fn_inputs=data)

    return make
