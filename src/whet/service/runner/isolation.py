"""What a run's process sees: its own folder, Python, the model caches and its environments, and nothing else.

bubblewrap makes a file system of those alone, a process table and a network of its own (`network.py` is its way out);
the devices are the machine's. The database, the key of the secrets, other runs and the user's home are not in it. A run
may itself use the bubblewrap sandboxes of environments inside.

As root, the run becomes another user, one for each run: without that its user could write to /proc/sys, and sandboxes
inside would find parts of /proc covered. The namespaces are then made by `unshare` and left by `setpriv`.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Literal
from urllib.parse import urlsplit
from urllib.request import url2pathname

import whet
from whet.errors import SandboxUnavailableError
from whet.sandboxes.bubblewrap.host import advice
from whet.sandboxes.bubblewrap.layout import links_to_python
from whet.sandboxes.bubblewrap.program import programs
from whet.sandboxes.bubblewrap.users import of_root

Choice = Literal["auto", "bubblewrap", "none"]
HOME = "/home/whet"
PROBE_S = 30.0
FIRST_USER, USERS = 1_881_000_000, 1 << 20  # above those of sandboxes (users.py)
SYSTEM = ("/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32")
ETC = (
    *("alternatives", "ca-certificates", "crypto-policies", "gai.conf", "group", "host.conf", "hosts", "ld.so.cache"),
    *("ld.so.conf", "ld.so.conf.d", "localtime", "mime.types", "nsswitch.conf", "OpenCL", "passwd", "pki", "protocols"),
    *("resolv.conf", "services", "ssl/certs", "ssl/openssl.cnf", "timezone", "vulkan"),
)
DEVICES = ("nvidia*", "dri", "kfd", "infiniband")
PASSED_ON = ("LANG", "LC_ALL", "LC_CTYPE", "TZ", "SSL_CERT_FILE", "SSL_CERT_DIR", "LD_LIBRARY_PATH", "HF_ENDPOINT")
PASSED_ON_PREFIXES = ("CUDA_", "NVIDIA_", "OMP_", "MKL_", "KMP_", "GOMP_", "NCCL_", "PYTORCH_", "TORCH_", "TRITON_")
PROXIES = ("http_proxy", "https_proxy", "no_proxy", "all_proxy")


@dataclass(frozen=True, slots=True)
class View:
    """What one process sees besides the system."""

    writable: Sequence[Path] = ()
    readable: Sequence[Path] = ()
    empty: Sequence[Path] = ()  # folders of what is writable that are covered
    hidden: Sequence[Path] = ()  # covered where a folder above them is shown; what is writable may be inside
    caches: Mapping[str, tuple[Path, Path]] = field(default_factory=dict)
    """Inside -> (the machine's cache, which is shared and only read; the folder that takes what is added)."""
    user: int | None = None  # as root: the user that it becomes
    directory: Path | None = None  # where it begins
    own_network: bool = False  # a loopback interface that nothing else has, and no other; else that of the machine
    memory: int | None = None  # bytes that each folder in memory may take


@dataclass(frozen=True, slots=True)
class Isolation:
    """How runs are started on this machine."""

    bubblewrap: str | None = None  # None: not isolated
    unshare: str | None = None  # as root: the programs that make and leave namespaces
    setpriv: str | None = None
    overlays: bool = False  # whether a run may add to its view of the caches
    networks: bool = True  # whether a view may have one of its own

    @property
    def changes_user(self) -> bool:
        return self.setpriv is not None

    def user_of(self, run: str) -> int | None:
        """The user that a run becomes: the same one at each of its attempts."""
        if not self.changes_user:
            return None
        users = of_root()
        if users is None:
            return None
        first, count = (FIRST_USER, USERS) if users.uids > FIRST_USER - (1 << 22) else (users.uids, users.count)
        return first + zlib.crc32(run.encode()) % count

    def command(self, view: View, words: Sequence[str]) -> list[str]:
        """`words` behind those that isolate them."""
        if self.bubblewrap is None:
            return list(words)
        if self.unshare is not None:  # its child is process 1, with which all others end
            prefix, own = [self.unshare, "--mount", "--pid", "--fork", "--mount-proc", "--"], []
        else:  # bubblewrap's process 1 waits for all others, unless it ends with bubblewrap, and that with a shell
            prefix = ["/bin/sh", "-c", '"$@"; exit $?', "sh"]
            own = ["--unshare-user", "--unshare-pid", "--cap-drop", "ALL", "--die-with-parent"]
            own += ["--uid", "1000", "--gid", "1000"] if os.geteuid() == 0 else []
        own += ["--unshare-net"] if view.own_network and self.networks else []
        args = [*prefix, self.bubblewrap, *own, "--unshare-ipc", "--unshare-uts", "--new-session"]
        args += ["--hostname", os.uname().nodename[:63] or "whet", *_system(), *self._processes(), *_devices()]
        memory = ["--perms", "1777", *(["--size", str(view.memory)] if view.memory else []), "--tmpfs"]
        args += [*memory, "/tmp", *memory, "/dev/shm", "--perms", "1777", "--dir", "/var", *memory, "/var/tmp"]
        args += ["--perms", "0755", "--dir", "/home", *memory, HOME]
        made: set[str] = {"/", "/tmp", "/var", "/home", HOME, "/dev", "/etc", "/usr"}
        shown = _outer_first([*python_folders(), *view.readable])
        for path in shown:
            args += [*_parents(path, made), "--ro-bind", str(path), str(path)]
        for target, link in links_to_python([*shown, Path("/usr")]):
            args += [*_parents(link, made), "--symlink", target, str(link)]
        for path in view.hidden:
            if any(path.is_relative_to(shown) for shown in (Path("/usr"), *python_folders(), *view.readable)):
                args += ["--perms", "0755", "--tmpfs", str(path)]
        for path in view.writable:
            args += [*_parents(path, made), "--bind", str(path), str(path)]
        for path in view.empty:
            args += ["--perms", "0555", "--tmpfs", str(path), "--remount-ro", str(path)]
        for path in view.readable:  # also below what is writable or empty
            if any(path.is_relative_to(outer) for outer in (*view.writable, *view.empty)):
                args += ["--ro-bind", str(path), str(path)]
        for inside, (shared, added) in view.caches.items():
            args += _parents(Path(inside), made, "1777")
            if self.overlays:
                work = f"{added}.work"
                args += ["--overlay-src", str(shared), "--overlay", str(added), work, inside]
            else:
                args += ["--ro-bind", str(shared), inside]
        args += ["--chdir", str(view.directory)] if view.directory is not None else []
        args += ["--remount-ro", "/", "--"]
        return [*args, *self._become(view.user), *words]

    def _processes(self) -> list[str]:
        return ["--bind", "/proc", "/proc"] if self.unshare else ["--proc", "/proc"]

    def _become(self, user: int | None) -> list[str]:
        if self.setpriv is None or user is None:
            return []
        rights = ["--no-new-privs", "--inh-caps=-all", "--bounding-set=-all"]
        return [self.setpriv, f"--reuid={user}", f"--regid={user}", "--clear-groups", *rights, "--"]


NONE = Isolation()


def choose(choice: Choice, *, own_network: bool = True) -> Isolation:
    """What isolates runs here. Raises `SandboxUnavailableError` where bubblewrap does not start and is not declined.

    `own_network`: whether it has to make networks.
    """
    if choice == "none":
        return NONE
    try:
        return _tried(own_network)
    except SandboxUnavailableError as error:
        raise SandboxUnavailableError(
            f"runs cannot be isolated from each other here: {str(error).replace(' Or use the docker backend.', '')} "
            "Or let all that is submitted run with the rights of this user: --isolation none."
        ) from error


def _tried(own_network: bool) -> Isolation:
    if sys.platform != "linux":
        raise SandboxUnavailableError(f"bubblewrap needs Linux and this is {sys.platform}.")
    unshare = setpriv = None
    # Root that has no ids but its own is a container's, and another user outside of it.
    if os.geteuid() == 0 and of_root() is not None:
        unshare, setpriv = (
            isolation and os.path.realpath(isolation) for isolation in map(shutil.which, ("unshare", "setpriv"))
        )
        if unshare is None or setpriv is None:
            raise SandboxUnavailableError("root needs the programs unshare and setpriv (util-linux) for it.")
    said = "", ""
    for program in programs():
        for overlays in (True, False) if "--overlay-src" in program.options else (False,):
            isolation = Isolation(program.path, unshare, setpriv, overlays, own_network)
            problem = _problem(isolation)
            if problem is None:
                return isolation
            said = problem, program.path
            if own_network and _problem(replace(isolation, networks=False)) is None:
                raise SandboxUnavailableError(
                    f"{program.path} cannot make a network here: {problem.strip()} To let runs share that of the "
                    "machine: --network machine."
                )
    raise SandboxUnavailableError(f"{said[1]}: {said[0].strip()} {advice(*said)}")


def _problem(isolation: Isolation) -> str | None:
    """None, or what is said when a process is started as a run would be."""
    with tempfile.TemporaryDirectory(prefix="whet-isolation-") as text:
        shared, added = Path(text, "shared"), Path(text, "added")
        for path in (shared, added, Path(f"{added}.work")):
            path.mkdir()
        caches = {f"{HOME}/.cache/probe": (shared, added)}
        view = View(caches=caches, user=isolation.user_of("probe"), own_network=True)
        try:
            done = subprocess.run(
                isolation.command(view, [sys.executable, "-I", "-S", "-c", "pass"]),
                capture_output=True,
                text=True,
                timeout=PROBE_S,
                stdin=subprocess.DEVNULL,
                cwd="/",
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            return str(error)
    return None if done.returncode == 0 else done.stderr or f"it ended with code {done.returncode}"


def environment(home: str) -> dict[str, str]:
    """The variables of a run: what concerns the hardware and the language, nothing that holds a secret."""
    kept = {
        name: value
        for name, value in os.environ.items()
        if name in PASSED_ON or name.lower() in PROXIES or name.startswith(PASSED_ON_PREFIXES)
    }
    own = f"{Path(sys.executable).parent}:/usr/local/bin:/usr/bin:/bin"
    return {**kept, "PATH": own, "HOME": home, "USER": "whet", "TMPDIR": "/tmp", "NO_COLOR": "1", "COLUMNS": "120"}


def python_folders() -> list[Path]:
    """This Python, its packages, those that are installed from a folder (pip install -e), and of whet its source."""
    entries = {sys.prefix, sys.base_prefix, sys.exec_prefix, str(Path(whet.__file__).parents[1])}
    entries |= {entry for entry in sys.path if Path(entry).name in ("site-packages", "dist-packages")}
    entries |= {str(Path(sys.executable).resolve().parents[1])}
    return [Path(entry).absolute() for entry in [*entries, *_editable_folders()] if os.path.isdir(entry)]


@cache
def _editable_folders() -> tuple[str, ...]:
    """Folders of packages that are installed in place, by PEP 610; whet's own would show its whole repository."""
    folders = []
    for distribution in metadata.distributions():
        with contextlib.suppress(OSError, ValueError, AttributeError, TypeError):
            origin = json.loads(distribution.read_text("direct_url.json") or "{}")
            if distribution.name != "whet" and (origin.get("dir_info") or {}).get("editable"):
                folders.append(url2pathname(urlsplit(origin["url"]).path))
    return tuple(folders)


def model_caches() -> dict[str, Path]:
    """Where models are kept on this machine, by where a run finds them. None of these folders holds a token."""
    home = Path(os.environ.get("HF_HOME") or Path.home() / ".cache" / "huggingface")
    own = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "whet"
    return {
        f"{HOME}/.cache/huggingface/hub": Path(os.environ.get("HF_HUB_CACHE") or home / "hub"),
        f"{HOME}/.cache/whet/models": own / "models",
        f"{HOME}/.cache/whet/gguf": own / "gguf",
    }


def _system() -> list[str]:
    args = ["--ro-bind", "/usr", "/usr"]
    for name in SYSTEM:
        path = Path(name)
        if path.is_symlink():
            args += ["--symlink", os.readlink(path), name]
        elif path.is_dir():
            args += ["--ro-bind", name, name]
    args += ["--perms", "0755", "--dir", "/etc", "--perms", "0755", "--dir", "/etc/ssl"]
    for name in ETC:
        args += ["--ro-bind-try", f"/etc/{name}", f"/etc/{name}"]
    resolved = Path("/etc/resolv.conf").resolve()
    if resolved.is_relative_to("/run") and resolved.exists():  # systemd's, which the link in /etc points to
        args += [*_parents(resolved, {"/"}), "--ro-bind", str(resolved), str(resolved)]
    return args


def _devices() -> list[str]:
    args = ["--dev", "/dev"]
    for pattern in DEVICES:
        for path in sorted(Path("/dev").glob(pattern)):
            args += ["--dev-bind-try", str(path), str(path)]
    return [*args, "--ro-bind-try", "/sys", "/sys"]


def _parents(path: Path, made: set[str], rights: str = "0755") -> list[str]:
    """The folders above a path, which every user may enter; bubblewrap would make them for its own user alone."""
    args = []
    for above in reversed(path.parents):
        if str(above) not in made and not above.is_relative_to("/usr"):
            args += ["--perms", rights, "--dir", str(above)]
            made.add(str(above))
    return args


def _outer_first(paths: Iterable[Path]) -> list[Path]:
    """Without those that a folder above them, or /usr, shows already."""
    kept: list[Path] = []
    for path in sorted({path for path in paths if path.exists()}, key=lambda path: len(path.parts)):
        if not any(path.is_relative_to(outer) for outer in [Path("/usr"), *kept]):
            kept.append(path)
    return kept
