"""A seccomp filter as BPF bytes, assembled here so that no compiler and no library is needed.

A deny-list of what lets code reach the kernel's rarely used parts or other processes, and a ceiling: calls newer than
this file answer ENOSYS, so that a newer kernel opens nothing. Numbers are those of Linux's syscall tables, the
selection follows what Docker's and systemd's default filters leave out. Pure: nothing here touches a process.
"""

from __future__ import annotations

import errno
import struct

# name: (x86_64, arm64); None where the architecture has no such call.
_DENIED: dict[str, tuple[int | None, int | None]] = {
    # Mounts and roots
    "mount": (165, 40),
    "umount2": (166, 39),
    "pivot_root": (155, 41),
    "chroot": (161, 51),
    "open_tree": (428, 428),
    "move_mount": (429, 429),
    "fsopen": (430, 430),
    "fsconfig": (431, 431),
    "fsmount": (432, 432),
    "fspick": (433, 433),
    "mount_setattr": (442, 442),
    "name_to_handle_at": (303, 264),
    "open_by_handle_at": (304, 265),
    "fanotify_init": (300, 262),
    "quotactl": (179, 60),
    "quotactl_fd": (443, 443),
    "sysfs": (139, None),
    "ustat": (136, None),
    # Other processes
    "ptrace": (101, 117),
    "process_vm_readv": (310, 270),
    "process_vm_writev": (311, 271),
    "process_madvise": (440, 440),
    "pidfd_getfd": (438, 438),
    "kcmp": (312, 272),
    "move_pages": (279, 239),
    "migrate_pages": (256, 238),
    # Namespaces
    "unshare": (272, 97),
    "setns": (308, 268),
    # Kernel facilities with a long record of holes, and those that outlive a process
    "keyctl": (250, 219),
    "add_key": (248, 217),
    "request_key": (249, 218),
    "bpf": (321, 280),
    "perf_event_open": (298, 241),
    "userfaultfd": (323, 282),
    "memfd_secret": (447, 447),
    "mbind": (237, 235),
    "set_mempolicy": (238, 237),
    "set_mempolicy_home_node": (450, 450),
    "modify_ldt": (154, None),
    "uselib": (134, None),
    "lookup_dcookie": (212, 18),
    "nfsservctl": (180, 42),
    # The machine
    "kexec_load": (246, 104),
    "kexec_file_load": (320, 294),
    "init_module": (175, 105),
    "finit_module": (313, 273),
    "delete_module": (176, 106),
    "reboot": (169, 142),
    "swapon": (167, 224),
    "swapoff": (168, 225),
    "acct": (163, 89),
    "syslog": (103, 116),
    "settimeofday": (164, 170),
    "clock_settime": (227, 112),
    "clock_adjtime": (305, 266),
    "adjtimex": (159, 171),
    "sethostname": (170, 161),
    "setdomainname": (171, 162),
    "vhangup": (153, 58),
    "iopl": (172, None),
    "ioperm": (173, None),
}
# What a run of the training service may do where a sandbox may not: make sandboxes of its own, which takes mounts and
# namespaces, and to its own processes what debuggers, NUMA and the drivers of GPUs do.
_OF_RUNS = (
    *("mount", "umount2", "pivot_root", "chroot", "open_tree", "move_mount", "fsopen", "fsconfig", "fsmount", "fspick"),
    *("mount_setattr", "unshare", "setns", "sethostname", "setdomainname", "ptrace", "process_vm_readv"),
    *("process_vm_writev", "process_madvise", "pidfd_getfd", "kcmp", "move_pages", "migrate_pages", "mbind"),
    *("set_mempolicy", "set_mempolicy_home_node"),
)
# Programs try these first and fall back on ENOSYS. clone3 hides its flags in
# memory, where a filter cannot look; io_uring does what the filter forbids on behalf of the caller.
# Contexts of io_setup come out of a number that the whole machine shares.
_ABSENT: dict[str, tuple[int | None, int | None]] = {
    "clone3": (435, 435),
    "io_setup": (206, 0),
    "io_uring_setup": (425, 425),
    "io_uring_enter": (426, 426),
    "io_uring_register": (427, 427),
}
# Done without being done: all that can be written is in memory, and the rest would write out the host's disks.
_WITHOUT_EFFECT: dict[str, tuple[int | None, int | None]] = {"sync": (162, 81), "syncfs": (306, 267)}
# What holds up others that open a shared file (leases), watches them (F_NOTIFY), or enlarges a pipe of the host's.
_FCNTL, _FCNTL_REQUESTS = (72, 25), (1024, 1026, 1031)
# Huge pages come out of a number that the whole machine shares: (numbers, which argument has the flags, the flag).
_HUGE_PAGES = (((9, 222), 3, 0x40000), ((319, 279), 1, 0x4), ((29, 194), 2, 0o4000))  # mmap, memfd_create, shmget
_CLONE, _SOCKET, _IOCTL, _PERSONALITY = (56, 220), (41, 198), (16, 29), (135, 92)
NEWEST = 462  # mseal, Linux 6.10; both architectures number new calls alike

_ARCHITECTURES = {"x86_64": (0, 0xC000003E), "aarch64": (1, 0xC00000B7)}
_NEW_NAMESPACES = 0x7E020000  # CLONE_NEW{NS,CGROUP,UTS,IPC,USER,PID,NET}
_FAMILIES = (1, 2, 10)  # unix, inet, inet6; not vsock, which reaches past a network namespace, nor af_alg, packet, ...
_NETLINK = 16
_TTY_REQUESTS = (0x5412, 0x541C, 0x5423)  # TIOCSTI, TIOCLINUX, TIOCSETD: type into, or take over, a user's terminal
_PERSONALITIES = (0, 0x20000, 0xFFFFFFFF)  # the default, with UNAME26, and "which is it"

_LOAD, _EQUAL, _GREATER, _AT_LEAST, _ANY_BIT, _RETURN = 0x20, 0x15, 0x25, 0x35, 0x45, 0x06
_ALLOW, _KILL, _ERRNO = 0x7FFF0000, 0x80000000, 0x00050000
_NUMBER, _ARCHITECTURE = 0, 4
_X32 = 0x40000000


def filter_for(machine: str, *, run: bool = False) -> bytes | None:
    """The filter for `os.uname().machine` as an array of `struct sock_filter`, or None for an unknown architecture.

    That of a `run` leaves it what sandboxes of its own need (`_OF_RUNS`) and huge pages.
    """
    if machine not in _ARCHITECTURES:
        return None
    column, audit = _ARCHITECTURES[machine]
    code = [_load(_ARCHITECTURE), _jump(_EQUAL, audit, 1, 0), _return(_KILL), _load(_NUMBER)]
    code += _when(_AT_LEAST, _X32, _refuse(errno.EPERM)) + _when(_GREATER, NEWEST, _refuse(errno.ENOSYS))
    for answered, reason in ((_DENIED, errno.EPERM), (_ABSENT, errno.ENOSYS), (_WITHOUT_EFFECT, 0)):
        for name, numbers in answered.items():
            number = numbers[column]
            if number is not None and not (run and name in _OF_RUNS):
                code += _when(_EQUAL, number, _refuse(reason))
    for numbers, argument, flag in () if run else _HUGE_PAGES:
        huge = [_load(_argument(argument)), *_when(_ANY_BIT, flag, _refuse(errno.ENOMEM)), _return(_ALLOW)]
        code += _when(_EQUAL, numbers[column], huge)
    fcntl = [_load(_argument(1))]
    for request in _FCNTL_REQUESTS:
        fcntl += _when(_EQUAL, request, _refuse(errno.EPERM))
    code += _when(_EQUAL, _FCNTL[column], [*fcntl, _return(_ALLOW)])
    clone = [_load(_argument(0)), *_when(_ANY_BIT, _NEW_NAMESPACES, _refuse(errno.EPERM)), _return(_ALLOW)]
    ioctl = [_load(_argument(1))]
    for request in _TTY_REQUESTS:
        ioctl += _when(_EQUAL, request, _refuse(errno.EPERM))
    ioctl.append(_return(_ALLOW))
    personality = [_load(_argument(0))]
    for value in _PERSONALITIES:
        personality += _when(_EQUAL, value, [_return(_ALLOW)])
    personality += _refuse(errno.EPERM)
    socket = [_load(_argument(0))]
    for family in _FAMILIES:
        socket += _when(_EQUAL, family, [_return(_ALLOW)])
    route = [_load(_argument(2)), *_when(_EQUAL, 0, [_return(_ALLOW)])]  # NETLINK_ROUTE: listing interfaces
    socket += _when(_EQUAL, _NETLINK, route) + _refuse(errno.EAFNOSUPPORT)
    bodies = [(_IOCTL, ioctl), (_PERSONALITY, personality), (_SOCKET, socket), *([] if run else [(_CLONE, clone)])]
    for numbers, body in bodies:
        code += _when(_EQUAL, numbers[column], body)
    code.append(_return(_ALLOW))
    return b"".join(code)


def _instruction(code: int, yes: int, no: int, value: int) -> bytes:
    return struct.pack("=HBBI", code, yes, no, value)


def _load(offset: int) -> bytes:
    return _instruction(_LOAD, 0, 0, offset)


def _argument(index: int) -> int:
    """Offset of the low half of an argument in `struct seccomp_data`; both architectures are little-endian."""
    return 16 + 8 * index


def _jump(test: int, value: int, yes: int, no: int) -> bytes:
    return _instruction(test, yes, no, value)


def _return(action: int) -> bytes:
    return _instruction(_RETURN, 0, 0, action)


def _refuse(reason: int) -> list[bytes]:
    return [_return(_ERRNO | reason)]


def _when(test: int, value: int, body: list[bytes]) -> list[bytes]:
    """Run `body` where the test holds, else step over it."""
    return [_jump(test, value, 0, len(body)), *body]
