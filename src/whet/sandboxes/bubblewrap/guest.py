"""Process 1 of a bubblewrap sandbox: starts commands on request, reaps processes, and kills commands on request.

Runs *inside*, alone, on any Python 3.9 or newer: it imports nothing of whet and as little as it can of the standard
library, because a sandbox starts in the time that this file takes to start. The code it runs shares its user but
cannot end it (the kernel shields process 1 of a namespace) nor look into it (it is not dumpable). It trusts what the
host sends, and the host reads from it only a few words.

Host to guest, one packet each, fields joined by NUL: `run id cwd limits count-of-env env... argv...` with the
command's stdin, stdout and stderr as file descriptors, or `kill id`. Guest to host: `listener` with a socket where the
sandbox has a network, then `ready`; `exit id status`, `full id`. Each command gets a supervisor, a fork of this process
that adopts whatever the command leaves behind, so that all of it can be found again.
"""

import _signal as signal  # type: ignore[import-not-found]  # without the enums that take longer than all the rest
import _socket
import ctypes
import os
import resource
import select
import sys

PR_SET_DUMPABLE, PR_SET_CHILD_SUBREAPER = 4, 36
PACKET = 1 << 18
ROUNDS = 200
LIMITS = ("CPU", "FSIZE", "NPROC", "DATA", "NOFILE", "SIGPENDING", "MSGQUEUE", "MEMLOCK")


def main() -> None:
    channel = _socket.socket(fileno=int(sys.argv[1]))
    os.set_inheritable(channel.fileno(), False)
    _prctl(PR_SET_DUMPABLE, 0)
    for fd in map(int, os.listdir("/proc/self/fd")):  # what bubblewrap was started with is not for commands
        if fd > 2 and fd != channel.fileno():
            _close(fd)
    if len(sys.argv) > 2:
        _hand_over_listener(channel, int(sys.argv[2]))
    supervisors: dict[bytes, int] = {}  # id: pid

    def reap() -> None:
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            name = next((name for name, known in supervisors.items() if known == pid), None)
            if name is not None:
                del supervisors[name]
                if status != 0:  # it was killed: what it watched is now ours
                    for stray in _children(os.getpid()) - set(supervisors.values()):
                        _kill_tree(stray, itself=True)
                    channel.send(b"exit %s %d" % (name, -signal.SIGKILL))

    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the one signal that Python handles, so the kernel would deliver it
    # A handler that worked on `supervisors` would run between any two lines below; this one only wakes the loop.
    ended, waker = os.pipe()
    os.set_blocking(ended, False)
    os.set_blocking(waker, False)
    signal.set_wakeup_fd(waker, warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    channel.send(b"ready")
    while True:
        readable = select.select((channel.fileno(), ended), (), ())[0]
        if ended in readable:
            os.read(ended, PACKET)
            reap()
        if channel.fileno() not in readable:
            continue
        packet, ancillary, _, _ = channel.recvmsg(PACKET, _socket.CMSG_SPACE(12))
        if not packet:
            return
        fds = [fd for _, _, data in ancillary for fd in memoryview(data).cast("i")]
        verb, name, *fields = packet.split(b"\0")
        if verb == b"kill":
            if name in supervisors:
                _kill_tree(supervisors[name])
                # It may not have forked the command yet, or the command may have stopped it: `reap` kills what is left.
                _send(supervisors[name], signal.SIGKILL)
            continue
        try:
            pid = os.fork()
        except OSError:
            channel.send(b"full %s" % name)
        else:
            if pid == 0:
                _supervise(channel, name, fields, fds)
            supervisors[name] = pid
        for fd in fds:
            os.close(fd)


def _hand_over_listener(channel: _socket.socket, port: int) -> None:
    """The host serves this socket from outside; a socket stays in the network namespace in which it was made."""
    listener = _socket.socket(_socket.AF_INET, _socket.SOCK_STREAM)
    listener.bind(("127.0.0.1", port))
    listener.listen(128)
    descriptor = listener.fileno().to_bytes(4, sys.byteorder)
    channel.sendmsg([b"listener"], [(_socket.SOL_SOCKET, _socket.SCM_RIGHTS, descriptor)])
    listener.close()


def _supervise(channel: _socket.socket, name: bytes, fields: list[bytes], fds: list[int]) -> None:
    """Start the command, report its end, and stay until everything it started has ended."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    _prctl(PR_SET_CHILD_SUBREAPER, 1)
    try:
        command = os.fork()
    except OSError:
        channel.send(b"full %s" % name)
        os._exit(0)
    if command == 0:
        channel.close()
        _run(fields, fds)
    for fd in fds:
        os.close(fd)
    while True:
        try:
            pid, status = os.wait()
        except ChildProcessError:
            os._exit(0)
        if pid == command:
            channel.send(b"exit %s %d" % (name, os.waitstatus_to_exitcode(status)))


def _run(fields: list[bytes], fds: list[int]) -> None:
    """Become the command."""
    cwd, limits, count, *rest = fields
    env = dict(item.split(b"=", 1) for item in rest[: int(count)])
    argv = rest[int(count) :]
    for number in range(1, signal.NSIG):
        if number not in (signal.SIGKILL, signal.SIGSTOP, 32, 33):
            signal.signal(number, signal.SIG_DFL)  # Python ignores some, and a program inherits that
    os.setsid()
    for target, fd in enumerate(fds):
        os.dup2(fd, target)
        os.close(fd)
    try:
        _prctl(PR_SET_DUMPABLE, 1)  # or /proc/self belongs to root; the channel is closed by now
        with open("/proc/self/oom_score_adj", "w") as file:
            file.write("1000")  # the command goes before process 1 when memory runs out
        for index, kind in enumerate(LIMITS):
            value = int(limits.split(b",")[index])
            if value >= 0:
                _limit(getattr(resource, "RLIMIT_" + kind), value, 1 if kind == "CPU" else 0)
        resource.setrlimit(resource.RLIMIT_CORE, (1, 1))  # with 0, a program of the host's would still be given a crash
        os.chdir(cwd)
        os.execvpe(argv[0], argv, env)
    except OSError as error:
        os.write(2, b"%s: %s\n" % (argv[0], os.strerror(error.errno or 0).encode()))
        os._exit(127)


def _limit(kind: int, value: int, margin: int) -> None:
    """The hard limit is above the soft one for processor time, so that SIGXCPU comes first and names the limit."""
    hard = resource.getrlimit(kind)[1]
    if hard != resource.RLIM_INFINITY:
        value, margin = min(value, hard), min(margin, max(0, hard - value))
    resource.setrlimit(kind, (value, value + margin))


def _children(parent: int) -> set[int]:
    return {pid for pid, (known, state) in _processes().items() if known == parent and state != b"Z"}


def _processes() -> dict[int, tuple[int, bytes]]:
    """pid: (parent, state), of everything in here."""
    processes: dict[int, tuple[int, bytes]] = {}
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            try:
                with open(f"/proc/{entry}/stat", "rb") as file:
                    state, parent = file.read().rpartition(b")")[2].split()[:2]
            except OSError:
                continue
            processes[int(entry)] = (int(parent), state)
    return processes


def _descendants(root: int) -> set[int]:
    processes = _processes()
    descendants: set[int] = set()
    layer = {root}
    while layer:
        layer = {pid for pid, (parent, _) in processes.items() if parent in layer} - descendants
        descendants |= layer
    return {pid for pid in descendants if processes[pid][1] != b"Z"}


def _kill_tree(root: int, itself: bool = False) -> None:
    """Stop everything first, so that nothing forks while it is being killed."""
    for _ in range(ROUNDS):
        stopped: set[int] = set()
        while True:
            new = (_descendants(root) | ({root} if itself else set())) - stopped
            if not new:
                break
            for pid in new:
                _send(pid, signal.SIGSTOP)
            stopped |= new
        for pid in stopped:
            _send(pid, signal.SIGKILL)
        if not stopped or itself:
            return


def _close(fd: int) -> None:
    """Unless it is closed already, as that of the listing itself is."""
    try:
        os.close(fd)
    except OSError:
        return


def _send(pid: int, number: int) -> None:
    """It may have ended meanwhile."""
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return


def _prctl(option: int, value: int) -> None:
    if ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl")


if __name__ == "__main__":
    main()
