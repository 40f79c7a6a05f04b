"""The Dockerfiles that a Harbor task may have without Docker: FROM, RUN, COPY, ENV and WORKDIR, read into steps. Pure.

The programs of this system stand in for the image of FROM. Everything else that a Dockerfile may say is refused with
its line, and so are packages of the system, because a sandbox shows /usr read-only.
"""

from __future__ import annotations

import json
import posixpath
import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from whet.errors import ConfigError
from whet.sandboxes.protocol import HOME, can_be_writable

RESERVED = ("/tests", "/solution", "/logs")
"""Folders that are the task's own, not the Dockerfile's."""
_PACKAGES = re.compile(
    r"\b(apt-get|apt|apk|dnf|microdnf|yum|pacman|zypper)\s+(-\S+\s+)*(install|update|add|upgrade|-S\w*)\b"
)
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


@dataclass(slots=True)
class Dockerfile:
    """What a sandbox needs to have and to do."""

    path: Path
    image: str = ""
    workdir: str = ""
    env: dict[str, str] = field(default_factory=dict)
    steps: list[Step] = field(default_factory=list)
    writable: list[str] = field(default_factory=list)

    def refuse(self, line: int, why: str) -> ConfigError:
        return ConfigError(f"{self.path}:{line}: {why}. Without Docker, whet runs FROM, RUN, COPY, ENV and WORKDIR.")

    def own(self, line: int, path: str) -> None:
        """Have the folder of an absolute path writable. Raises ConfigError for the system's folders."""
        if path.startswith((f"{HOME}/", "/tmp/")):
            return
        top = writable_root(path)
        if top is None or top in RESERVED:
            raise self.refuse(line, f"{path} is in a folder that a task cannot write to; use one such as /app")
        if top not in self.writable:
            self.writable.append(top)


def writable_root(path: str) -> str | None:
    """The outermost folder of an absolute path that a sandbox may have of its own: /app for /app/src."""
    parts = path.strip("/").split("/")
    above = ("/".join(["", *parts[:depth]]) for depth in range(1, len(parts) + 1))
    return next((folder for folder in above if folder != "/opt" and can_be_writable(folder)), None)


def read_dockerfile(path: Path) -> Dockerfile:
    """The steps of a Dockerfile, whose folder is the context. Raises ConfigError with the line of what is refused."""
    made = Dockerfile(path)
    if (path.parent / ".dockerignore").exists():
        raise ConfigError(f"{path.parent / '.dockerignore'} is not read by whet; delete it, with the files it names.")
    for line, text in _instructions(path):
        word, _, rest = text.partition(" ")
        word, rest = word.upper(), rest.strip()
        if not made.image and word != "FROM":
            raise made.refuse(line, f"{word} before FROM")
        if word == "FROM":
            if made.image or rest.startswith("--") or "$" in rest:
                raise made.refuse(line, "only one FROM, without options or variables, is possible")
            made.image = rest.split()[0] if rest else ""
        elif word == "WORKDIR":
            made.workdir = posixpath.normpath(posixpath.join(made.workdir or "/", _expanded(made, line, rest)))
            made.own(line, made.workdir)
            made.steps.append(Step(line, HOME, {}, ("mkdir", "-p", "--", made.workdir)))
        elif word == "ENV":
            made.env = {**made.env, **_variables(made, line, rest)}
        elif word == "RUN":
            made.steps.append(_run(made, line, rest))
        elif word == "COPY":
            made.steps.append(_copy(made, line, rest))
        else:
            raise made.refuse(line, f"{word} is not possible")
    if not made.workdir:
        raise made.refuse(1, "there is no WORKDIR, which is what the verifier is shown")
    return made


def _instructions(path: Path) -> Iterator[tuple[int, str]]:
    """(line number, instruction), with continued lines joined and comments left out."""
    parts: list[str] = []
    first = 0
    for number, line in enumerate(path.read_text("utf-8").splitlines(), 1):
        text = line.strip()
        if re.match(r"#\s*escape\s*=", text, re.IGNORECASE):
            raise ConfigError(f"{path}:{number}: another escape character than the backslash is not possible.")
        if text.startswith("#") or not text:
            continue
        first = first if parts else number
        parts.append(text.removesuffix("\\").rstrip() if text.endswith("\\") else text)
        if not text.endswith("\\"):
            yield first, " ".join(parts)
            parts = []
    if parts:
        yield first, " ".join(parts)


def _run(made: Dockerfile, line: int, text: str) -> Step:
    if text.startswith("--") or "<<" in text:
        raise made.refuse(line, "RUN with options or a here-document is not possible")
    if _PACKAGES.search(text):
        raise made.refuse(line, "packages of the system cannot be installed: a sandbox shows this system read-only")
    command = _json_list(text) or ("sh", "-c", text)
    return Step(line, made.workdir or HOME, made.env, command)


def _copy(made: Dockerfile, line: int, text: str) -> Step:
    words = list(_json_list(text) or _expanded(made, line, text).split())
    if len(words) < 2 or any(word.startswith(("--", "<<")) or re.search(r"[*?\[]", word) for word in words):
        raise made.refuse(line, "COPY takes names of files or folders and where they go, no options and no patterns")
    context, to = made.path.parent.resolve(), words[-1]
    files = []
    for word in words[:-1]:
        file = (context / word.lstrip("/")).resolve()
        if not file.is_relative_to(context) or not file.exists():
            raise made.refuse(line, f"COPY of {word}, which is no file in {context}")
        files.append(file)
    full = posixpath.normpath(posixpath.join(made.workdir or "/", to))
    made.own(line, full)
    folder = to.endswith(("/", "/.")) or to == "." or len(files) > 1 or full in (made.workdir, *made.writable)
    return Step(line, HOME, {}, files=tuple(files), to=f"{full}/" if folder else full)


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
        if name not in made.env:
            raise made.refuse(line, f"${name} has no value from an ENV above")
        return made.env[name]

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
