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


def beside(name: str) -> Any:
    """A module of this folder: tests are imported by path, so that it is not on the path for imports."""
    path = Path(__file__).parent / f"{name}.py"
    spec = importlib.util.spec_from_file_location(f"tinker_{path.stem}", path)
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


_serving = beside("serving")


@pytest.fixture(autouse=True)
def _quiet(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TINKER_TELEMETRY", "0")
    monkeypatch.delenv("TINKER_API_KEY", raising=False)


@pytest.fixture
def serving() -> Any:
    """Starts servers; see `serving.py`."""
    return _serving


@pytest.fixture(scope="session")
def postgresql() -> Iterator[Any]:
    """A server of PostgreSQL; see `../hub/postgresql.py`."""
    module = beside("../hub/postgresql")
    folder = module.programs()
    if folder is None:
        pytest.skip("PostgreSQL is not installed here")
    server = module.Postgresql(folder)
    yield server
    server.close()


@pytest.fixture(params=["sqlite", pytest.param("postgresql", marks=pytest.mark.parts)])
def served(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Any]:
    """A running server of the bigram model, on SQLite, and with the marker `parts` on PostgreSQL."""
    url = request.getfixturevalue("postgresql").database() if request.param == "postgresql" else None
    with _serving.serving(tmp_path / "data", database=url) as running:
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
