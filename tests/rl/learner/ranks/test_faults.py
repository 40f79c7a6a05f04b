"""Which rank is to blame, and from when on. Pure."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from whet.errors import ModelLoadError
from whet.rl.learner.ranks.rank_group import Cause, Raised, RankResponse, Standing, as_raised
from whet.rl.learner.ranks.ranks_learner import REASON_WITHIN_S, RankCall, find_fault

TIMEOUT_S = 30.0


def standing(rank: int, **fields: Any) -> Standing:
    settings = {"phase": "all-gather, micro-batch 2 of 3", "phases": 7, "phase_s": 1.0, "silent_s": 0.5} | fields
    return Standing(rank, f"process {100 + rank}", "cpu", **settings)


def call(*answers: RankResponse, watched_s: float = 1000.0, raised_s: float = 0.0) -> RankCall:
    return RankCall({answer.rank: answer for answer in answers}, watched_s, raised_s, TIMEOUT_S)


def raised(rank: int, cause: Cause, text: str = "RuntimeError: it broke") -> RankResponse:
    return RankResponse(rank, raised=Raised(cause, text))


def test_ranks_that_work_are_left_alone() -> None:
    ranks = [standing(0, phase_s=1e3), standing(1)]  # rank 0 waits for rank 1, which progresses
    assert find_fault(call(), ranks) is None


def test_a_death_is_named_at_once_with_what_the_others_waited_for() -> None:
    ranks = [standing(0), standing(1, ended="was killed by SIGKILL", phase="optimiser step"), standing(2)]
    fault = find_fault(call(watched_s=0.0), ranks)
    assert fault is not None
    assert fault.startswith("rank 1 (cpu, process 101) was killed by SIGKILL in: optimiser step (most often for its")
    assert fault.endswith("ranks 0 and 2 waited for it in: all-gather, micro-batch 2 of 3")


def test_of_several_deaths_the_one_from_outside_is_the_first() -> None:
    ranks = [standing(0, ended="was killed by SIGABRT"), standing(1, ended="was killed by SIGKILL")]
    assert str(find_fault(call(), ranks)).startswith("rank 1 ")


def test_no_heartbeat_is_a_standstill_after_the_deadline() -> None:
    stopped = standing(1, silent_s=TIMEOUT_S + 1, phase_s=TIMEOUT_S + 1, suspended=True)
    fault = find_fault(call(), [standing(0, phase_s=TIMEOUT_S + 1), stopped])
    assert str(fault).startswith("rank 1 (cpu, process 101) stands still: it is suspended by a signal")
    assert find_fault(call(), [standing(0), replace(stopped, silent_s=TIMEOUT_S - 1)]) is None


def test_time_before_the_call_or_while_the_run_was_suspended_itself_does_not_count() -> None:
    late = [standing(0, silent_s=900, phase_s=900), standing(1, silent_s=900, phase_s=900)]
    assert find_fault(call(watched_s=1.0), late) is None
    assert find_fault(call(), late) is not None


def test_of_ranks_that_all_wait_the_one_behind_is_named() -> None:
    ranks = [standing(0, phase_s=40, phases=9), standing(1, phase_s=45, phases=7, phase="optimiser step")]
    fault = str(find_fault(call(), ranks))
    assert fault.startswith("rank 1 (cpu, process 101) has not come any further for longer than")
    assert "rank_timeout_seconds = 30, in: optimiser step" in fault
    together = str(find_fault(call(), [replace(rank, phases=7) for rank in ranks]))
    assert together.startswith("ranks 0 and 1 have not come any further")


def test_a_rank_that_has_answered_is_not_waited_for() -> None:
    ranks = [standing(0, phase_s=100, silent_s=100), standing(1)]
    assert find_fault(call(RankResponse(0)), ranks) is None


def test_an_exception_of_one_rank_is_named_at_once_with_what_needs_less_memory() -> None:
    ranks = [standing(0), standing(1)]
    fault = str(find_fault(call(raised(1, "memory", "MemoryError")), ranks))
    assert fault.startswith(
        "rank 1 (cpu, process 101) failed in: all-gather, micro-batch 2 of 3: MemoryError (a smaller"
    )
    assert str(find_fault(call(raised(1, "other")), ranks)).count("RuntimeError: it broke") == 1


def test_a_broken_connection_waits_for_its_reason() -> None:
    ranks, broken = [standing(0), standing(1), standing(2)], raised(0, "peer")
    assert find_fault(call(broken), ranks) is None
    assert str(find_fault(call(broken, raised(2, "memory")), ranks)).startswith("rank 2 ")
    assert str(find_fault(call(broken, raised_s=REASON_WITHIN_S + 1), ranks)).startswith("rank 0 ")
    asleep = [*ranks[:2], standing(2, suspended=True)]
    assert str(find_fault(call(broken, raised_s=REASON_WITHIN_S + 1), asleep)).startswith("rank 2 ")


def test_a_mistake_of_the_user_is_no_fault_of_a_rank() -> None:
    answers = [RankResponse(rank, raised=as_raised(ModelLoadError("no such model"))) for rank in (0, 1)]
    assert find_fault(call(*answers), [standing(0), standing(1)]) is None


def test_exceptions_are_told_apart_by_what_torch_says() -> None:
    causes = {
        "[enforce fail at alloc_cpu.cpp:117] DefaultCPUAllocator: can't allocate memory": "memory",
        "CUDA out of memory. Tried to allocate 2.00 GiB": "memory",
        "[../third_party/gloo/gloo/transport/tcp/pair.cc:547] Connection closed by peer [127.0.0.1]:4711": "peer",
        "expected scalar type Float": "other",
    }
    for text, cause in causes.items():
        assert as_raised(RuntimeError(text)).cause == cause
    assert as_raised(MemoryError()).text == "MemoryError"
