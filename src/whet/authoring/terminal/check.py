"""The verifier of a generated terminal task: compares the working directory with `expected.json`, which lies beside it.

Copied into the `tests/` of each task, so it imports the standard library only. It follows no links and runs nothing
that an agent wrote but a sed script, under `sed --sandbox` and limits: a program would have the verifier's rights. Of a
repository it reads objects and refs alone, because its config and hooks name programs.

The reward is 1 where every check holds and 0 otherwise; `passed` is the share that holds.
"""

from __future__ import annotations

import json
import os
import resource
import shutil
import stat
import subprocess
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

MIB = 1024 * 1024
SECONDS = 20


class WrongError(Exception):
    """What an agent left is not what the task wants."""


def find(path: str) -> Path:
    """The path below the working directory, if no part of it is a link."""
    target = Path.cwd() / path
    if target.resolve() != target:
        raise WrongError("reached through a link")
    return target


def read(path: str) -> str:
    file = find(path)
    if not file.is_file() or file.stat().st_size > MIB:
        raise WrongError("no file, or one of more than 1 MiB")
    return file.read_text("utf-8")


def lines_of(text: str) -> list[str]:
    """The lines without white space at their ends, and without empty lines at the end."""
    return [line.rstrip() for line in text.rstrip().splitlines()]


def check_text(path: str, text: str) -> None:
    same(lines_of(read(path)), lines_of(text))


def check_paths(path: str, paths: list[str]) -> None:
    """The file lists these paths in any order."""
    same(sorted(line.strip().removeprefix("./") for line in lines_of(read(path))), sorted(paths))


def check_json(path: str, value: Any) -> None:
    same(json.dumps(json.loads(read(path)), sort_keys=True), json.dumps(value, sort_keys=True))


def check_settings(path: str, settings: dict[str, str]) -> None:
    """The file sets these keys, `section.key` below a `[section]`, once each and no others."""
    section, pairs = "", []
    for line in lines_of(read(path)):
        key, equals, value = line.partition("=")
        if equals:
            pairs.append([section + key.strip(), value.strip()])
        elif line.startswith("["):
            section = line.strip("[]") + "."
    same(sorted(pairs), sorted([key, value] for key, value in settings.items()))


def check_mode(path: str, mode: str) -> None:
    same(f"{stat.S_IMODE(find(path).stat().st_mode):o}", mode)


def check_sed(path: str, cases: list[list[str]]) -> None:
    """The file is a sed script that makes the second text of each case of the first."""
    script = read(path)
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "script.sed")
        file.write_text(script)
        for before, after in cases:
            same(lines_of(output_of(["sed", "--sandbox", "-E", "-f", str(file)], folder, before)), lines_of(after))


def check_git(branch: str, files: dict[str, str], head: str, subject: str | None = None) -> None:
    """The branch holds these files and no others; HEAD is on branch `head`."""
    with tempfile.TemporaryDirectory() as folder:
        output_of(["git", "init", "-q", "--bare", "."], folder)
        for name in ("objects", "refs"):
            shutil.rmtree(Path(folder, name))
            shutil.copytree(find(f".git/{name}"), Path(folder, name), symlinks=True)
        Path(folder, "HEAD").write_text(read(".git/HEAD"))
        if find(".git/packed-refs").exists():
            Path(folder, "packed-refs").write_text(read(".git/packed-refs"))
        same(output_of(["git", "symbolic-ref", "HEAD"], folder), f"refs/heads/{head}\n")
        ref = f"refs/heads/{branch}"
        if subject is not None:
            same(output_of(["git", "log", "-1", "--format=%s", ref], folder).strip(), subject)
        same(output_of(["git", "ls-tree", "-r", "--name-only", ref], folder).split(), sorted(files))
        for name, text in files.items():
            same(lines_of(output_of(["git", "cat-file", "blob", f"{ref}:{name}"], folder)), lines_of(text))


def output_of(command: Sequence[str], folder: str, text: str = "") -> str:
    """What the command prints, under limits of time, memory and file size, without the caller's variables."""

    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (64 * MIB, 64 * MIB))
        resource.setrlimit(resource.RLIMIT_AS, (512 * MIB, 512 * MIB))

    env = {"PATH": os.defpath, "HOME": folder, "GIT_CONFIG_NOSYSTEM": "1", "LC_ALL": "C.UTF-8"}
    with tempfile.TemporaryFile() as output:
        done = subprocess.run(
            command, cwd=folder, env=env, input=text.encode(), stdout=output, timeout=SECONDS, preexec_fn=limit
        )
        output.seek(0)
        said = output.read(MIB)
    if done.returncode != 0:
        raise WrongError(f"{' '.join(command)} ended with {done.returncode}")
    return said.decode()


def same(actual: Any, expected: Any) -> None:
    if actual != expected:
        raise WrongError(f"it is {actual!r:.300}, expected {expected!r:.300}")


CHECKS: dict[str, Callable[..., None]] = {
    "text": check_text,
    "paths": check_paths,
    "json": check_json,
    "settings": check_settings,
    "mode": check_mode,
    "sed": check_sed,
    "git": check_git,
}


def main() -> None:
    checks = json.loads(Path(__file__).with_name("expected.json").read_text("utf-8"))
    passed = 0
    for arguments in checks:
        kind = arguments.pop("check")
        try:
            CHECKS[kind](**arguments)
        except (WrongError, OSError, ValueError, RecursionError, shutil.Error, subprocess.SubprocessError) as error:
            print(f"{kind} {arguments.get('path', arguments.get('branch'))}: {error}")
        else:
            passed += 1
    reward = {"reward": int(passed == len(checks)), "passed": passed / len(checks)}
    Path("/logs/verifier/reward.json").write_text(json.dumps(reward))


if __name__ == "__main__":
    main()
