"""Which run is next, and which waits for another."""

from __future__ import annotations

import random
from collections import Counter

from whet.service.domain.fairness import (
    HALF_LIFE_S,
    PATIENCE_S,
    Amount,
    Prices,
    RunnerCapacity,
    Share,
    Waiting,
    decayed,
    in_order,
    next_run,
)

NOW = 1_000_000.0


def waiting(run: str, owner: str, age: float = 0.0, priority: int = 0, cores: float = 1, user: str = "") -> Waiting:
    return Waiting(run, owner, priority, NOW - age, Amount(cores=cores), user)


def place(runner: str, capacity: float, free: float) -> RunnerCapacity:
    return RunnerCapacity(runner, Amount(cores=capacity), Amount(cores=free))


def order(queue: list[Waiting], **shares: Share) -> list[str]:
    return [one.run for one in in_order(queue, shares)]


def test_owner_with_one_run_is_next_although_another_has_a_hundred_before() -> None:
    queue = [waiting(f"a{number}", "a", age=1000 - number) for number in range(100)]
    queue.append(waiting("b", "b"))
    assert order(queue, a=Share(used=5.0, running=2))[0] == "b"
    assert order(queue, a=Share(running=1))[0] == "b"
    assert order(queue)[:3] == ["b", "a0", "a1"]  # also where nothing ran yet


def test_least_usage_then_fewest_runs_then_fewest_in_the_queue_then_age_decide_between_owners() -> None:
    queue = [waiting("a", "a", age=9), waiting("b", "b", age=5), waiting("c", "c", age=7)]
    assert order(queue, a=Share(3.0), b=Share(1.0), c=Share(2.0)) == ["b", "c", "a"]
    assert order(queue, a=Share(1.0, 3), b=Share(1.0, 1), c=Share(1.0, 2)) == ["b", "c", "a"]
    assert order(queue) == ["a", "c", "b"]
    assert order([*queue, waiting("a2", "a", age=8)]) == ["c", "b", "a", "a2"]


def test_priority_then_age_decide_within_an_owner_and_not_between_owners() -> None:
    queue = [waiting("old", "a", age=9), waiting("urgent", "a", priority=5), waiting("b", "b", age=1)]
    assert order(queue, a=Share(10.0)) == ["b", "urgent", "old"]


def test_priority_decides_between_users_of_an_owner() -> None:
    queue = [waiting("old", "lab", age=9, user="a"), waiting("urgent", "lab", age=1, priority=5, user="b")]
    queue.append(waiting("c", "c", age=5))
    assert order(queue, lab=Share(10.0)) == ["c", "urgent", "old"]


def test_user_with_thirty_organisations_takes_one_turn() -> None:
    queue = [waiting(f"a{number}", f"org-{number}", age=100 - number, user="a") for number in range(30)]
    queue += [waiting(f"b{number}", "b", age=50 - number) for number in range(10)]
    turns = order(queue)
    assert Counter(run[0] for run in turns[:20]) == {"a": 10, "b": 10}
    assert turns[0] == "b0"  # fewer in the queue
    assert order(queue, **{"@a": Share(1000.0)})[:10] == [f"b{number}" for number in range(10)]
    assert order(queue, a=Share(1000.0))[:10] == [f"b{number}" for number in range(10)]


def test_organisation_of_thirty_users_takes_one_turn() -> None:
    queue = [waiting(f"a{number}", "lab", age=100 - number, user=f"user-{number}") for number in range(30)]
    queue += [waiting(f"b{number}", "b", age=50 - number) for number in range(10)]
    assert Counter(run[0] for run in order(queue)[:20]) == {"a": 10, "b": 10}


def test_owners_take_turns_by_what_their_runs_need() -> None:
    queue = [waiting(f"a{number}", "a", age=100 - number, cores=4) for number in range(10)]
    queue += [waiting(f"b{number}", "b", age=50 - number) for number in range(40)]
    first = Counter(run[0] for run in order(queue)[:25])
    assert first == {"a": 5, "b": 20}  # a's runs need four times as much


def test_usage_halves_in_a_day_and_a_clock_that_went_back_changes_nothing() -> None:
    assert decayed(8.0, NOW, NOW) == 8.0
    assert decayed(8.0, NOW, NOW + HALF_LIFE_S) == 4.0
    assert decayed(8.0, NOW, NOW - 3600) == 8.0


def test_device_counts_as_many_cores_as_its_price_is_that_of() -> None:
    needs = Amount(cores=2, devices=1)
    assert Prices(core_hour=0.1, device_hour=2.0).share(needs, 10) == 220.0
    assert Prices(core_hour=0.1, device_hour=2.0).cost(needs, 3600) == 2.2
    assert Prices().cost(needs, 3600) == 0.0
    assert Prices().share(needs, 10) > 10 * 2


def test_run_that_fits_nowhere_does_not_block_others_until_it_waited_an_hour() -> None:
    places = [place("r", 8, 2)]
    big, small = waiting("big", "a", age=PATIENCE_S - 1, cores=8), waiting("small", "b")
    assert next_run([big, small], places, "r", NOW) == "small"
    big = waiting("big", "a", age=PATIENCE_S, cores=8)
    assert next_run([big, small], places, "r", NOW) is None
    assert next_run([small, big], places, "r", NOW) == "small"  # which comes before it
    assert next_run([big, small], [place("r", 8, 8)], "r", NOW) == "big"


def test_capacity_is_kept_on_one_runner_that_could_hold_the_run() -> None:
    places = [place("busy", 8, 1), place("emptier", 8, 4), place("little", 2, 2)]
    big, small = waiting("big", "a", age=PATIENCE_S, cores=8), waiting("small", "b")
    assert next_run([big, small], places, "emptier", NOW) is None
    assert next_run([big, small], places, "busy", NOW) == "small"
    assert next_run([big, small], places, "little", NOW) == "small"


def test_run_larger_than_every_runner_keeps_nothing() -> None:
    places = [place("r", 8, 2)]
    huge, small = waiting("huge", "a", age=10 * PATIENCE_S, cores=64), waiting("small", "b")
    assert next_run([huge, small], places, "r", NOW) == "small"


def test_run_that_fits_on_another_free_runner_keeps_nothing_here() -> None:
    places = [place("r", 8, 2), place("free", 8, 8)]
    big, small = waiting("big", "a", age=PATIENCE_S, cores=8), waiting("small", "b")
    assert next_run([big, small], places, "r", NOW) == "small"


def test_runner_that_is_not_alive_takes_nothing() -> None:
    assert next_run([waiting("a", "a")], [place("r", 8, 8)], "other", NOW) is None


def test_big_run_starts_among_small_ones_that_never_end_coming() -> None:
    rng = random.Random(11)
    now, usage = NOW, {"big": 0.0, "small": 0.0}
    running = [(now + 10.0 * number, "small", 1.0) for number in range(8)]  # until when, owner, cores
    queue = [Waiting("big", "big", 0, now, Amount(cores=8))]
    for _ in range(2000):
        while sum(one.owner == "small" for one in queue) < 5:
            queue.append(Waiting(f"s{now}{len(queue)}", "small", 0, now, Amount(cores=1)))
        ended = [one for one in running if one[0] <= now]
        running = [one for one in running if one[0] > now]
        for _, owner, cores in ended:
            usage[owner] += cores * 300
        while True:
            taken = [Amount(cores=cores) for _, _, cores in running]
            assert sum(one.cores for one in taken) <= 8
            here = RunnerCapacity("r", Amount(cores=8), Amount(cores=8).less(taken))
            counts = Counter(owner for _, owner, _ in running)
            shares = {owner: Share(used, counts[owner]) for owner, used in usage.items()}
            chosen = next_run(in_order(queue, shares), [here], "r", now)
            if chosen == "big":
                assert now - NOW >= PATIENCE_S
                return
            if chosen is None:
                break
            one = next(one for one in queue if one.run == chosen)
            queue.remove(one)
            running.append((now + rng.choice([200, 300, 400]), one.owner, one.needs.cores))
        now += 10
    raise AssertionError("the big run did not start in 2000 rounds")
