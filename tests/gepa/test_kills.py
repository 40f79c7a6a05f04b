"""A search that is killed or stopped at any moment loses nothing that had finished, and keeps its budget."""

from __future__ import annotations

import re
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

import pytest
from runs import SIZES, Endpoints, begun, endpoints, finished, metadata, whole_lines

pytestmark = pytest.mark.parts

pytest.importorskip("gepa")
pytest.importorskip("openai")


@pytest.fixture
def models() -> Iterator[Endpoints]:
    with endpoints(latency_s=0.01) as found:
        yield found


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return tmp_path / "runs" / "search"


def wait_for_calls(process: Any, run: Path, number: int) -> bool:
    """Until so many calls have finished; False where the process ended before."""
    while len(finished(run)) < number:
        if process.poll() is not None:
            return False
        time.sleep(0.002)
    return True


def go_on(warm: Any, config: Path, run: Path) -> Any:
    started = run.exists() and (run / "metadata.json").exists()
    return warm.start("gepa", "run", *(["--resume", run] if started else [config]), cwd=config.parent)


def killed_and_finished(warm: Any, config: Path, run: Path, moments: list[int]) -> None:
    """Kill the run when so many calls have finished, one process after the other, then let it come to its end.

    Nothing that had finished at a kill is begun again, or gone.
    """
    for moment in moments:
        process = go_on(warm, config, run)
        if not wait_for_calls(process, run, moment):
            break
        process.send_signal(signal.SIGKILL)
        process.wait()
        kept, before = finished(run), begun(run)
        process = go_on(warm, config, run)
        wait_for_calls(process, run, len(kept) + 1)
        process.send_signal(signal.SIGKILL)
        process.wait()
        assert finished(run)[: len(kept)] == kept
        assert all(begun(run)[key] == before[key] for key in kept)
    go_on(warm, config, run).finish()
    assert metadata(run)["state"] == "finished"
    assert sum(begun(run).values()) <= SIZES["max_calls"]
    assert len(finished(run)) == len(set(finished(run)))
    reflections = [(row["key"], row["number"]) for row in whole_lines(run / "reflections.jsonl")]
    assert len(reflections) == len(set(reflections)), "the reflection model was paid twice for an answer"


def test_a_killed_search_goes_on_with_all_that_had_finished(
    warm: Any, models: Endpoints, tmp_path: Path, run: Path
) -> None:
    config = models.write_config(tmp_path / "search.toml", name="search")
    killed_and_finished(warm, config, run, [10, 60])


@pytest.mark.long
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("seed", range(20))
def test_so_does_one_that_is_killed_again_and_again(
    warm: Any, models: Endpoints, tmp_path: Path, run: Path, seed: int
) -> None:
    config = models.write_config(tmp_path / "search.toml", name="search", seed=seed)
    random = Random(seed)
    killed_and_finished(warm, config, run, sorted(random.randrange(1, 110) for _ in range(5)))


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_stopped_search_says_how_to_go_on(
    warm: Any, models: Endpoints, tmp_path: Path, run: Path, number: int
) -> None:
    config = models.write_config(tmp_path / "search.toml", name="search")
    process = go_on(warm, config, run)
    assert wait_for_calls(process, run, 20)
    process.send_signal(number)
    said = process.finish(128 + number)
    assert re.search(rf"continue +whet gepa run --resume {run}", said)
    assert metadata(run)["state"] == "interrupted"
    kept = finished(run)
    go_on(warm, config, run).finish()
    assert finished(run)[: len(kept)] == kept
    assert max(begun(run)[key] for key in kept) == 1


def test_two_processes_do_not_search_in_one_directory(warm: Any, models: Endpoints, tmp_path: Path, run: Path) -> None:
    config = models.write_config(tmp_path / "search.toml", name="search")
    process = go_on(warm, config, run)
    assert wait_for_calls(process, run, 1)
    assert "is in use: another process is searching in it" in go_on(warm, config, run).finish(2)
    process.send_signal(signal.SIGKILL)


def test_a_full_disk_ends_the_search_in_a_line(warm: Any, models: Endpoints, tmp_path: Path, run: Path) -> None:
    config = models.write_config(tmp_path / "search.toml", name="search")
    process = warm.start("gepa", "run", config, cwd=tmp_path, largest_file=20_000)
    said = process.finish(1)
    assert "cannot write" in said
    assert "Traceback" not in said
    kept = finished(run)
    assert kept
    go_on(warm, config, run).finish()
    assert max(begun(run)[key] for key in kept) == 1
