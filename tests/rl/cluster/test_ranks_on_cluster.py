"""A learner in ranks on two nodes of a Ray cluster, with a real kill and a real stop.

1. It learns what one process on one machine learns.
2. A rank whose actor is killed, or stands still, is named; the run continues from its last checkpoint. Ranks compute
   a loss that only the machine of the run has.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytestmark = [pytest.mark.parts, pytest.mark.timeout(600)]
RANKS = ("--learner.ranks", "2", "--learner.rank_timeout_seconds", "30")


def wait_for(condition: Callable[[], Any], run: Any) -> Any:
    while not (found := condition()):
        assert run.process.poll() is None, run.output
        time.sleep(0.05)
    return found


def rank(number: int, run: Any) -> int:
    """The process of a rank, as the run says it."""
    word = f"rank {number} (cpu, process "
    wait_for(lambda: word in run.output, run)
    return int(run.output.partition(word)[2].partition(" ")[0])


def test_ranks_on_two_nodes_learn_what_one_process_does(cluster: Any, train: Any, alone: list[float]) -> None:
    run = train("--deployment.ray_address", cluster.address, *RANKS)
    rows = run.finish()
    assert "on 127.0.0.2), rank 1 (cpu, process" in run.output
    assert "on 127.0.0.3)" in run.output
    assert [row["reward/mean"] for row in rows] == pytest.approx(alone[:3], abs=0.02)
    run.check_ledger(12)


LOSS = """
from whet.rl.algorithms import LossTerms

def mine(inputs, config):
    return LossTerms(-inputs.advantages_N * inputs.logprobs_N)
"""


@pytest.mark.parametrize("number", [signal.SIGKILL, pytest.param(signal.SIGSTOP, marks=pytest.mark.long)])
def test_a_lost_rank_is_named_and_the_run_continues_from_its_checkpoint(
    cluster: Any, train: Any, tmp_path: Path, number: signal.Signals
) -> None:
    """It computes a loss that only the machine of the run has."""
    (tmp_path / "own").mkdir()
    (tmp_path / "own" / "own_loss.py").write_text(LOSS)
    path = os.pathsep.join([str(tmp_path / "own"), *filter(None, [os.environ.get("PYTHONPATH")])])
    options = ("--algorithm.loss", "own_loss:mine", "--max_steps", "6")
    run = train("--deployment.ray_address", cluster.address, *RANKS, *options, PYTHONPATH=path)
    wait_for(lambda: (run.directory / "checkpoints" / "step_2").is_dir(), run)
    os.kill(rank(1, run), number)
    rows = run.finish()
    assert "rank 1 (cpu, process" in run.output
    assert "The learner starts again from the checkpoint of step" in run.output
    assert [row["step"] for row in rows] == [1, 2, 3, 4, 5, 6]
    run.check_ledger(24)
