"""What fits where."""

from __future__ import annotations

import random

from whet.service.domain.fairness import GIB, Amount

MACHINE = Amount(cores=8, memory=32 * GIB, devices=2, device_memory=80 * GIB)


def test_runner_holds_what_each_of_its_amounts_covers() -> None:
    assert MACHINE.holds(MACHINE)
    assert MACHINE.holds(Amount())
    assert not MACHINE.holds(Amount(cores=8.5))
    assert not MACHINE.holds(Amount(memory=33 * GIB))
    assert not MACHINE.holds(Amount(devices=3))
    assert not MACHINE.holds(Amount(devices=1, device_memory=81 * GIB))
    assert MACHINE.holds(Amount(device_memory=81 * GIB))  # no device, so nothing of one


def test_devices_are_not_shared() -> None:
    free = MACHINE.less([Amount(devices=1, device_memory=GIB)])
    assert free.holds(Amount(devices=1, device_memory=80 * GIB))
    assert not free.less([Amount(devices=1)]).holds(Amount(devices=1, device_memory=GIB))


def test_what_is_missing_is_said() -> None:
    assert MACHINE.short_of(MACHINE) == ""
    assert MACHINE.short_of(Amount(cores=9, memory=64 * GIB)) == (
        "9 cores (there are 8), 64.0 GiB of memory (there are 32.0)"
    )
    assert MACHINE.short_of(Amount(devices=4)) == "4 devices (there are 2)"
    assert "on a device" in MACHINE.short_of(Amount(devices=1, device_memory=100 * GIB))


def test_amounts_of_a_row_may_be_absent() -> None:
    assert Amount.of({}) == Amount()
    assert Amount.of({"cores": 2, "memory": None, "devices": 1}) == Amount(cores=2.0, devices=1)


def test_starting_only_what_is_held_never_exceeds_the_capacity() -> None:
    rng = random.Random(3)
    for _ in range(200):
        taken: list[Amount] = []
        for _ in range(30):
            needs = Amount(rng.choice([0.5, 1, 3]), rng.randrange(0, 9) * GIB, rng.randrange(0, 2), GIB)
            if MACHINE.less(taken).holds(needs):
                taken.append(needs)
        free = MACHINE.less(taken)
        assert min(free.cores, free.memory, free.devices) >= 0
        assert taken
