"""What is said where no bwrap can start: settings that are really made, and files of kernels that are not here."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from whet.sandboxes.bubblewrap import seccomp
from whet.sandboxes.bubblewrap.host import advice

ASK = """
from whet.errors import SandboxUnavailableError
from whet.sandboxes.bubblewrap.host import host
try:
    host()
except SandboxUnavailableError as error:
    print(error)
"""
FILTERED = """
import ctypes, sys
filter_ = bytes.fromhex(sys.argv[1])
class Program(ctypes.Structure):
    _fields_ = [("length", ctypes.c_ushort), ("filter", ctypes.c_char_p)]
libc = ctypes.CDLL(None, use_errno=True)
PR_SET_NO_NEW_PRIVS, PR_SET_SECCOMP, SECCOMP_MODE_FILTER = 38, 22, 2
assert libc.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0
program = Program(len(filter_) // 8, filter_)
assert libc.prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, ctypes.byref(program), 0, 0) == 0
"""


def tree(root: Path, files: dict[str, str], user_namespaces: bool = True) -> Path:
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text + "\n")
    (root / "proc/self/ns").mkdir(parents=True)
    if user_namespaces:
        (root / "proc/self/ns/user").symlink_to("user:[4026531837]")
    return root


@pytest.mark.usefixtures("bubblewrap")
def test_a_kernel_that_allows_no_more_namespaces_is_told_with_the_setting() -> None:
    unshare, setpriv = shutil.which("unshare"), shutil.which("setpriv")
    if unshare is None or setpriv is None:
        pytest.skip("needs the programs unshare and setpriv of util-linux")
    none_allowed = (
        'echo 0 > /proc/sys/user/max_user_namespaces && exec setpriv --ambient-caps=-all --inh-caps=-all "$@"'
    )
    command = [unshare, "--user", "--map-user=1000", "--map-group=1000", "--keep-caps", "sh", "-c", none_allowed, "sh"]
    done = subprocess.run([*command, sys.executable, "-c", ASK], capture_output=True, text=True, check=False)
    assert "does not start here" in done.stdout, done.stderr
    assert "sudo sysctl -w user.max_user_namespaces=10000. Or use the docker backend." in done.stdout


@pytest.mark.usefixtures("bubblewrap")
def test_seccomp_obstacle_names_the_container_option() -> None:
    filter_ = seccomp.filter_for(os.uname().machine)
    assert filter_ is not None
    command = [sys.executable, "-c", FILTERED + ASK, filter_.hex()]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert "does not start here" in done.stdout, done.stderr
    assert "--security-opt seccomp=unconfined" in done.stdout


@pytest.mark.parametrize(
    ("files", "said", "expected"),
    [
        ({"proc/sys/kernel/unprivileged_userns_clone": "0"}, "", "sysctl -w kernel.unprivileged_userns_clone=1"),
        (
            {"proc/sys/user/max_user_namespaces": "0", "proc/sys/user/max_net_namespaces": "0"},
            "",
            "sysctl -w user.max_user_namespaces=10000 user.max_net_namespaces=10000",
        ),
        (
            {"proc/sys/kernel/apparmor_restrict_unprivileged_userns": "1"},
            "bwrap: setting up uid map: Permission denied",
            "kernel.apparmor_restrict_unprivileged_userns=0, or a profile with 'userns,' for /opt/bwrap",
        ),
        ({}, "bwrap: Can't mount proc on /newroot/proc: Operation not permitted", "systempaths=unconfined"),
        ({"proc/self/attr/current": "docker-default (enforce)"}, "", "profile docker-default confines"),
        ({"proc/self/attr/current": "unconfined"}, "bwrap: odd", "The kernel has to allow user namespaces: "),
    ],
)
def test_each_known_obstacle_is_told_with_what_to_do(
    tmp_path: Path, files: dict[str, str], said: str, expected: str
) -> None:
    allowed = {"proc/sys/kernel/unprivileged_userns_clone": "1", "proc/sys/user/max_user_namespaces": "96365"}
    assert expected in advice(said, "/opt/bwrap", tree(tmp_path, {**allowed, **files}))


def test_a_kernel_without_user_namespaces_is_told(tmp_path: Path) -> None:
    root = tree(tmp_path, {}, user_namespaces=False)
    assert "CONFIG_USER_NS" in advice("bwrap: Creating new namespace failed: Invalid argument", "bwrap", root)
