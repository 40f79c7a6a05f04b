"""Runs are claimed once, held by a fence, charged, stopped by their caps, and given up on evidence alone."""

from __future__ import annotations

import threading
import time
from typing import Any

import pytest

pytest.importorskip("sqlalchemy")

from sqlalchemy import select

from whet.hub.domain.audit import verify
from whet.hub.errors import HubError
from whet.service.domain import queue as operations
from whet.service.domain import runners, runs, usage
from whet.service.library import waits
from whet.service.storage.tables import AttemptRow, Quota, RunRow, RunSecret, UsageDay


def test_run_goes_from_the_queue_to_its_end(queue: Any) -> None:
    runner = queue.runner(core_hour_price=3600.0)
    run = queue.submit(cores=2)
    held = queue.start(runner)
    assert (held.run, held.attempt, held.fence) == (run, 1, 1)
    queue.ahead += 10
    renewal = queue.do(operations.renew, held, step=3, tokens=500)
    assert (renewal.stop, queue.run(run).step) == (False, 3)
    queue.ahead += 10
    assert queue.do(operations.finish, held, "finished", "", exit_code=0, step=4, tokens=700)
    row = queue.run(run)
    assert (row.state, row.step, row.tokens, queue.attempt(held).exit_code) == ("finished", 4, 700, 0)
    assert 20 <= row.seconds < 200
    assert row.cost == pytest.approx(2 * row.seconds)
    with queue.database.read() as session:
        days = list(session.scalars(select(UsageDay)))
        assert sum(day.core_seconds for day in days) == pytest.approx(2 * row.seconds)
        assert sum(day.tokens for day in days) == 700
    assert queue.claim(runner) is None


def test_submission_with_a_known_key_is_the_same_run(queue: Any) -> None:
    first = queue.submit(key="a" * 16)
    assert queue.submit(key="a" * 16) == first
    assert queue.submit("bob", key="a" * 16) != first
    with pytest.raises(HubError) as caught:
        queue.submit(key="a" * 16, config="max_steps = 5")
    assert caught.value.code == "conflict"


def test_capacity_is_never_exceeded(queue: Any) -> None:
    runner = queue.runner(cores=4)
    for _ in range(5):
        queue.submit(cores=1.5)
    assert [queue.claim(runner) is not None for _ in range(4)] == [True, True, False, False]


def test_what_runs_on_a_host_without_a_runner_counts_there(queue: Any) -> None:
    first = queue.runner(cores=4)
    queue.submit(cores=3)
    held = queue.start(first)
    queue.do(runners.leave, first)
    second = queue.runner(cores=4)
    queue.submit(cores=3)
    assert queue.claim(second) is None
    assert queue.do(operations.adopt, held, second).fence == held.fence + 1
    assert queue.claim(second) is None
    assert queue.claim(queue.runner(host="other", cores=4)) is not None


def test_runner_that_is_silent_or_left_gets_nothing(queue: Any) -> None:
    runner = queue.runner()
    queue.submit()
    queue.ahead += runners.ALIVE_S + 1
    assert queue.claim(runner) is None
    assert queue.do(runners.heartbeat, runner)
    assert queue.claim(runner) is not None
    queue.do(runners.leave, runner)
    queue.submit()
    assert not queue.do(runners.heartbeat, runner)
    assert queue.claim(runner) is None


def test_write_with_an_old_fence_changes_nothing(queue: Any) -> None:
    old, new = queue.runner(), queue.runner()
    queue.submit()
    held = queue.start(old)
    adopted = queue.do(operations.adopt, held, new)
    assert queue.do(operations.renew, held) is None
    assert not queue.do(operations.finish, held, "failed", "")
    assert not queue.do(operations.lost, held, "gone")
    assert queue.do(operations.adopt, held, old) is None
    with queue.database.write() as session:
        assert not operations.say(session, held, "unknown")
    assert queue.run(held.run).state == "running"
    assert queue.do(operations.finish, adopted, "finished", "")
    assert not queue.do(operations.finish, adopted, "failed", "")
    assert queue.run(held.run).state == "finished"


def test_expired_lease_is_not_an_end(queue: Any) -> None:
    first, second = queue.runner(), queue.runner(host="other")
    queue.submit()
    held = queue.start(first)
    assert queue.do(operations.unattended, second) == []
    queue.ahead += operations.LEASE_S + 1
    assert queue.claim(second) is None
    left = queue.do(operations.unattended, second)
    assert [(one.held, one.expired, one.run.state) for one in left] == [(held, True, "running")]
    assert queue.do(operations.renew, held) is not None
    assert queue.do(operations.unattended, second) == []


def test_lost_run_is_queued_again_and_resumes_with_the_next_fence(queue: Any) -> None:
    runner = queue.runner()
    run = queue.submit()
    first = queue.start(runner)
    assert queue.do(operations.lost, first, "the machine was started again")
    row = queue.run(run)
    assert (row.state, row.resume, row.resume_step) == ("queued", True, None)
    assert "the machine was started again" in row.reason
    second = queue.start(runner)
    assert (second.attempt, second.fence) == (2, 2)
    with queue.database.read() as session:
        states = list(session.scalars(select(AttemptRow.state).order_by(AttemptRow.number)))
    assert states == ["lost", "running"]


def test_run_that_is_lost_again_and_again_fails(queue: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(operations, "LOST_MOST", 4)
    runner = queue.runner()
    run = queue.submit()
    for _ in range(operations.LOST_MOST + 1):  # before a process was started: the runner's fault
        assert queue.do(operations.lost, queue.claim(runner).held, "gone")
    assert queue.run(run).state == "queued"
    for _ in range(operations.LOST_MOST):
        assert queue.do(operations.lost, queue.start(runner), "gone")
    assert queue.run(run).state == "failed"


def test_lost_run_that_was_to_stop_is_stopped(queue: Any) -> None:
    runner = queue.runner()
    run = queue.submit()
    held = queue.start(runner)
    queue.do(lambda session, now: runs.request_stop(session, session.get_one(RunRow, run), "ann", now))
    assert queue.do(operations.renew, held).stop
    assert queue.do(operations.lost, held, "gone")
    assert queue.run(run).state == "stopped"


def stop(queue: Any, run: str) -> None:
    queue.do(lambda session, now: runs.request_stop(session, session.get_one(RunRow, run), "ann", now))


def restart(queue: Any, run: str, step: int | None = None, **more: Any) -> None:
    queue.do(lambda session, now: runs.restart(session, session.get_one(RunRow, run), "ann", step, now, **more))


def delete(queue: Any, run: str) -> None:
    queue.do(lambda session, now: runs.delete_run(session, session.get_one(RunRow, run), "ann", now))


def refused(code: str, function: Any, *arguments: Any) -> str:
    with pytest.raises(HubError) as caught:
        function(*arguments)
    assert caught.value.code == code
    return str(caught.value)


def test_stop_and_restart(queue: Any) -> None:
    runner = queue.runner()
    run = queue.submit()
    stop(queue, run)
    assert queue.run(run).state == "stopped"
    assert queue.claim(runner) is None
    refused("wrong_state", stop, queue, run)
    refused("wrong_state", restart, queue, run, 2)
    restart(queue, run)
    held = queue.start(runner)
    assert queue.run(run).resume is False  # the first attempt
    refused("wrong_state", restart, queue, run)
    stop(queue, run)
    assert queue.run(run).state == "running"
    assert queue.do(operations.renew, held).stop
    assert queue.do(operations.finish, held, "stopped", "")
    assert queue.run(run).reason == "stopped by ann"
    restart(queue, run, 2)
    claim = queue.claim(runner)
    assert (claim.run.resume, claim.run.resume_step, claim.held.attempt) == (True, 2, 2)
    assert not queue.do(operations.renew, claim.held).stop


def test_delete_takes_the_secrets_and_refuses_what_runs(queue: Any) -> None:
    runner = queue.runner()
    run = queue.submit(secrets={"API_KEY": "s3cret"})
    held = queue.start(runner)
    assert "whet train stop" in refused("wrong_state", delete, queue, run)
    queue.do(operations.finish, held, "finished", "")
    delete(queue, run)
    refused("wrong_state", delete, queue, run)
    with queue.database.read() as session:
        assert list(session.scalars(select(RunSecret))) == []
        assert session.get_one(RunRow, run).config == ""
    waiting = queue.submit()
    delete(queue, waiting)
    assert queue.claim(runner) is None


@pytest.mark.parametrize(
    ("cap", "said"),
    [
        ({"seconds": 1000.0}, "1000 seconds"),
        ({"cost": 500.0}, "cap of 500 in cost"),
        ({"tokens": 5000}, "cap of 5,000 tokens"),
    ],
)
def test_cap_stops_a_run_is_its_reason_and_has_to_be_raised_for_a_restart(
    queue: Any, cap: dict[str, float], said: str
) -> None:
    runner = queue.runner(core_hour_price=3600.0)
    run = queue.submit(caps={"seconds": None, "tokens": None, "cost": None, **cap})
    held = queue.start(runner)
    queue.ahead += 20
    assert not queue.do(operations.renew, held, tokens=4999).stop
    queue.ahead += 1000
    renewal = queue.do(operations.renew, held, tokens=5000)
    assert renewal.stop
    assert said in renewal.reason
    assert queue.do(operations.finish, held, "stopped", "the run was stopped")
    assert said in queue.run(held.run).reason
    assert said in refused("over_quota", restart, queue, run)
    assert queue.run(run).state == "stopped"
    restart(queue, run, caps={name: 3 * value for name, value in cap.items()})
    queue.do(runners.heartbeat, runner)
    again = queue.start(runner)
    assert not queue.do(operations.renew, again, tokens=5001).stop


def limit(queue: Any, owner: str, **limits: Any) -> None:
    def change(session: Any, now: float) -> None:
        row = usage.quota_of(session, owner, now)
        for name, value in limits.items():
            setattr(row, name, value)

    queue.do(change)


def test_quotas_hold(queue: Any) -> None:
    runner = queue.runner()
    limit(queue, "ann", running=1, queued=2)
    first = queue.submit()
    queue.submit()
    assert "2 runs in the queue" in refused("over_quota", queue.submit)
    held = queue.start(runner)
    assert held.run == first
    assert queue.claim(runner) is None  # ann has one in progress
    other = queue.submit("bob")
    assert queue.claim(runner).held.run == other
    limit(queue, "ann", seconds=60.0)
    queue.ahead += 61
    renewal = queue.do(operations.renew, held)
    assert renewal.stop
    assert "seconds of this month" in renewal.reason
    assert queue.do(operations.finish, held, "stopped", "")
    queue.do(runners.heartbeat, runner)
    assert queue.claim(runner) is None
    assert "this month" in refused("over_quota", queue.submit)


def test_tokens_of_a_month_are_limited(queue: Any) -> None:
    runner = queue.runner()
    limit(queue, "ann", tokens=700)
    queue.submit()
    held = queue.start(runner)
    assert not queue.do(operations.renew, held, tokens=699).stop
    renewal = queue.do(operations.renew, held, tokens=700)
    assert (renewal.stop, renewal.reason) == (True, "stopped: ann has used its 700 tokens of this month")
    assert queue.do(operations.finish, held, "stopped", "", tokens=720)
    assert "700 tokens of this month" in refused("over_quota", queue.submit)
    queue.submit("bob")


def test_limits_of_a_user_hold_in_all_of_its_organisations(queue: Any) -> None:
    runner = queue.runner(cores=40)
    limit(queue, "ann", running=2, queued=3, tokens=700)
    for number in range(3):
        queue.submit(f"org-{number}", "ann")
    assert "ann has 3 runs in the queue" in refused("over_quota", lambda: queue.submit("org-9", "ann"))
    queue.submit("org-1", "bob")
    held = [queue.start(runner) for _ in range(3)]
    assert [queue.run(one.run).user for one in held].count("ann") == 2
    assert queue.claim(runner) is None
    with queue.database.read() as session:
        [wait] = waits(session, 0.0).values()
    assert (wait.place, wait.reason) == (None, "ann has 2 runs in progress, its limit")
    own = [one for one in held if queue.run(one.run).user == "ann"]
    assert not queue.do(operations.renew, own[0], tokens=400).stop
    renewal = queue.do(operations.renew, own[1], tokens=300)
    assert (renewal.stop, renewal.reason) == (True, "stopped: ann has used its 700 tokens of this month")
    assert "700 tokens of this month" in refused("over_quota", lambda: queue.submit("org-9", "ann"))
    queue.submit("org-1", "bob")


def test_user_of_many_organisations_does_not_go_first_again(queue: Any) -> None:
    runner = queue.runner(cores=1)
    for number in range(30):
        queue.submit(f"org-{number}", "ann")
    queue.submit("bob")
    queue.submit("bob")
    turns = []
    for _ in range(4):
        held = queue.start(runner)
        turns.append(queue.run(held.run).user)
        queue.ahead += 100
        assert queue.do(operations.finish, held, "finished", "")
        queue.do(runners.heartbeat, runner)
    assert sorted(turns[:2]) == sorted(turns[2:]) == ["ann", "bob"]


def test_restart_from_a_step_without_a_checkpoint_is_refused_and_leaves_the_run(queue: Any) -> None:
    runner = queue.runner()
    run = queue.submit()
    assert queue.do(operations.finish, queue.start(runner), "finished", "")
    with pytest.raises(HubError, match=r"no checkpoint of step 3; there are: 2, 4\.$"):
        restart(queue, run, 3, there={4, 2})
    assert queue.run(run).state == "finished"
    restart(queue, run, 4, there={4, 2})
    assert queue.run(run).resume_step == 4


def test_owner_with_one_run_is_next_although_another_has_many_queued(queue: Any) -> None:
    runner = queue.runner(cores=2)
    for _ in range(100):
        queue.submit("ann")
    first, second = queue.start(runner), queue.start(runner)
    bobs = queue.submit("bob")
    queue.ahead += 5
    assert queue.do(operations.finish, first, "finished", "")
    assert queue.claim(runner).held.run == bobs
    assert queue.do(operations.finish, second, "finished", "")
    assert queue.run(queue.claim(runner).held.run).owner == "ann"


def test_usage_survives_a_gap_without_runners_and_lost_time_is_not_charged(queue: Any) -> None:
    runner = queue.runner()
    queue.submit()
    held = queue.start(runner)
    queue.ahead += 5000
    other = queue.runner()
    held = queue.do(operations.adopt, held, other)
    queue.do(operations.renew, held)
    assert queue.run(held.run).seconds >= 5000
    queue.ahead += 5000
    assert queue.do(operations.lost, held, "gone")
    assert queue.run(held.run).seconds < 6000
    with queue.database.read() as session:
        assert session.get_one(Quota, "ann").decayed >= 5000


def test_clock_of_a_machine_that_is_an_hour_off_changes_nothing(queue: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = queue.runner(), queue.runner(host="other")
    run = queue.submit()
    began = queue.run(run).queued_at
    clock = time.time
    for off in (3600.0, -3600.0):
        monkeypatch.setattr(time, "time", lambda off=off: clock() + off)
        held = queue.start(first)
        assert queue.do(operations.renew, held) is not None
        assert queue.do(operations.unattended, second) == []
        assert queue.do(operations.lost, held, "gone")
        assert 0 <= queue.run(run).seconds < 600
        assert abs(queue.attempt(held).started_at - began) < 600


def test_use_is_charged_to_the_day_it_was_in(queue: Any) -> None:
    runner = queue.runner()
    queue.submit()
    held = queue.start(runner)
    for _ in range(3):
        queue.ahead += 86_400
        queue.do(operations.renew, held)
    with queue.database.read() as session:
        days = list(session.scalars(select(UsageDay).order_by(UsageDay.day)))
        assert len(days) == 4
        assert all(day.run_seconds <= 86_400 for day in days)
        assert [days[1].run_seconds, days[2].run_seconds] == [86_400.0, 86_400.0]
        assert sum(day.run_seconds for day in days) == pytest.approx(queue.run(held.run).seconds)


@pytest.mark.parametrize("count", [20, pytest.param(200, marks=pytest.mark.parts)])
def test_two_runners_at_once_start_each_run_once(queue: Any, count: int) -> None:
    claimed: dict[str, list[str]] = {}
    runs_of = [queue.submit(owner) for number in range(count) for owner in ("ann", "bob")[number % 2 : number % 2 + 1]]

    def work(runner: str) -> None:
        while (claim := queue.claim(runner)) is not None:
            claimed.setdefault(claim.held.run, []).append(runner)
            assert queue.do(operations.started, claim.held, pid=1, process_began="1")
            assert queue.do(operations.finish, claim.held, "finished", "", exit_code=0)

    threads = [threading.Thread(target=work, args=(queue.runner(host),)) for host in ("one", "two")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(claimed) == sorted(runs_of)
    assert all(len(runners_of) == 1 for runners_of in claimed.values())
    with queue.database.read() as session:
        rows = list(session.scalars(select(RunRow)))
        assert {(row.state, row.attempt, row.fence) for row in rows} == {("finished", 1, 1)}
        assert len(list(session.scalars(select(AttemptRow)))) == count
        assert verify(session) == (count, None)
