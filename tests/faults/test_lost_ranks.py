"""A learner of several ranks that loses one: named, and the run continues from the checkpoint or ends with a word.

1. Killed, suspended or out of memory: one sentence names the rank, before the watchdog would act, and the same run
   continues from its newest checkpoint: no group is trained twice, none is lost, and a synchronous run is the
   uninterrupted one.
2. A loss that is not finite is no lost rank: the run ends as it does in one process.
3. After `max_restarts` the run ends with the command that resumes, also with another number of ranks.
4. Whatever ends the run, no process of it and nothing in shared memory is left.
"""

from __future__ import annotations

import re
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from whet.rl.storage.weight_directory import shared_memory

pytestmark = pytest.mark.parts

RANKS = ("--learner.ranks", "2", "--learner.rank_timeout_seconds", "5")
ASYNC = ("--max_async_level", "2", "--oversampling_factor", "1.5", "--max_off_policy_steps", "4")
SICK = ("--algorithm.loss", "faults.sick_loss:loss")

Make = Callable[..., Any]
Kill = Callable[[int, int], None]


def pids_of_ranks(process: Any, said: list[str] | None = None) -> list[int]:
    """As a run tells them before its first step, and after a restart; `said` gets the lines before."""
    for line in process.stdout:
        if said is not None:
            said.append(line)
        if line.startswith("the learner is divided: "):
            return [int(pid) for pid in re.findall(r"process (\d+)", line)]
    raise AssertionError("the run ended before its ranks were there")


def check_gone(pid: int, ranks: list[int]) -> None:
    """Contract 4: soon after the end of the run, since ranks end by themselves where it was killed."""
    deadline = time.monotonic() + 60
    while alive := [rank for rank in ranks if running(rank)]:
        assert time.monotonic() < deadline, f"ranks {alive} still run"
        time.sleep(0.02)
    while left := list(shared_memory().glob(f"whet-weights-{pid}-*")):
        assert time.monotonic() < deadline, f"{left} are left"
        time.sleep(0.02)


def running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def lose(run: Any, kill: Kill, *losses: tuple[int, int, int]) -> list[str]:
    """Run to the end, with each signal to its rank after its step, which is done again later; what the run says of it.

    A loss is (step, rank, signal).
    """
    process, said, ranks = run.start(), list[str](), list[int]()
    for step, rank, number in losses:
        ranks = pids_of_ranks(process, said)
        process.after_step(step, lambda victim=ranks[rank], number=number: kill(victim, number))
    ranks += pids_of_ranks(process, said)
    output = process.finish()
    assert "starts again" not in output
    check_gone(process.pid, ranks)
    return [line for line in said if "The learner starts again" in line]


def test_1_4_a_synchronous_run_that_loses_ranks_is_the_uninterrupted_run(make_run: Make, kill: Kill) -> None:
    whole, run = make_run("whole", *RANKS), make_run("run", *RANKS)
    whole.finish()
    losses = [(1, 0, signal.SIGKILL), (5, 1, signal.SIGKILL), (7, 1, signal.SIGSTOP)]
    said = lose(run, kill, *losses)
    says = ["was killed by SIGKILL in: ", "was killed by SIGKILL in: ", "stands still: it is suspended by a signal"]
    for number, (line, (_, rank, _), what) in enumerate(zip(said, losses, says, strict=True), 1):
        assert re.match(rf"rank {rank} \(cpu, process \d+\) {re.escape(what)}", line)
        place = ("the beginning: there is no checkpoint", "the checkpoint of step 3", "the checkpoint of step 6")
        assert f"The learner starts again from {place[number - 1]} ({number} of 3 restarts)" in line
    run.check_whole()
    assert run.record() == whole.record()


def test_1_4_an_asynchronous_run_of_an_adapter_that_loses_a_rank_loses_and_repeats_no_group(
    make_run: Make, kill: Kill
) -> None:
    run = make_run("run", *RANKS, *ASYNC, "--lora.rank", "4")
    [line] = lose(run, kill, (4, 1, signal.SIGKILL))
    assert line.startswith("rank 1 (cpu, process ")
    run.check_whole()


def test_1_a_rank_without_memory_is_named_and_the_run_continues(make_run: Make, tmp_path: Path) -> None:
    run = make_run("run", *RANKS, *SICK, env={"WHET_SICK_RANKS": f"{tmp_path}: 0 memory, 1 memory"})
    output = run.finish()
    for number, rank in enumerate((0, 1), 1):
        says = rf"rank {rank} \(cpu, process \d+\) failed in: .*: MemoryError .*micro_batch_tokens.*\({number} of 3"
        assert re.search(says, output)
    run.check_whole()


def test_2_a_loss_that_is_not_finite_ends_the_run_as_in_one_process(make_run: Make, tmp_path: Path) -> None:
    said = []
    for name, ranks, sick in (("two", RANKS, 1), ("one", (), 0)):
        run = make_run(name, *ranks, *SICK, env={"WHET_SICK_RANKS": f"{tmp_path / name}: {sick} nan"})
        process = run.start()
        output = process.finish(expected=1)
        assert "starts again" not in output
        assert "--resume" in output
        [line] = [line for line in output.splitlines() if "the loss is not finite" in line]
        said.append(re.sub(r"[\w-]*\d+[\w-]*", "", line))
    assert said[0].split("rollouts")[0] == said[1].split("rollouts")[0]


def test_3_4_after_the_last_restart_the_run_ends_and_resumes_with_other_ranks(make_run: Make, kill: Kill) -> None:
    run = make_run("run")
    process = run.start(*RANKS, "--learner.max_restarts", "0")
    ranks = pids_of_ranks(process)
    process.after_step(4, lambda: kill(ranks[1], signal.SIGKILL))
    output = process.finish(expected=1)
    assert "the run ends (learner.max_restarts = 0)" in output
    assert "--resume" in output
    check_gone(process.pid, ranks)
    run.finish("--learner.ranks", "3")
    run.check_whole()


@pytest.mark.parametrize(("number", "suspended"), [(signal.SIGKILL, 0), (signal.SIGINT, None)])
def test_4_nothing_is_left_of_a_run_that_is_killed_or_stopped(
    make_run: Make, kill: Kill, number: int, suspended: int | None
) -> None:
    run = make_run("run", *RANKS)
    process = run.start()
    ranks = pids_of_ranks(process)

    def end() -> None:
        if suspended is not None:  # it does not notice the end of the run by itself: the other one, forked later, does
            kill(ranks[suspended], signal.SIGSTOP)
        kill(process.pid, number)

    process.after_step(2, end)
    process.communicate()
    assert process.returncode == (130 if number == signal.SIGINT else -signal.SIGKILL)
    check_gone(process.pid, ranks)
    run.finish()
    run.check_whole()
