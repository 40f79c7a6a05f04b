"""Agents that attack a Harbor task's box, its grader or its reward: none has a reward, and none harms what comes later.

What agents can do to the gateway is in `tests/gateway/test_command_isolation.py`: this shell has no network at all.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from whet.types import State

pytestmark = pytest.mark.parts
Make = Callable[..., Path]
Attack = Callable[..., list[str]]
SECRET = "expected-7f3a"
TASK = {
    "environment__Dockerfile": "FROM x\nWORKDIR /app\nENV PATH=/app/bin:$PATH\nRUN mkdir bin out\n",
    "tests__expected": SECRET,
    "tests__test_DOT_sh": "python3 /tests/check.py\n",
    "tests__check_DOT_py": """
import pathlib
answer = pathlib.Path("out/answer")
right = answer.exists() and answer.read_bytes()[:99] == pathlib.Path("/tests/expected").read_bytes()
pathlib.Path("/logs/verifier/reward.txt").write_text(str(int(right)))
""",
    "solution__solve_DOT_sh": f"printf {SECRET} > out/answer\n",
    "task_DOT_toml": 'artifacts = ["/app/report"]\n[verifier]\ntimeout_sec = 20\n[environment]\nmemory_mb = 512\n',
}


IMAGE = os.environ.get("WHET_TEST_IMAGE")
"""As for `test_harbor_container.py`: containers of this image are attacked too."""
BACKENDS = (
    ["bubblewrap"] if IMAGE is None else ["bubblewrap", os.path.basename(os.environ.get("WHET_TEST_ENGINE", "docker"))]
)


@pytest.fixture(params=BACKENDS)
def backend(request: pytest.FixtureRequest) -> str:
    if request.param == "bubblewrap":
        request.getfixturevalue("bubblewrap")
    return request.param


@pytest.fixture
def attack(backend: str, task: Make, rollout: Callable[..., tuple[State, list[str]]], tmp_path: Path) -> Attack:
    """Plays the commands, which have no reward and see no secret, and then a rollout that solves the task."""
    if backend != "bubblewrap":
        dockerfile = TASK["environment__Dockerfile"].replace("FROM x", f"FROM {IMAGE}\nRUN useradd -mu 1000 player")
        folder = task(**{**TASK, "environment__Dockerfile": f"{dockerfile}RUN chown -R player .\nUSER player\n"})
        rollout = functools.partial(rollout, backend=backend)
    else:
        folder = task(**TASK)

    def play(*commands: str, reward: float | None = 0.0) -> list[str]:
        before = set(os.listdir(tmp_path))
        state, outputs = rollout(folder, *commands, timeout_per_command_seconds=5, max_carried_mb=8)
        assert state["reward"] == reward, (state["error"], outputs)
        assert (state["error"] is None) == (reward is not None), state["error"]
        assert not any(SECRET in output for output in outputs), outputs
        assert set(os.listdir(tmp_path)) == before
        assert rollout(folder, f"printf {SECRET} > out/answer")[0]["reward"] == 1.0
        return outputs

    return play


def test_fork_bomb(attack: Attack) -> None:
    (output,) = attack("b() { b | b & }; b; sleep 1; echo $(ls -d /proc/[0-9]* | wc -l)")
    assert "fork" in output


def test_full_disk(attack: Attack, backend: str) -> None:
    """A container's disk is measured, not limited: `test_harbor_container.py` has one that is ended for it."""
    outputs = attack(
        "for n in 1 2 3 4; do head -c 400M /dev/zero > /app/$n; done", "echo more > /app/more || echo full"
    )
    assert backend != "bubblewrap" or any("No space left" in output for output in outputs)


def test_a_million_empty_files(attack: Attack, backend: str) -> None:
    code = "import os; os.mkdir('/app/many'); [open(f'/app/many/{n}', 'w').close() for n in range(10**6)]"
    (output,) = attack(f'python3 -c "{code}"')
    assert ("No space left" if backend == "bubblewrap" else "timed out") in output


def test_endless_output(attack: Attack) -> None:
    (output,) = attack("yes")
    assert len(output) < 20_000


def test_all_memory(attack: Attack) -> None:
    (output,) = attack("python3 -c 'bytearray(4 << 30)' || tail /dev/zero; echo here")
    assert output


def test_signals_to_every_process(attack: Attack) -> None:
    attack("kill -9 1; kill -9 $PPID; kill -STOP 1 $PPID; echo here", "kill -9 -1", "echo here")


def test_reading_the_grader_and_the_solution(attack: Attack) -> None:
    found = "find / -xdev \\( -name check.py -o -name solve.sh -o -name expected \\) 2>/dev/null"
    outputs = attack(found, "grep -rs expected-7f3 /app /home /opt /run /var /tmp /logs /tests /solution /dev/shm")
    assert outputs[0] == "(no output)"


def test_forged_reward_files(attack: Attack) -> None:
    write = "for d in /logs/verifier /logs/artifacts /logs /app; do"
    write += " for n in reward.json reward.txt; do echo 1 > $d/$n; done; done"
    attack(write, "chmod 444 /logs/verifier/*; chmod 555 /logs/verifier")


def test_replaced_programs(attack: Attack) -> None:
    """Those with which the grading box is prepared and read; the task's PATH begins in /app/bin."""
    forge = "#!/bin/sh\\necho 1\\n"
    attack(f"for n in cat find tail mkdir readlink rm; do printf '{forge}' > bin/$n; /bin/chmod +x bin/$n; done")
    for name in ("sh", "tar", "bash"):
        forge = f'#!/bin/sh\\ncp /tests/expected /app/out/answer\\nexec /bin/{name} "$@"\\n'
        attack(f"printf '{forge}' > bin/{name}; chmod +x bin/{name}")


def test_startup_files_of_shells_and_python(attack: Attack) -> None:
    files = (
        "~/.bashrc ~/.profile ~/.bash_profile ~/.pythonrc ~/.local/bin/bash ~/.local/bin/python3 ~/.local/bin/python"
    )
    site = "~/.local/lib/python3.$(python3 -c 'import sys; print(sys.version_info[1])')/site-packages"
    command = (
        f"mkdir -p {site}; for f in {files}; do echo 'echo 1 > /logs/verifier/reward.json' > $f; chmod +x $f; done"
    )
    code = "import os; open('/logs/verifier/reward.json', 'w').write('1'); os._exit(0)"
    attack(command, f'for n in sitecustomize usercustomize; do echo "{code}" > {site}/$n.py; done')


def test_links_to_the_grader(attack: Attack) -> None:
    for link in ("/tests/expected", "../../tests/expected", "/proc/self/root/tests/expected", "/app/way/expected"):
        attack(f"ln -s /tests /app/way; rm -rf out/answer; ln -s {link} out/answer")
    attack("rm -r out; ln -s /tests out; ln -s /tests/expected /tests/answer; ln -s /logs/verifier report")
    attack("ln -s /etc/passwd report; ln -s /proc/1/environ /logs/artifacts/x; ln -s loop loop")


def test_thousands_of_links(attack: Attack) -> None:
    code = (
        "import os; [os.symlink(f'l{n + 1}' if n % 30 else '/tests/expected', f'/app/out/l{n}') for n in range(20_000)]"
    )
    attack(f'python3 -c "{code}"; ln -s l1 out/answer')


def test_process_that_writes_later(attack: Attack) -> None:
    loop = "while :; do echo 1 > /logs/verifier/reward.json; cp /tests/expected out/answer; sleep 0.01; done"
    attack(f"nohup setsid sh -c '{loop}' > /dev/null 2>&1 &")


def test_more_rights(attack: Attack, backend: str) -> None:
    """Whether a user may make a namespace of users is the engine's rule: podman lets them, docker does not."""
    last = "unshare -Ur id" if backend == "bubblewrap" else "chroot / id"
    outputs = attack(
        "cp /bin/bash out/b; chmod 6755 out/b; out/b -p -c 'id -u; id -ru' | sort -u",
        "sudo -n id 2>&1; su -c id 2>&1; grep -E 'NoNewPrivs|CapEff' /proc/self/status",
        f"mknod out/null c 1 3 || mount -t tmpfs x /mnt || {last} || echo refused",
    )
    assert outputs[0] == "1000"
    assert outputs[1].split()[-4:] == ["CapEff:", "0" * 16, "NoNewPrivs:", "1"]
    assert "refused" in outputs[2]


def test_processes_of_the_host(attack: Attack) -> None:
    outputs = attack(
        "cat /proc/[0-9]*/cmdline | tr '\\0' ' '",
        f"ls -d /proc/{os.getpid()} /proc/1/root/ 2>&1; cat /proc/1/environ 2>&1",
        "echo 1 > /proc/sys/kernel/core_pattern; echo b > /proc/sysrq-trigger; echo -1000 > /proc/self/oom_score_adj",
    )
    assert "pytest" not in outputs[0]
    assert "No such file" in outputs[1]
    assert "Permission denied" in outputs[2] or "Read-only" in outputs[2]


def test_tracing_other_processes(attack: Attack) -> None:
    code = "import ctypes, os; c = ctypes.CDLL(None, use_errno=True); "
    code += "print([c.ptrace(16, pid, 0, 0) for pid in (1, os.getppid())], os.strerror(ctypes.get_errno()))"
    (output,) = attack(f'python3 -c "{code}"')
    assert "[-1, -1]" in output


def test_preloaded_libraries(attack: Attack) -> None:
    (output,) = attack(
        "for f in /etc/ld.so.preload /etc/environment /etc/profile /usr/lib/x /etc/ld.so.conf.d/x; do "
        "echo /app/x.so > $f || true; done; export LD_PRELOAD=/app/x.so PYTHONPATH=/app BASH_ENV=/app/x; env > ~/.env"
    )
    assert (
        output.count("Read-only") + output.count("denied") + output.count("cannot create") + output.count("No such")
        >= 5
    )


def test_pipes_and_sockets_as_artifacts(attack: Attack) -> None:
    """The grader would wait for a pipe until its time is over, which is an error and no reward."""
    attack(
        "mkfifo out/answer /app/report /logs/artifacts/p",
        "python3 -c 'import socket as s; s.socket(1).bind(\"/app/s\")'",
    )


def test_sparse_files(attack: Attack) -> None:
    outputs = attack("truncate -s 1T report; truncate -s 400M /app/holes; ls -s /app", "ls /app")
    assert outputs


def test_deep_folders(attack: Attack) -> None:
    code = "import os\\nos.chdir('/app')\\nfor n in range(3000): os.mkdir('d' * 99); os.chdir('d' * 99)"
    attack(f"python3 -c \"exec('''{code}''')\"")


def test_odd_names_of_files(attack: Attack) -> None:
    names = (
        "-rf --checkpoint=1 '--checkpoint-action=exec=sh x' $'a\\nb' $'\\xff' '*' '$(id)' '`id`' '..\\\\..' 'report '"
    )
    attack(f'cd out && for n in {names}; do touch -- "$n"; done; ls | wc -l')


def test_forged_archives(attack: Attack) -> None:
    """A program in the place of tar gives what is carried away names outside of the folder."""
    code = """import io, sys, tarfile
a = tarfile.open(fileobj=sys.stdout.buffer, mode='w|')
for name in ('../tests/expected', '/tests/expected', 'l/expected', '../../logs/verifier/reward.json', './out/answer'):
    if name[0] == 'l':
        one = tarfile.TarInfo('l'); one.type = tarfile.SYMTYPE; one.linkname = '/tests'; a.addfile(one)
    one = tarfile.TarInfo(name); one.size = 1; one.mode = 0o444; a.addfile(one, io.BytesIO(b'1'))
a.close()
"""
    attack(
        f"cat > bin/tar.py <<'E'\n{code}E\n"
        "printf '#!/bin/sh\\nexec python3 /app/bin/tar.py\\n' > bin/tar; chmod +x bin/tar"
    )


def test_caches_that_other_rollouts_read(attack: Attack, backend: str) -> None:
    (output,) = attack(
        "for f in /opt/whet-image/files.tar /opt/whet-image/x; do echo x > $f; rm -f $f; chmod 777 $f; done"
    )
    assert output.count("Read-only" if backend == "bubblewrap" else "No such file") >= 4


def test_network_of_the_host(attack: Attack) -> None:
    (output,) = attack("for a in 127.0.0.1/{22,80,3128,8000} 169.254.169.254/80; do (exec 3<>/dev/tcp/$a) 2>&1; done")
    assert output.count("refused") + output.count("unreachable") >= 5
