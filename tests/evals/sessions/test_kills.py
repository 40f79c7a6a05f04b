"""SIGKILL again and again, of workers and of the session: a short form of `benchmarks/evals.py --only kills`."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.parts

pytest.importorskip("openai")

BENCHMARKS = Path(__file__).parents[3] / "benchmarks"


@pytest.fixture(scope="module")
def kills() -> Any:
    spec = importlib.util.spec_from_file_location("_evals_kills", BENCHMARKS / "_evals_kills.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def endpoint() -> Iterator[str]:
    script = BENCHMARKS / "_scripted_endpoint.py"
    server = subprocess.Popen([sys.executable, str(script), "10"], stdout=subprocess.PIPE, text=True)
    assert server.stdout is not None
    yield f"http://127.0.0.1:{server.stdout.readline().strip()}/v1"
    server.kill()
    server.communicate()


def test_no_row_is_lost_or_there_twice_after_kills_of_workers_and_of_the_session(
    kills: Any, endpoint: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "none")
    evaluation = kills.Evaluation(tmp_path, endpoint, tasks=60, attempts=2, workers=2, concurrency=8)
    try:
        seen = kills.kill_again_and_again(evaluation, kills=3, seed=1)
    finally:
        if evaluation.process is not None and evaluation.process.poll() is None:
            evaluation.process.kill()
    assert (seen.of_workers, seen.of_sessions) == (2, 1)
    assert (seen.lost, seen.doubled, seen.missing, seen.failed, seen.processes_left) == (0, 0, 0, 0, 0)
    assert seen.in_order
