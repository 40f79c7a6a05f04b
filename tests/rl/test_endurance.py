"""A run stays as it began: `benchmarks/endurance.py` over fewer steps, and that it would notice if it did not."""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path
from typing import Any

import pytest

PATH = Path(__file__).parents[2] / "benchmarks" / "endurance.py"
STEPS = 300
MOST_MB = 6.0
"""MB per 100 steps. So early caches still fill, which is two or three; one step's rollouts kept would be eight."""


@pytest.fixture(scope="module")
def endurance() -> Any:
    spec = importlib.util.spec_from_file_location("endurance", PATH)
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


def samples(endurance: Any, resident: Any, descriptors: Any) -> list[Any]:
    return [endurance.Sample(step, int(resident(step) * 1e6), descriptors(step)) for step in range(1, 401)]


def test_what_grows_with_every_step_is_found_whatever_else_moves(endurance: Any) -> None:
    saw = lambda step: 3 * (step % 7)  # noqa: E731  # an allocator that takes and gives back
    flat = endurance.judge(samples(endurance, lambda step: 400 + saw(step), lambda step: 9), 200)
    leak = endurance.judge(samples(endurance, lambda step: 400 + saw(step) + 0.02 * step, lambda step: 9), 200)
    assert abs(flat.slope_mb) < 0.5
    assert leak.slope_mb == pytest.approx(flat.slope_mb + 2)
    assert flat.holds(1.0)
    assert not leak.holds(1.0)


def test_growth_that_ends_with_the_warm_up_is_none(endurance: Any) -> None:
    found = endurance.judge(samples(endurance, lambda step: 400 + min(step, 200), lambda step: 9), 200)
    assert found.slope_mb == pytest.approx(0)
    assert found.resident_mb == pytest.approx(600)


def test_descriptors_that_are_never_closed_are_found_and_those_open_for_a_moment_are_not(endurance: Any) -> None:
    kept = endurance.judge(samples(endurance, lambda step: 400, lambda step: 9 + step // 100), 200)
    assert (kept.descriptors_at_first, kept.descriptors_at_last) == (11, 12)
    assert not kept.holds(1.0)
    passing = endurance.judge(samples(endurance, lambda step: 400, lambda step: 9 + 5 * (step % 3 == 0)), 200)
    assert passing.holds(1.0)


def test_over_the_limit_it_ends_with_1_and_names_who_grows(
    endurance: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    found = {"run": endurance.Endurance(400.0, 0.2, 9, 9), "learner": endurance.Endurance(400.0, 1.5, 9, 9)}
    monkeypatch.setattr(endurance, "measure", lambda mode, steps, file: found)
    with pytest.raises(SystemExit) as ended:
        endurance.main(["--only", "asynchronous"])
    assert ended.value.code == 1
    *lines, last = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines if line.endswith("grows")] == ["learner"]
    assert json.loads(last)["asynchronous"]["learner"]["slope_mb"] == 1.5
    endurance.main(["--only", "asynchronous", "--most", "2"])


@pytest.mark.long
@pytest.mark.parametrize(
    ("mode", "processes"),
    [
        ("synchronous", {"run", "watchdog"}),
        ("asynchronous", {"run", "engine", "learner", "watchdog", "resource tracker"}),
    ],
)
def test_no_process_of_a_run_grows(endurance: Any, mode: str, processes: set[str]) -> None:
    found = endurance.measure(mode, STEPS)
    assert found.keys() == {*processes, endurance.SHARED}
    assert not {name: one for name, one in found.items() if not one.holds(MOST_MB)}
