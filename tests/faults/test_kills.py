"""kill -9 of any process of a run, at any moment, any number of times: the run resumes without a trace of it.

1. Whatever was killed and whenever, the same command with `--resume` resumes, until the run is finished.
2. At most one checkpoint interval is done again.
3. No group is trained twice, and none that was drawn is lost.
4. A synchronous run is, bit for bit, the uninterrupted run.
5. When the learner dies, the run reports it with the command that resumes; when the main process dies, so does the
   learner: tests/contract/test_asynchronous_training.py::test_4_a_killed_part_ends_the_run_which_can_be_resumed and
   tests/contract/test_asynchronous_training.py::test_3_4_resume_after_sigkill_loses_and_repeats_no_group.

A trial is one kill. The moments are drawn from a seed over the time that a start or a step takes, so they fall into the
loading, sampling, learning and writing of a run; which file was half written is up to the machine.
"""

from __future__ import annotations

import random
import signal
import time
from collections.abc import Callable
from typing import Any

import pytest

pytestmark = pytest.mark.parts

INTERVAL = 3
MODES = {
    "synchronous": (),
    "asynchronous": ("--max_async_level", "2", "--oversampling_factor", "1.5", "--max_off_policy_steps", "4"),
}
LONGEST = 6.0
"""Seconds after the start beyond which no kill is planned: most runs are over by then."""

Make = Callable[..., Any]


@pytest.fixture
def trials(make_run: Make, processes_of: Callable[[int], list[int]], kill: Callable[[int, int], None]) -> Make:
    """Runs, each killed a few times and then finished, until so many kills have hit a living run."""

    def carry_out(mode: str, kills: int, seed: int, uninterrupted: dict[str, object] | None) -> None:
        random_ = random.Random(f"{seed}/{mode}")
        number = 0
        while kills > 0:
            number += 1
            run = make_run(f"{mode}-{seed}-{number}", *MODES[mode])
            for _ in range(min(kills, random_.randint(2, 6))):
                kills -= kill_once(run, random_)
            run.finish()
            run.check_whole()
            if uninterrupted is not None:
                assert run.record() == uninterrupted

    def kill_once(run: Any, random_: random.Random) -> int:
        """Start or resume, kill one of its processes, see what is left; 1 where the run was alive to be killed."""
        process = run.start()
        moment = wait_for_a_moment(process, random_)
        chosen = random_.random()
        if process.poll() is not None:
            assert process.returncode == 0, process.communicate()
            return 0
        alive = processes_of(process.pid)
        victim = alive[int(chosen * len(alive))]
        kill(victim, signal.SIGKILL)
        output = process.communicate()
        if victim == process.pid:
            assert process.returncode in (0, -signal.SIGKILL), (moment, output)
        elif process.returncode:  # 0: it was done, and only the last words were missing
            assert "Traceback" not in output, (moment, output)
        done, saved = run.steps_done(), run.steps_saved()
        assert 0 <= done - saved <= INTERVAL, (moment, done, saved)
        return 1

    return carry_out


def wait_for_a_moment(process: Any, random_: random.Random) -> float:
    """Until a moment after the start, or after one of the first steps that the run tells of; seconds since then."""
    steps = random_.choice([0, 0, 1, 2, 3, 4, 5])
    delay = random_.uniform(0, LONGEST if steps == 0 else 0.3)
    for _ in range(steps):
        for line in process.stdout:
            if line.startswith("step "):
                break
    end = time.monotonic() + delay
    while time.monotonic() < end and process.poll() is None:
        time.sleep(0.005)
    return delay


@pytest.fixture
def uninterrupted(make_run: Make) -> dict[str, object]:
    run = make_run("whole")
    run.finish()
    record: dict[str, object] = run.record()
    return record


def test_1_2_3_4_a_synchronous_run_killed_at_random_is_the_uninterrupted_run(
    trials: Make, uninterrupted: dict[str, object]
) -> None:
    trials("synchronous", 4, 0, uninterrupted)


def test_1_2_3_an_asynchronous_run_killed_at_random_loses_and_repeats_no_group(trials: Make) -> None:
    trials("asynchronous", 4, 0, None)


@pytest.mark.long
@pytest.mark.timeout(3600)
def test_1_2_3_4_two_hundred_kills(trials: Make, uninterrupted: dict[str, object]) -> None:
    trials("synchronous", 100, 1, uninterrupted)
    trials("asynchronous", 100, 1, None)
