"""The filter, run by a small interpreter of its instructions: what the kernel would answer for a call."""

from __future__ import annotations

import errno
import struct

import pytest

from whet.sandboxes.bubblewrap.seccomp import filter_for

ALLOW, KILL, ERRNO = 0x7FFF0000, 0x80000000, 0x00050000
AUDIT = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}


def answer(machine: str, number: int, *arguments: int, audit: int | None = None, run: bool = False) -> int:
    code = filter_for(machine, run=run)
    assert code is not None
    padded = [*arguments, *[0] * (6 - len(arguments))]
    data = struct.pack("=IIQ6Q", number, AUDIT[machine] if audit is None else audit, 0, *padded)
    program = list(struct.iter_unpack("=HBBI", code))
    position = accumulator = 0
    while True:
        operation, yes, no, value = program[position]
        position += 1
        if operation == 0x20:
            accumulator = struct.unpack_from("=I", data, value)[0]
        elif operation == 0x06:
            return int(value)
        else:
            tests = {0x15: accumulator == value, 0x25: accumulator > value, 0x35: accumulator >= value}
            tests[0x45] = bool(accumulator & value)
            position += yes if tests[operation] else no


@pytest.mark.parametrize(("machine", "read", "mount", "ptrace"), [("x86_64", 0, 165, 101), ("aarch64", 63, 40, 117)])
def test_ordinary_calls_pass_and_dangerous_ones_do_not(machine: str, read: int, mount: int, ptrace: int) -> None:
    assert answer(machine, read) == ALLOW
    assert answer(machine, mount) == answer(machine, ptrace) == ERRNO | errno.EPERM


def test_a_call_from_another_architecture_kills() -> None:
    assert answer("x86_64", 0, audit=0x40000003) == KILL


def test_calls_newer_than_the_filter_do_not_exist() -> None:
    assert answer("x86_64", 463) == ERRNO | errno.ENOSYS
    assert answer("x86_64", 0x40000000) == ERRNO | errno.EPERM


def test_a_clone_may_make_threads_and_processes_but_no_namespaces() -> None:
    assert answer("x86_64", 56, 0x3D0F00) == answer("x86_64", 56, 0x01200011) == ALLOW
    for namespace in (0x20000, 0x2000000, 0x4000000, 0x8000000, 0x10000000, 0x20000000, 0x40000000):
        assert answer("x86_64", 56, namespace | 17) == ERRNO | errno.EPERM


def test_only_ordinary_sockets_can_be_opened() -> None:
    allowed = [family for family in range(64) if answer("x86_64", 41, family, 1, 0) == ALLOW]
    assert allowed == [1, 2, 10, 16]
    assert answer("x86_64", 41, 16, 3, 12) == ERRNO | errno.EAFNOSUPPORT


def test_nobody_types_into_a_terminal() -> None:
    assert answer("x86_64", 16, 0, 0x5412) == answer("x86_64", 16, 0, (1 << 32) | 0x5412) == ERRNO | errno.EPERM
    assert answer("x86_64", 16, 0, 0x5401) == ALLOW


@pytest.mark.parametrize(("machine", "mmap", "memfd", "shmget"), [("x86_64", 9, 319, 29), ("aarch64", 222, 279, 194)])
def test_huge_pages_of_the_machine_are_refused(machine: str, mmap: int, memfd: int, shmget: int) -> None:
    assert answer(machine, mmap, 0, 4096, 3, 0x22) == answer(machine, memfd, 0, 1) == answer(machine, shmget) == ALLOW
    refused = ERRNO | errno.ENOMEM
    assert answer(machine, mmap, 0, 4096, 3, 0x40022) == refused
    assert answer(machine, memfd, 0, 5) == refused
    assert answer(machine, shmget, 0, 4096, 0o4600) == refused


@pytest.mark.parametrize(("machine", "fcntl", "sync", "io_setup"), [("x86_64", 72, 162, 206), ("aarch64", 25, 81, 0)])
def test_what_the_machine_shares_is_out_of_reach(machine: str, fcntl: int, sync: int, io_setup: int) -> None:
    assert answer(machine, fcntl, 0, 3) == answer(machine, fcntl, 0, 1030) == ALLOW
    assert {answer(machine, fcntl, 0, request) for request in (1024, 1026, 1031)} == {ERRNO | errno.EPERM}
    assert answer(machine, io_setup) == ERRNO | errno.ENOSYS
    assert answer(machine, sync) == ERRNO, "done, without being done"


def test_a_run_may_make_sandboxes_and_reaches_no_more_of_the_kernel() -> None:
    mount, unshare, ptrace, mbind, clone = 165, 272, 101, 237, 56
    for number in (mount, unshare, ptrace, mbind):
        assert answer("x86_64", number, run=True) == ALLOW
    assert answer("x86_64", clone, 0x10000011, run=True) == answer("x86_64", 9, 0, 4096, 3, 0x40022, run=True) == ALLOW
    keyctl, bpf, perf, userfaultfd, module, clock = 250, 321, 298, 323, 175, 227
    for number in (keyctl, bpf, perf, userfaultfd, module, clock):
        assert answer("x86_64", number, run=True) == ERRNO | errno.EPERM
    assert [family for family in range(64) if answer("x86_64", 41, family, 1, 0, run=True) == ALLOW] == [1, 2, 10, 16]


def test_an_unknown_architecture_has_no_filter() -> None:
    assert filter_for("pdp11") is None
