"""The Dockerfiles that a Harbor task may have without Docker, read into steps.

FROM, RUN, COPY, ADD, ENV, ARG, WORKDIR, SHELL and USER. The programs of this system stand in for the image of FROM, and
`harbor_packages.py` says what package managers may ask for. Everything else is refused with its line.
"""

from __future__ import annotations

import json
import posixpath
import re
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from whet.errors import ConfigError
from whet.integrations.harbor_packages import program_of, take_packages
from whet.sandboxes.protocol import HOME, can_be_writable

RESERVED = ("/tests", "/logs")
"""Folders that are the task's own, not the Dockerfile's."""
_NO_EFFECT = ("CMD", "EXPOSE", "HEALTHCHECK", "LABEL", "MAINTAINER", "STOPSIGNAL", "VOLUME")  # Harbor runs no CMD
_HEREDOC = re.compile(r"(?:^|\s)\d*<<(-?)([\"']?)(\w+)\2(?=[\s|&;>)]|$)")
_PATH = re.compile(r"(?<![\w$./~:%-])/[A-Za-z][\w.-]*(?:/[\w.-]+)*")
_OWN_HOME = re.compile(r"/home/(?!(user|tmp|shm|writable)(/|$))[^/]+")
_VARIABLE = re.compile(r"\$(?:(\w+)|\{(\w+)\})")


@dataclass(frozen=True, slots=True)
class Step:
    """A line that is carried out in a sandbox: a command, or files of the context that go to `to`."""

    line: int
    cwd: str
    env: dict[str, str]
    command: tuple[str, ...] = ()
    files: tuple[Path, ...] = ()
    to: str = ""
    mode: str = ""  # octal, of the files


@dataclass(slots=True)
class Dockerfile:
    """What a sandbox needs to have and to do."""

    path: Path
    image: str = ""
    root: str = ""  # the folder with the files of `image`, where they are had
    workdir: str = ""
    shell: tuple[str, ...] = ("sh", "-c")
    env: dict[str, str] = field(default_factory=dict)  # PATH has $PATH in it, which the sandbox's own replaces
    arguments: dict[str, str] = field(default_factory=dict)
    steps: list[Step] = field(default_factory=list)
    writable: list[str] = field(default_factory=list)
    others: list[str] = field(default_factory=list)  # folders that can be written to in any case and are the task's
    files: list[str] = field(default_factory=list)  # of `writable`, such as /data.json, and as it made them in any box
    requirements: dict[str, int] = field(default_factory=dict)  # packages of Python, and the line of each
    user: tuple[int, str] | None = None  # the line and name of a user other than root

    def refuse(self, line: int, why: str) -> ConfigError:
        return ConfigError(f"{self.path}:{line}: {why}.")

    def own(self, line: int, path: str) -> None:
        """Have the folder of an absolute path writable. Raises ConfigError for the system's folders."""
        shared = next((top for top in (HOME, "/tmp") if f"{path}/".startswith(f"{top}/")), None)
        home = _OWN_HOME.match(path)
        if shared or home:
            folder = shared or path[: home.end() if home else None]
            self.others += [] if folder in self.others else [folder]
            return
        top = writable_root(path)
        if top is None or top == "/tests":
            raise self.refuse(line, f"{path} is in a folder that a task cannot write to; use one such as /app")
        if top not in (*self.writable, "/logs"):
            self.writable.append(top)


def writable_root(path: str) -> str | None:
    """The outermost folder of an absolute path that a sandbox may have of its own: /app for /app/src."""
    parts = path.strip("/").split("/")
    above = ("/".join(["", *parts[:depth]]) for depth in range(1, len(parts) + 1))
    return next((folder for folder in above if folder != "/opt" and can_be_writable(folder)), None)


def read_dockerfile(path: Path, workdir: str | None = None, roots: Mapping[str, str] | None = None) -> Dockerfile:
    """The steps of a Dockerfile, whose folder is the context; `workdir` is where commands run later.

    `roots` has folders with the files of images, by name. Without any WORKDIR this is /root, as / cannot be written to.
    Raises ConfigError with the line of what is refused.
    """
    made = Dockerfile(path)
    if (path.parent / ".dockerignore").exists():
        raise ConfigError(f"{path.parent / '.dockerignore'} is not read by whet; delete it, with the files it names.")
    for line, text in _instructions(path):
        word, _, rest = text.partition(" ")
        word, rest = word.upper(), rest.strip()
        if not made.image and word not in ("FROM", "ARG"):
            raise made.refuse(line, f"{word} before FROM")
        if word == "FROM":
            if made.image:
                raise made.refuse(line, "there is more than one FROM")
            made.image = next((part for part in rest.split() if not part.startswith("--")), "")
            made.root = (roots or {}).get(made.image, "")
            if not made.root and (lacking := program_of(made.image)):
                raise made.refuse(line, f"this machine lacks {lacking}, which {made.image} has, in /usr or /usr/local")
        elif word == "WORKDIR":
            _change_folder(made, line, posixpath.join(made.workdir or "/", _expanded(made, line, rest)))
        elif word == "ENV":
            made.env = {**made.env, **_variables(made, line, rest)}
        elif word == "ARG":
            made.arguments |= _variables(made, line, rest) if "=" in rest else {}
        elif word == "RUN":
            _run(made, line, rest)
        elif word in ("COPY", "ADD"):
            made.steps.append(_copy(made, line, word, rest))
        elif word == "SHELL" and _json_list(rest):
            made.shell = _json_list(rest) or made.shell
        elif word == "USER":
            made.user = None if rest.split(":")[0] in ("root", "0") else (line, rest)
        elif word not in _NO_EFFECT:
            raise made.refuse(line, f"{word} is not possible without Docker")
    if not made.image:
        raise made.refuse(1, "there is no FROM")
    if workdir or not made.workdir:
        _change_folder(made, 1, workdir or "/root")
    for top in made.writable if made.root else ():
        if top != "/root" and any(Path(made.root + top).glob("*")):
            raise made.refuse(1, f"{made.root} has files in {top}, which the task would write to; leave them out there")
    return made


def _change_folder(made: Dockerfile, line: int, folder: str) -> None:
    made.workdir = posixpath.normpath(folder)
    made.own(line, made.workdir)
    made.steps.append(Step(line, HOME, {}, ("mkdir", "-p", "--", made.workdir)))


def _instructions(path: Path) -> Iterator[tuple[int, str]]:
    """(line number, instruction), with continued lines joined, comments left out, and here-documents as they are."""
    parts: list[str] = []
    first = 0
    lines = enumerate(path.read_text("utf-8").splitlines(), 1)
    for number, line in lines:
        text = line.strip()
        if re.match(r"#\s*escape\s*=", text, re.IGNORECASE):
            raise ConfigError(f"{path}:{number}: another escape character than the backslash is not possible.")
        if text.startswith("#") or not text:
            continue
        first = first if parts else number
        parts.append(text.removesuffix("\\").rstrip() if text.endswith("\\") else text)
        if not text.endswith("\\"):
            whole, parts = " ".join(parts), []
            ends = _HEREDOC.findall(whole) if re.match(r"(RUN|COPY|ADD)\s", whole, re.IGNORECASE) else []
            for dash, _, end in ends:
                for _, raw in lines:
                    whole += f"\n{raw}"
                    if (raw.lstrip("\t") if dash else raw) == end:
                        break
                else:
                    raise ConfigError(f"{path}:{first}: the here-document has no line {end}.")
            yield first, whole
    if parts:
        yield first, " ".join(parts)


def _run(made: Dockerfile, line: int, text: str) -> None:
    if re.match(r"--(mount|network|security)\b", text):
        raise made.refuse(line, "RUN with options is not possible without Docker")
    cwd, env = made.workdir or HOME, {**made.arguments, **made.env}
    if command := _json_list(text):
        made.steps.append(Step(line, cwd, env, command))
        return
    if text.startswith("<<"):
        first, _, body = text.partition("\n")
        if len(first.split()) > 1 or body.startswith("#!"):
            raise made.refuse(line, "a here-document of RUN is possible for the shell alone")
        text = body.rpartition("\n")[0]
    taken = take_packages(text, partial(made.refuse, line), partial(_file_in_image, made, line), made.root)
    made.requirements |= dict.fromkeys(taken.requirements, line)
    for path in _PATH.findall(taken.rest):  # root may make it; a sandbox has the folders that it is given
        top = writable_root(path)
        if top is not None and top not in RESERVED and not top.startswith("/opt/whet-"):
            made.own(line, path)
    if not taken.is_done:
        made.steps.append(Step(line, cwd, env, (*made.shell, taken.rest)))


def _file_in_image(made: Dockerfile, line: int, path: str) -> str:
    """The text of a file that a COPY above put at a path."""
    full = posixpath.normpath(posixpath.join(made.workdir or "/", path))
    for step in reversed(made.steps):
        for file in step.files:
            if file.is_file() and full == (f"{step.to}{file.name}" if step.to.endswith("/") else step.to):
                return file.read_text("utf-8")
            below = posixpath.relpath(full, step.to)
            if file.is_dir() and not below.startswith("..") and (file / below).is_file():
                return (file / below).read_text("utf-8")
    raise made.refuse(line, f"no COPY above has the file {path}")


def _copy(made: Dockerfile, line: int, word: str, text: str) -> Step:
    options = re.match(r"(--(chown|chmod|link)(=\S+)?\s+)*", text)
    assert options is not None  # it may be empty
    text, mode = text[options.end() :], re.search(r"--chmod=([0-7]+)\s", options[0])
    words = list(_json_list(text) or _expanded(made, line, text).split())
    if len(words) < 2 or any(word.startswith(("--", "<<")) or "://" in word for word in words):
        raise made.refuse(line, "COPY and ADD take names of files or folders and where they go, and no other options")
    context, to = made.path.parent.resolve(), words[-1]
    files: list[Path] = []
    for name in words[:-1]:
        matching = sorted(context.glob(name.strip("/"))) if re.search(r"[*?\[]", name) else [context / name.lstrip("/")]
        paths = [path.resolve() for path in matching]
        if not paths or not all(file.is_relative_to(context) and file.exists() for file in paths):
            raise made.refuse(line, f"{word} of {name}, which is no file in {context}")
        files += paths
    if any(file.name.endswith((".tar", ".gz", ".tgz", ".bz2", ".xz")) for file in files) and word == "ADD":
        raise made.refuse(line, "ADD of an archive is not possible without Docker; use COPY and RUN tar")
    full = posixpath.normpath(posixpath.join(made.workdir or "/", to))
    folder = to.endswith(("/", "/.")) or to == "." or len(files) > 1 or full in (made.workdir, *made.writable)
    made.own(line, full)
    if not folder and full in made.writable and files[0].is_file():
        made.files.append(full)
    return Step(line, HOME, {}, files=tuple(files), to=f"{full}/" if folder else full, mode=mode[1] if mode else "")


def _variables(made: Dockerfile, line: int, text: str) -> dict[str, str]:
    if "=" not in text.split(" ")[0]:
        name, _, value = text.partition(" ")
        pairs = [(name, value.strip())]
    else:
        try:
            pairs = [(name, value) for name, _, value in (word.partition("=") for word in shlex.split(text))]
        except ValueError as error:
            raise made.refuse(line, f"ENV cannot be read: {error}") from error
    if not all(re.fullmatch(r"[A-Za-z_]\w*", name) for name, _ in pairs):
        raise made.refuse(line, "ENV takes NAME=VALUE")
    return {name: _expanded(made, line, value) for name, value in pairs}


def _expanded(made: Dockerfile, line: int, text: str) -> str:
    def value(match: re.Match[str]) -> str:
        name = match[1] or match[2]
        known = {**made.arguments, "PATH": "$PATH", "HOME": HOME, **made.env}
        if name not in known:
            raise made.refuse(line, f"${name} has no value from an ENV or ARG above")
        return known[name]

    expanded = _VARIABLE.sub(value, text)
    if "${" in expanded:
        raise made.refuse(line, "of variables only $NAME and ${NAME} are possible")
    return expanded


def _json_list(text: str) -> tuple[str, ...] | None:
    """The words of the form ["a", "b"]."""
    try:
        words = json.loads(text) if text.startswith("[") else None
    except ValueError:
        return None
    return tuple(map(str, words)) if isinstance(words, list) and words else None
