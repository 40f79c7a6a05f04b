"""What a run is told of an engine process that cannot start; what a started one does is in tests/contract."""

import logging
import os
import queue
import tempfile
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import whet.system.children
from whet.errors import ModelLoadError, TrainingError
from whet.rl.supervision.engine_process import EngineProcess


@pytest.fixture(autouse=True)
def quick_to_start(monkeypatch: pytest.MonkeyPatch) -> None:
    """Forked, so that torch need not be imported again; none of these gets as far as computing."""
    monkeypatch.setattr(whet.system.children, "START_METHOD", "fork")


@pytest.fixture
def private() -> Iterator[Path]:
    with tempfile.TemporaryDirectory() as directory:
        yield Path(directory)


@pytest.fixture
def any_model(monkeypatch: pytest.MonkeyPatch) -> Path:
    """What `load_policy`, which a test replaces, is given."""
    monkeypatch.setattr("whet.inference.loading.read_model", lambda model, *_, **__: model)
    return Path("anything")


def test_a_model_that_cannot_be_loaded_is_named_as_it_is_in_this_process(private: Path, tmp_path: Path) -> None:
    process = EngineProcess(tmp_path, private)
    with pytest.raises(ModelLoadError, match=r"has no config\.json"):
        process.engine()
    process.close()


def test_a_process_that_dies_while_it_loads_is_named(
    private: Path, any_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("whet.inference.loading.load_policy", lambda model, **_: os._exit(3))
    process = EngineProcess(any_model, private)
    with pytest.raises(TrainingError, match="the engine's process ended without a word"):
        process.engine()
    assert process.failure() == "it exited with code 3"
    process.close()


def test_a_process_that_is_never_ready_is_not_waited_for_for_ever(
    private: Path, any_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("whet.inference.loading.load_policy", lambda model, **_: os.read(os.pipe()[0], 1))
    process = EngineProcess(any_model, private, ready_within_s=0.05)
    with pytest.raises(TrainingError, match=r"was not ready within 0\.05 s"):
        process.engine()
    assert process.failure() is None
    process.close()
    assert process.failure() == "it was killed by SIGKILL"
    assert not list(private.iterdir())


def test_what_it_warns_of_while_it_loads_is_told(
    private: Path, any_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def load(model: str, **options: Any) -> None:
        warnings.warn("this checkpoint is old", UserWarning, stacklevel=1)
        raise ModelLoadError("too old")

    monkeypatch.setattr("whet.inference.loading.load_policy", load)
    process = EngineProcess(any_model, private)
    heard: queue.Queue[logging.LogRecord] = queue.Queue()
    with process.log.forwarded_to(heard.put):
        with pytest.raises(ModelLoadError, match="too old"):
            process.engine()
        assert "UserWarning: this checkpoint is old" in heard.get(timeout=60).getMessage()
    process.close()
