"""A user id of its own for each sandbox, where this process may have processes of other users.

The kernel counts the pages of pipes, descriptors in flight, epoll watches, inotify instances, message queues and
pending signals per user id: of sandboxes that share one, each can use up what all the others need. As root, ids come
from a range that no account has. As another user they come from the ranges in /etc/subuid and /etc/subgid, which the
programs newuidmap and newgidmap map. An id in use is held by a name in the abstract socket namespace, which the
kernel frees with the process that holds it; so two processes of a machine do not take the same one.
"""

from __future__ import annotations

import contextlib
import os
import pwd
import random
import shutil
import socket
from dataclasses import dataclass
from pathlib import Path

FIRST, COUNT = 1_879_048_192, 1 << 20  # above the ids that systemd gives to containers; no distribution uses them
LAST_RESORT = 65533  # not 65534, which other programs run as
SYSTEM = 60_000  # accounts of people end here; used where a container has 65,536 ids and no more
TRIES = 64


@dataclass(frozen=True, slots=True)
class Users:
    """Where the ids of sandboxes come from."""

    uids: int  # the first one, as the machine counts
    gids: int
    count: int
    mapped: bool  # by newuidmap into a namespace of this user's, rather than taken as root

    def claim(self, seed: random.Random | None = None) -> SandboxUser | None:
        """An id that no other sandbox has. None where none is free."""
        pick = seed or random.SystemRandom()
        for _ in range(TRIES):
            offset = pick.randrange(self.count)
            held = _hold(self.uids + offset)
            if held is not None:
                return SandboxUser(self.uids + offset, self.gids + offset, held)
        return None


@dataclass(frozen=True, slots=True)
class SandboxUser:
    """A user and group id, until it is released."""

    uid: int
    gid: int
    held: socket.socket | None = None

    def release(self) -> None:
        if self.held is not None:
            self.held.close()


def of_root(root: Path = Path("/")) -> Users | None:
    """For a process that is root: ids that this process may take. None where it has next to none besides its own."""
    mapped = _last_mapped(root / "proc/self/uid_map"), _last_mapped(root / "proc/self/gid_map")
    last = min(mapped)
    if last >= FIRST + COUNT:
        return Users(FIRST, FIRST, COUNT, mapped=False)
    if last < LAST_RESORT:
        return None
    last = min(last, LAST_RESORT)  # a container with a range of its own: ids above those of people
    taken = [account.pw_uid for account in pwd.getpwall() if SYSTEM < account.pw_uid < last]
    first = max([SYSTEM, *taken]) + 1
    return Users(first, first, last - first, mapped=False) if first < last else None


def of_ranges(user: int, root: Path = Path("/")) -> Users | None:
    """For another user: what /etc/subuid and /etc/subgid give them, where newuidmap can map it."""
    if not (shutil.which("newuidmap") and shutil.which("newgidmap")):
        return None
    names = {str(user)}
    with contextlib.suppress(KeyError):  # a user without an account
        names.add(pwd.getpwuid(user).pw_name)
    uids, gids = (_granted(root / "etc" / file, names) for file in ("subuid", "subgid"))
    if uids is None or gids is None:
        return None
    return Users(uids[0], gids[0], min(uids[1], gids[1]), mapped=True)


def _hold(uid: int) -> socket.socket | None:
    held = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    try:
        held.bind(f"\0whet-sandbox-user-{uid}")
    except OSError:  # in use by a sandbox of this process or of another
        held.close()
        return None
    return held


def _last_mapped(file: Path) -> int:
    """The highest id that exists in this process's user namespace."""
    try:
        lines = [list(map(int, line.split())) for line in file.read_text().splitlines()]
    except OSError:
        return -1
    return max((first + count - 1 for first, _, count in lines), default=-1)


def _granted(file: Path, names: set[str]) -> tuple[int, int] | None:
    """(first, count) of the first range that a user has in such a file."""
    try:
        lines = [line.strip().split(":") for line in file.read_text().splitlines()]
    except OSError:
        return None
    for name, *numbers in (line for line in lines if len(line) == 3):
        if name in names and all(number.isdigit() for number in numbers) and int(numbers[1]) > 0:
            return int(numbers[0]), int(numbers[1])
    return None


def current() -> Users | None:
    """Where this process's sandboxes get users from; None where all have its own."""
    return of_root() if os.geteuid() == 0 else of_ranges(os.getuid())
