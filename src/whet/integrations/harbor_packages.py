"""What the package managers in a RUN of a Dockerfile install: packages of the system, and packages of Python.

A sandbox shows this system's programs read-only, so nothing is installed into it. A package of the system passes where
its programs are here already, in the version that they have here. Packages of Python are wheels that the environment
installs outside and shows read-only (`whet.envs.sandboxed.packages`). The rest of such a RUN is run as it is.
"""

from __future__ import annotations

import functools
import re
import shlex
import shutil
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from whet.envs.sandboxed.packages import requirements_of
from whet.errors import ConfigError

_SYSTEM = ("apt-get", "apt", "apk", "dnf", "microdnf", "yum")
_WITHOUT_EFFECT = ("update", "upgrade", "dist-upgrade", "clean", "autoclean", "autoremove", "makecache")
_MANAGED = re.compile(rf"\b({'|'.join(_SYSTEM)}|pip[\d.]*|ln)\s")
_SHOWN = "/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin"
_PROGRAMS = {
    "build-essential": ("gcc", "g++", "make"),
    "ca-certificates": (),
    "coreutils": ("ls",),
    "default-jdk": ("javac",),
    "dnsutils": ("dig",),
    "findutils": ("find",),
    "gawk": ("awk",),
    "gnupg": ("gpg",),
    "golang": ("go",),
    "golang-go": ("go",),
    "iproute2": ("ip",),
    "netcat-openbsd": ("nc",),
    "nodejs": ("node",),
    "openjdk-17-jdk": ("javac",),
    "openssh-client": ("ssh",),
    "procps": ("ps",),
    "psmisc": ("killall",),
    "python-is-python3": ("python3",),
    "python3-pip": ("python3",),
    "ripgrep": ("rg",),
    "uuid-runtime": ("uuidgen",),
    "util-linux": ("mount",),
    "xz-utils": ("xz",),
}
_IMAGES = {
    "dotnet": "dotnet",
    "eclipse-temurin": "java",
    "golang": "go",
    "maven": "mvn",
    "node": "node",
    "openjdk": "java",
    "php": "php",
    "ruby": "ruby",
    "rust": "cargo",
}
_FROM_PYPI = {
    "python3-numpy": "numpy",
    "python3-pandas": "pandas",
    "python3-pytest": "pytest",
    "python3-requests": "requests",
    "python3-scipy": "scipy",
    "python3-yaml": "PyYAML",
}
_PYTHONS_OWN = re.compile(r"python3(\.\d+)?(-minimal|-venv|-dev|-full|-setuptools|-wheel)?")
_PIP_FLAGS = re.compile(
    r"-U|-qq?|--(no-cache-dir|break-system-packages|upgrade|user|system|quiet|no-input|prefer-binary"
    r"|no-warn-script-location|disable-pip-version-check|root-user-action=ignore)"
)
_PIP_VALUES = ("--retries", "--timeout", "--default-timeout")
_CACHES = ("/var/lib/apt/", "/var/cache/apt", "/var/cache/apk", "/root/.cache", "/var/log/apt", "/var/log/dpkg.log")
_TOKEN = re.compile(r"""'[^']*'|"(?:\\.|[^"\\])*"|\\.|[()]|&&|\|\||[;\n]|.""", re.DOTALL)
Refuse = Callable[[str], ConfigError]


@dataclass(slots=True)
class Installs:
    """What is left of a RUN, and the packages of Python that it installs."""

    rest: str
    requirements: list[str] = field(default_factory=list)

    @property
    def is_done(self) -> bool:
        """Whether nothing is left to be run."""
        return all(part.strip() in ("", "true", "&&", ";", "||") for part in _parts(self.rest))


def take_packages(text: str, refuse: Refuse, read_requirements: Callable[[str], str], root: str = "") -> Installs:
    """Take the package managers' commands out of a RUN in shell form.

    Args:
        text: the RUN.
        refuse: makes the error for what is not possible.
        read_requirements: the text of the requirements file at a path of the image.
        root: the folder with the image's files, where it is had.

    Raises:
        ConfigError: a package of the system that this machine lacks, or something that pip should install beyond names
            with versions.
    """
    taken = Installs(text)
    if _MANAGED.search(text) is None:
        return taken
    kept = []
    for part in _parts(text):
        words = _words(part)
        alone = "<<" not in text
        if alone and (_take_system(words, taken, refuse, root) or _take_pip(words, taken, refuse, read_requirements)):
            part = " true "
        elif words and re.search(rf"\b({'|'.join(_SYSTEM)})\s.*\b(install|add)\b|\bpip[\d.]*\s+install\b", part):
            raise refuse("a package manager is taken as a command of its own only, not in other words of the shell")
        kept.append(part)
    taken.rest = "".join(kept)
    return taken


def program_of(image: str) -> str | None:
    """The program for which an image is used, where this system would not show it; None for most images."""
    parts = re.split(r"[:@]", image)[0].split("/")
    program = next((_IMAGES[part] for part in reversed(parts) if part in _IMAGES), None)
    return program if program is not None and shutil.which(program, path=_SHOWN) is None else None


def _parts(text: str) -> Iterator[str]:
    """Commands, and what joins them, of a line of the shell; what is quoted or in parentheses stays whole."""
    depth, part = 0, ""
    for token in _TOKEN.findall(text):
        depth += {"(": 1, ")": -1}.get(token, 0)
        if depth == 0 and token in ("&&", "||", ";", "\n"):
            yield part
            yield token
            part = ""
        else:
            part += token
    yield part


def _words(part: str) -> list[str]:
    """Without variables before a command and redirections."""
    try:
        words = shlex.split(part)
    except ValueError:
        return []
    while words and (re.match(r"\w+=", words[0]) or words[0] in ("sudo", "env", "exec")):
        del words[0]
    words[:1] = [word.rpartition("/")[2] for word in words[:1]]
    kept: list[str] = []
    for number, word in enumerate(words):
        if not re.match(r"\d*>", word) and not (number and re.fullmatch(r"\d*>+", words[number - 1])):
            kept.append(word)
    return kept


def _take_system(words: list[str], taken: Installs, refuse: Refuse, root: str) -> bool:
    """Whether this is a command that needs nothing to be done, as all that it installs is here."""
    if words[:1] == ["rm"]:
        paths = [word for word in words[1:] if not word.startswith("-")]
        return bool(paths) and all(path.startswith(_CACHES) for path in paths)
    if words[:1] == ["ln"]:  # `python` is there in any case
        return words[-1] in ("/usr/bin/python", "/usr/local/bin/python", "/bin/python")
    if not words or words[0] not in _SYSTEM:
        return False
    names = [word for word in words[1:] if not word.startswith("-")]
    if names[:1] and names[0] in _WITHOUT_EFFECT:
        return True
    if names[:1] not in (["install"], ["add"]):
        raise refuse(f"{words[0]} is possible with install and update alone")
    missing = []
    for name in (re.split(r"[=<>~]", name)[0] for name in names[1:]):
        if name in _FROM_PYPI:
            taken.requirements.append(_FROM_PYPI[name])
        elif not _is_here(name, root):
            missing.append(name)
    if missing:
        if root:
            raise refuse(f"the image in {root} lacks {', '.join(missing)}, and nothing is installed into it")
        raise refuse(
            f"this machine lacks {', '.join(missing)}, and nothing is installed for a task, because a sandbox shows "
            "this system read-only; install it on this machine"
        )
    return True


def _take_pip(words: list[str], taken: Installs, refuse: Refuse, read_requirements: Callable[[str], str]) -> bool:
    if words[:1] == ["uv"]:
        words = words[1:]
    elif re.fullmatch(r"python[\d.]*", "".join(words[:1])) and words[1:2] == ["-m"]:
        words = words[2:]
    if not re.fullmatch(r"pip[\d.]*", "".join(words[:1])) or words[1:2] != ["install"]:
        return False
    rest = iter(words[2:])
    for word in rest:
        if word in _PIP_VALUES:
            next(rest, None)
        elif word in ("-r", "--requirement"):
            lines = read_requirements(next(rest, "")).splitlines()
            taken.requirements += [line for text in lines if (line := re.sub(r"(^|\s)#.*", "", text).strip())]
        elif not _PIP_FLAGS.fullmatch(word) and word.split("=")[0] not in _PIP_VALUES:
            taken.requirements.append(word)
    try:
        requirements_of(shlex.join(taken.requirements))
    except ConfigError as error:
        raise refuse(str(error).rstrip(".").removeprefix("pip_install_packages: ")) from error
    return True


def _is_here(package: str, root: str) -> bool:
    """Whether a sandbox shows the programs of a package of the system; packages of this system's Python, it hides."""
    shown = ":".join(f"{root}{folder}" for folder in _SHOWN.split(":"))
    if root and package in _installed(root):
        return True
    if package in _PROGRAMS:
        return all(shutil.which(program, path=shown) for program in _PROGRAMS[package])
    if _PYTHONS_OWN.fullmatch(package):
        return shutil.which("python3", path=shown) is not None
    if package.startswith(("python3-", "python-")):
        return False
    return shutil.which(package, path=shown) is not None or package in _installed(root)


@functools.cache
def _installed(root: str) -> frozenset[str]:
    """The packages of a Debian system; none of another."""
    command = ["dpkg-query", f"--admindir={root}/var/lib/dpkg", "-W", "-f", "${Package} ${db:Status-Status}\n"]
    try:
        said = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True, stdin=subprocess.DEVNULL)
    except (OSError, subprocess.SubprocessError):
        return frozenset()
    return frozenset(line.split()[0] for line in said.stdout.splitlines() if line.endswith(" installed"))
