"""Programs in one sandbox that try to use up, find or end what a second sandbox or the host needs.

Each `ATTACK` takes what it can, prints `held`, and holds it while its `PROBE` runs in a second sandbox, which has to
print `works`. Where the resource is counted per user, the probe beside the attack in the *same* sandbox fails: the
programs do what they say.
"""

from __future__ import annotations

import asyncio
import resource

import pytest

from whet.sandboxes.bubblewrap.backend import BubblewrapBackend
from whet.sandboxes.bubblewrap.command import OPEN_FILES
from whet.sandboxes.bubblewrap.host import host as machine
from whet.sandboxes.protocol import SandboxSpec

from .host import Host, contained

pytestmark = pytest.mark.usefixtures("bubblewrap")
SPEC = SandboxSpec(memory_bytes=512 << 20, disk_bytes=32 << 20, processes=32, timeout_s=60)
COMMON = """
import array, ctypes, errno, fcntl, os, resource, signal, socket, struct, sys, time
libc = ctypes.CDLL(None, use_errno=True)
def check(result):
    if result < 0: raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return result
def until_refused(take, most=1 << 20):
    kept = []
    try:
        for _ in range(most): kept.append(take())
    except OSError: pass
    return kept
def in_children(count, work):
    for _ in range(count):
        read, write = os.pipe()
        if os.fork() == 0:
            kept = work()
            os.write(write, b"x")
            signal.pause()
        os.read(read, 1); os.close(read); os.close(write)
def send_descriptor():
    pair = socket.socketpair()
    most = array.array("i", [0] * 250)
    pair[0].sendmsg([b"x"], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, most)])
    return pair
def queue_signal():
    return check(libc.sigqueue(os.getpid(), signal.SIGRTMIN, ctypes.c_void_p(0)))
def make_timer():
    timer = ctypes.c_void_p()
    event = (ctypes.c_int * 16)(0, 0, signal.SIGRTMIN, 0)
    return check(libc.timer_create(1, event, ctypes.byref(timer)))
def lock_memory(size):
    import mmap
    area = mmap.mmap(-1, size)
    check(libc.mlock(ctypes.c_void_p(ctypes.addressof(ctypes.c_char.from_buffer(area))), ctypes.c_size_t(size)))
    return area
numbers = iter(range(1 << 30))
def make_queue(room=10):
    wanted = (ctypes.c_long * 8)(0, room, 1024)
    return check(libc.mq_open(b"/q%d" % next(numbers), os.O_CREAT | os.O_RDWR, 0o600, wanted))
"""
# name: (attack, probe, whether the probe fails beside the attack in one sandbox)
PER_USER = {
    "inotify instances": (
        "kept = until_refused(lambda: check(libc.inotify_init()))",
        "check(libc.inotify_init())",
        True,
    ),
    "inotify watches": (
        """
watch = check(libc.inotify_init())
for folder, _, names in os.walk("/usr/share"):
    if libc.inotify_add_watch(watch, folder.encode(), 2) < 0: break
""",
        "check(libc.inotify_add_watch(check(libc.inotify_init()), b'/tmp', 2))",
        False,
    ),
    "message queues": ("kept = until_refused(make_queue, 250)", "make_queue(1)", False),
    "pending signals": (
        "signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGRTMIN]); until_refused(queue_signal)",
        "signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGRTMIN]); queue_signal()",
        True,
    ),
    "timers": ("until_refused(make_timer)", "make_timer()", True),
    "locked memory": ("kept = until_refused(lambda: lock_memory(65536), 1000)", "lock_memory(4096)", False),
    "processes": (
        "until_refused(lambda: os.fork() or time.sleep(1000))",
        "os._exit(0) if os.fork() == 0 else os.wait()",
        True,
    ),
}
PER_PERSON = {  # of what the kernel counts per user and nothing cuts down: a user of its own is what helps
    "descriptors in flight": ("kept = until_refused(send_descriptor)", "send_descriptor()", True),
    "pages of pipes": (
        "in_children(6, lambda: until_refused(os.pipe))",
        "assert fcntl.fcntl(os.pipe()[0], 1032) == 65536",
        True,
    ),
}
OF_THE_MACHINE = {
    "terminals": ("in_children(5, lambda: until_refused(os.openpty))", "os.openpty()", True),
    "contexts for asynchronous reading": (
        "context = ctypes.c_ulong(); kept = [libc.syscall(206, 60000, ctypes.byref(context)) for _ in range(4)]",
        "assert int(open('/proc/sys/fs/aio-nr').read()) < 60000",
        False,
    ),
    "open files": (
        "in_children(20, lambda: until_refused(lambda: os.open('/dev/null', 0)))",
        "open('/dev/null').read()",
        False,
    ),
    "memory": ("kept = until_refused(lambda: bytearray(1 << 20), 300)", "kept = bytearray(200 << 20)", False),
    "files": (
        "until_refused(lambda: os.close(os.open(f'/tmp/{next(numbers)}', os.O_CREAT)))",
        "open('/tmp/x', 'w')",
        True,
    ),
    "shared memory files": ("open('/dev/shm/name', 'w')", "assert not os.path.exists('/dev/shm/name')", True),
    "shared memory segments": (
        "check(libc.shmget(4711, 4096, 0o1600))",
        "assert libc.shmget(4711, 4096, 0) == -1",
        True,
    ),
    "semaphores": ("until_refused(lambda: check(libc.semget(0, 1, 0o600)))", "check(libc.semget(0, 1, 0o600))", True),
    "System V queues": ("until_refused(lambda: check(libc.msgget(0, 0o600)))", "check(libc.msgget(0, 0o600))", True),
    "an abstract address": (
        "held = socket.socket(socket.AF_UNIX); held.bind('\\\\0name'); held.listen()",
        "socket.socket(socket.AF_UNIX).bind('\\\\0name')",
        True,
    ),
    "a port": (
        "held = socket.create_server(('127.0.0.1', 8000))",
        "socket.create_server(('127.0.0.1', 8000))",
        True,
    ),
    "a file in home": ("open('/home/user/name', 'w')", "assert not os.path.exists('/home/user/name')", True),
}
PROGRAMS = {**PER_USER, **PER_PERSON, **OF_THE_MACHINE}


async def probed(attack: str, probe: str, one: bool) -> tuple[str, str]:
    """What the probe printed, in the sandbox of the attack or in another, and why it failed."""
    backend = BubblewrapBackend()
    async with await backend.create(SPEC) as first, await backend.create(SPEC) as second:
        held = f"{COMMON}\n{attack}\nprint('held', flush=True)\nsignal.pause()"
        attacker = await first.start(["python3", "-c", held])
        async with asyncio.timeout(60):
            said = await attacker.stdout.readline()
        if said != b"held\n":
            return "", f"the attack did not run: {(await attacker.stderr.read()).decode()}"
        result = await (first if one else second).exec(["python3", "-c", f"{COMMON}\n{probe}\nprint('works')"])
        attacker.kill()
        await attacker.wait()
        attacker.close()
        return result.stdout, result.stderr or result.describe()


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_sandbox_cannot_take_it_from_another(host: Host, name: str) -> None:
    if name in PER_PERSON and machine().launcher.users is None:
        pytest.skip("sandboxes share this user's id: docs/sandboxes.md says what that leaves shared")
    attack, probe, _ = PROGRAMS[name]
    before = host.state()
    said, why = asyncio.run(probed(attack, probe, one=False))
    assert said == "works\n", why
    assert host.changes(before).keys() <= {"open files"}


@pytest.mark.parametrize("name", [name for name, (_, _, fails) in PROGRAMS.items() if fails])
def test_the_same_programs_take_it_within_one_sandbox(name: str) -> None:
    """So the tests above can fail."""
    attack, probe, _ = PROGRAMS[name]
    said, why = asyncio.run(probed(attack, probe, one=True))
    assert said == "", "the probe works beside the attack"
    assert "did not run" not in why, why


def test_what_code_has_on_its_way_does_not_keep_the_host_from_starting_a_command() -> None:
    """Three descriptors are handed over for each; where all have one user, the host's limit has to be the larger."""
    attack, _, _ = PER_PERSON["descriptors in flight"]

    async def run() -> str:
        backend = BubblewrapBackend()
        async with await backend.create(SPEC) as first:
            held = f"{COMMON}\n{attack}\nprint('held', flush=True)\nsignal.pause()"
            attacker = await first.start(["python3", "-c", held])
            await attacker.stdout.readline()
            async with await backend.create(SPEC) as second:
                said = (await first.exec("echo one")).stdout + (await second.exec("echo other")).stdout
            attacker.kill()
            attacker.close()
            return said

    assert asyncio.run(run()) == "one\nother\n"
    assert resource.getrlimit(resource.RLIMIT_NOFILE)[0] > OPEN_FILES + 253


REFUSED = {
    "takes a lease on a file that others open": "fcntl.fcntl(os.open('/usr/bin/env', 0), 1024, 0)",
    "has the kernel report what others do in a folder": "fcntl.fcntl(os.open('/usr/bin', 0), 1026, 1)",
    "enlarges a pipe that the host pays for": "fcntl.fcntl(1, 1031, 1 << 20)",
    "takes huge pages": "check(libc.memfd_create(b'x', 4))",
    "leaves a key in the kernel": "check(libc.syscall(248, b'user', b'x', b'x', 1, -3))",
    "has a program of the host's look at its crash": "assert resource.getrlimit(resource.RLIMIT_CORE) == (0, 0)",
    "lowers the priority of what others run": "os.setpriority(os.PRIO_USER, 0, -1)",
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_reaches_past_a_sandbox_is_refused(host: Host, name: str) -> None:
    result = contained(host, ["python3", "-c", f"{COMMON}\n{REFUSED[name]}\nprint('ESCAPED')"])
    assert "Error" in result.stderr, "the program was refused, and not by a mistake of its own"
    assert "NameError" not in result.stderr


ENDS = {
    "by its number": """
for pid in set(range(2, 70000)) - {os.getpid()}:
    try: os.kill(pid, 9)
    except OSError: pass
""",
    "by its user": "os.kill(-1, 9)",
    "by priority": "os.setpriority(os.PRIO_USER, 0, 19)",
}


@pytest.mark.parametrize("name", ENDS)
def test_a_process_of_another_sandbox_runs_on(name: str) -> None:
    async def run() -> tuple[bool, str]:
        backend = BubblewrapBackend()
        async with await backend.create(SPEC) as first, await backend.create(SPEC) as second:
            job = second.background("sleep 1000")
            await first.exec(["python3", "-c", f"{COMMON}\n{ENDS[name]}"])
            nice = (await second.exec("ps -o ni= -C sleep || cut -d' ' -f19 /proc/*/stat")).stdout
            done = job.done
            await job.kill()
            return done, nice

    done, nice = asyncio.run(run())
    assert not done
    assert "19" not in nice
