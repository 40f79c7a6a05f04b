"""Which request decodes in which slot: a pure state machine, tested without tensors."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from whet.inference.decoding.scheduler import LoadedAdapter, SampleJob, Scheduler
from whet.inference.protocol import SampleRequest, SamplingParams, VersionRun


def job(
    prompt: list[int],
    max_tokens: int = 8,
    rollout: str | None = None,
    group: str | None = None,
    adapter: LoadedAdapter | None = None,
) -> SampleJob:
    params = SamplingParams(max_tokens=max_tokens)
    return SampleJob(SampleRequest(prompt, params, group_key=group, rollout_key=rollout), seed=0, adapter=adapter)


def scheduler(max_rows: int = 4, token_budget: int = 4096) -> Scheduler:
    return Scheduler(max_rows=max_rows, token_budget=token_budget)


def submitted(target: Scheduler, *jobs: SampleJob) -> None:
    for each in jobs:
        target.submit(each)


def test_jobs_are_admitted_in_order_of_arrival() -> None:
    target = scheduler(max_rows=2)
    jobs = [job([1, 2, 3]) for _ in range(3)]
    submitted(target, *jobs)
    assert [admission.job for admission in target.admit()] == jobs[:2]
    target.finish(jobs[0], [1, 2, 3])
    (last,) = target.admit()
    assert (last.job, last.slot) == (jobs[2], 0)


def test_by_rollout_arrivals_of_one_round_are_ordered_by_name_and_stay_behind_those_that_waited() -> None:
    target = scheduler(max_rows=1)
    late, early, next_round = (job([1], rollout=name) for name in ("2-0", "10-1", "1-0"))
    submitted(target, late, early)
    admitted = [admission.job for admission in target.admit(by_rollout=True)]
    submitted(target, next_round)
    for _ in range(2):
        target.finish(admitted[-1], [1])
        admitted += [admission.job for admission in target.admit(by_rollout=True)]
    assert admitted == [early, late, next_round]


def test_a_long_job_is_not_overtaken() -> None:
    target = scheduler(token_budget=256)
    running, long, short = job([1], 60), job([1], 250), job([1], 8)
    submitted(target, running)
    target.admit()
    submitted(target, long, short)
    assert target.admit() == []
    target.finish(running, [1])
    assert [admission.job for admission in target.admit()] == [long]


def widths(target: Scheduler, *totals: int) -> list[int]:
    """Columns while each of these jobs, of so many tokens, runs alone."""
    found = []
    for total in totals:
        submitted(target, alone := job([1], total - 1))
        target.admit()
        found.append(target.columns)
        target.finish(alone, [1])
    return found


def test_each_burst_of_jobs_is_as_wide_as_it_needs() -> None:
    assert widths(scheduler(), 60, 100, 60) == [64, 128, 64]


def test_columns_can_be_kept_from_one_burst_to_the_next_unless_that_is_a_waste() -> None:
    assert widths(Scheduler(max_rows=4, token_budget=4096, keep_columns=True), 60, 100, 60, 20) == [64, 128, 128, 32]


def test_columns_that_would_cost_a_row_are_not_kept() -> None:
    assert widths(Scheduler(max_rows=4, token_budget=300, keep_columns=True), 60, 100, 60) == [64, 128, 64]


def test_a_rollout_comes_back_to_its_slot() -> None:
    target = scheduler()
    submitted(target, job([9], rollout="other"), first := job([1, 2], rollout="r"))
    target.admit()
    target.finish(first, [1, 2, 3, 4])
    submitted(target, job([1, 2, 3, 4, 5, 6], rollout="r"))
    (admission,) = target.admit()
    assert (admission.slot, admission.reused, admission.donor) == (1, 4, None)


def test_the_last_prompt_token_is_always_fed() -> None:
    target = scheduler()
    submitted(target, first := job([1, 2], rollout="r"))
    target.admit()
    target.finish(first, [1, 2, 3, 4])
    submitted(target, job([1, 2, 3], rollout="r"))
    assert target.admit()[0].reused == 2


def test_a_group_copies_from_its_first_member() -> None:
    target = scheduler()
    submitted(target, *(job([1, 2, 3, 4], group="g") for _ in range(3)))
    admissions = target.admit()
    assert [(a.reused, a.donor) for a in admissions] == [(0, None), (3, 0), (3, 0)]


def test_equal_keys_with_other_tokens_share_nothing() -> None:
    target = scheduler()
    submitted(target, job([1, 2, 3], group="g"), job([4, 5, 6], group="g"))
    assert [(a.reused, a.donor) for a in target.admit()] == [(0, None), (0, None)]


def test_new_weights_end_all_reuse() -> None:
    target = scheduler()
    submitted(target, parked := job([1, 2, 3], rollout="p"), running := job([1, 2, 3], rollout="r", group="g"))
    target.admit()
    target.finish(parked, [1, 2, 3])
    target.set_version(1)
    target.finish(running, [1, 2, 3])
    submitted(target, job([1, 2, 3, 4], rollout="p"), job([1, 2, 3, 4], rollout="r"), job([1, 2, 3], group="g"))
    assert [(a.reused, a.donor) for a in target.admit()] == [(0, None)] * 3


def test_versions_are_runs_over_the_tokens_drawn() -> None:
    drawn = job([1, 2, 3])
    drawn.marks = [(0, 3), (1, 3), (4, 7)]
    assert drawn.versions(9) == [VersionRun(1, 4), VersionRun(4, 2)]


def test_the_oldest_parked_rollout_makes_room() -> None:
    target = scheduler(max_rows=2, token_budget=2 * 32)
    first, second = job([1, 2], rollout="a"), job([3, 4], rollout="b")
    submitted(target, first, second)
    target.admit()
    target.finish(second, [3, 4])
    target.finish(first, [1, 2])
    submitted(target, job([5, 6], rollout="c"))
    assert target.admit()[0].slot == 1
    submitted(target, job([1, 2, 7], rollout="a"))
    assert target.admit()[0].reused == 2


def test_one_very_long_request_does_not_narrow_the_rectangle_for_good() -> None:
    target = scheduler(max_rows=16, token_budget=1024)
    submitted(target, long := job([1], 1000))
    target.admit()
    target.finish(long, [1])
    submitted(target, *(job([1]) for _ in range(16)))
    assert len(target.admit()) == 16


def test_compaction_moves_late_rows_to_the_front() -> None:
    target = scheduler(max_rows=8)
    jobs = [job([1], rollout=str(i)) for i in range(8)]
    submitted(target, *jobs)
    target.admit()
    for done in jobs[:5]:
        target.finish(done, [1])
    assert target.compaction() == [(5, 0), (6, 1), (7, 2)]
    assert [each.slot for each in jobs[5:]] == [0, 1, 2]
    assert target.rows == 3
    submitted(target, job([1, 2], rollout="0"))
    assert target.admit()[0].slot == 5


STEPS = ["submit", "admit", "finish", "cancel", "release", "weights", "unload", "compact"]


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_scheduler_invariants_under_random_operations(
    data: st.DataObject,
) -> None:
    budget = 64 * data.draw(st.integers(1, 8))
    target = scheduler(max_rows=data.draw(st.integers(1, 5)), token_budget=budget)
    adapters = [None, LoadedAdapter("x", 0, None), LoadedAdapter("y", 0, None)]
    computed: dict[int, tuple[LoadedAdapter | None, int]] = {}  # by slot: whose columns it holds, of which version
    for _ in range(data.draw(st.integers(1, 40))):
        match data.draw(st.sampled_from(STEPS)):
            case "submit":
                total = data.draw(st.integers(2, budget))
                prompt = data.draw(st.lists(st.integers(0, 2), min_size=1, max_size=min(6, total - 1)))
                key = data.draw(st.sampled_from([None, "a", "b", "c"]))
                adapter = data.draw(st.sampled_from([each for each in adapters if each is None or each.served]))
                target.submit(job(prompt, total - len(prompt), rollout=key, group=key, adapter=adapter))
            case "admit":
                for admission in target.admit():
                    assert admission.reused <= len(admission.job.request.prompt_ids) - 1
                    whose = admission.job.adapter, target.version_of(admission.job.adapter)
                    source = admission.slot if admission.donor is None else admission.donor
                    assert not admission.reused or computed[source] == whose
                    computed[admission.slot] = whose
            case "finish" if target.running:
                done = data.draw(st.sampled_from(target.running))
                target.finish(done, done.request.prompt_ids)
            case "cancel" if target.running or target.waiting:
                target.cancel(data.draw(st.sampled_from([*target.running, *target.waiting])))
            case "release":
                target.release("a")
            case "weights":
                adapter = data.draw(st.sampled_from(adapters))
                if adapter is None:
                    target.set_version(target.version + 1)
                else:
                    adapter.version += 1
                    target.forget(adapter)
            case "unload":
                adapter = data.draw(st.sampled_from(adapters[1:]))
                adapter.served = False
                target.forget(adapter)
                assert not any(slot.adapter is adapter and slot.state == "parked" for slot in target.slots)
            case "compact":
                for source, sink in target.compaction():
                    computed[source], computed[sink] = computed.get(sink, (None, -1)), computed[source]
        assert len(target.slots) * target.columns <= budget
        assert len(target.running) <= target.max_rows
        for index, slot in enumerate(target.slots):
            assert (slot.job is not None) == (slot.state == "running")
            assert slot.job is None or slot.job.slot == index
    for _ in range(200):
        if not target.running and not target.waiting:
            break
        target.admit()
        for each in target.running:
            target.finish(each, each.request.prompt_ids)
    assert not target.waiting
    assert not target.running
