"""The launcher that execs bubblewrap: sets the sandbox's user and mounts what bubblewrap cannot.

It creates a user and mount namespace (`unshare`), in which a tmpfs with a limited number of files is mounted at
`DISK` and a devpts with a limited number of terminals at `TERMINALS`; bubblewrap shows both. Where sandboxes share this
process's user id, the namespace gets a share of what the kernel counts per user.
"""

from __future__ import annotations

import functools
import os
import shutil
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path

from whet.sandboxes.bubblewrap.program import open_to_all
from whet.sandboxes.bubblewrap.users import LAST_RESORT, SandboxUser, Users, current
from whet.system.children import output_of

DISK, TERMINALS = "/sys", "/dev/pts"  # folders that every Linux has and bubblewrap takes nothing else from
MOST_TERMINALS = 32  # the kernel has 3,072 for all containers together
SHARE = 128  # no sandbox gets more than this part of what its user may have, where that user is not its own
_COUNTED = {"max_inotify_instances": "max_user_instances", "max_inotify_watches": "max_user_watches"}
# PATH may name folders that the sandbox's user may not enter.
_SYSTEM = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_MOUNTS = f"""
PATH="{_SYSTEM}:$PATH"
mount -t tmpfs -o "$1" whet {DISK} && mkdir -m 1777 {DISK}/tmp {DISK}/shm &&
mount -t devpts -o "ptmxmode=0666,max={MOST_TERMINALS}" whet {TERMINALS} || exit 1
shift
"""
_MAPPED = 1  # the sandbox's user, as seen in the namespace that newuidmap has mapped it into


@dataclass(frozen=True, slots=True)
class Launcher:
    """The programs, where they are there; what is None is done without."""

    unshare: str | None
    setpriv: str | None
    users: Users | None

    @property
    def mounts(self) -> bool:
        """Whether files and terminals are limited."""
        return self.unshare is not None

    @property
    def share(self) -> int:
        """One part in so many is what a sandbox gets of what the kernel counts for this process's own user."""
        return 1 if self.users is not None and not self.users.mapped else SHARE

    @property
    def changes_user(self) -> bool:
        """Whether sandboxes run as another user than this process."""
        return self.users is not None or os.geteuid() == 0

    def claim(self, shown: Iterable[str] = ()) -> SandboxUser | None:
        """A user for one sandbox; None leaves this process's own. Root never stays itself.

        Folders in `shown` that only this process's user may enter, such as one in a home, another could not show.
        """
        reachable = self.users is not None and (not self.users.mapped or all(map(open_to_all, shown)))
        user = self.users.claim() if self.users is not None and reachable else None
        return SandboxUser(LAST_RESORT, LAST_RESORT) if user is None and os.geteuid() == 0 else user

    def ways(self) -> list[Launcher]:
        """This, then what isolates less: newuidmap may refuse, a home may hide Python, `unshare` may be forbidden."""
        own = None if self.users is None or self.users.mapped else self.users
        return list(dict.fromkeys((self, replace(self, users=own), Launcher(None, self.setpriv, own))))

    def shared(self) -> list[str]:
        """What sandboxes share here that they need not, each with what to do."""
        said = []
        if self.users is None:
            said.append(
                "share one user id, so that one of them can use up what the kernel counts per user (pipe pages, "
                "descriptors in flight, epoll watches) for all of them and for you: run whet as root, or install "
                "newuidmap (package uidmap) and give yourself a range in /etc/subuid and /etc/subgid"
            )
        if not self.mounts:
            said.append(
                "have no limit on the number of files and terminals, because the program unshare (util-linux) is "
                "missing or may not make a user namespace"
            )
        return said

    def words(self, user: SandboxUser | None, size: int, files: int) -> list[str]:
        """What comes before bubblewrap's own words."""
        mapped = user is not None and user.held is not None and self.users is not None and self.users.mapped
        become: list[str] = []
        if user is not None and self.setpriv is not None:
            uid, gid = (_MAPPED, _MAPPED) if mapped else (user.uid, user.gid)
            become = [self.setpriv, f"--reuid={uid}", f"--regid={gid}", "--clear-groups", "--inh-caps=-all"]
        if self.unshare is None:
            return become
        options = f"size={size},nr_inodes={files},mode=0755"
        namespace = [self.unshare, "--user", "--map-root-user", "--mount", "--propagation", "private"]
        if mapped:
            assert user is not None
            namespace += [f"--map-users={user.uid},{_MAPPED},1", f"--map-groups={user.gid},{_MAPPED},1"]
            options += f",uid={_MAPPED},gid={_MAPPED}"
        own = user is not None and not mapped
        script = ("" if own else _shares()) + _MOUNTS + 'exec "$@"'
        prepare = [*namespace, "--", "/bin/sh", "-c", script, "sh", options]
        return [*prepare, *become] if mapped else [*become, *prepare]


def launcher() -> Launcher:
    """What this machine has."""
    unshare = _program("unshare")
    users = current()
    if users is not None and users.mapped and not (unshare and "--map-users" in _help(unshare)):
        users = None  # an older util-linux
    return Launcher(unshare, _program("setpriv"), users)


def _program(name: str) -> str | None:
    return shutil.which(name, path=_SYSTEM) or shutil.which(name)


def _help(program: str) -> str:
    return output_of([program, "--help"], 30.0) or ""


@functools.cache
def _shares() -> str:
    """Shell commands that give the new namespace its share of what the kernel counts per user."""
    commands = ""
    for name, limit in _COUNTED.items():
        try:
            most = int(Path("/proc/sys/fs/inotify", limit).read_text())
        except (OSError, ValueError):  # a kernel without inotify
            continue
        commands += f"echo {max(1, most // SHARE)} > /proc/sys/user/{name} || exit 1\n"
    return commands
