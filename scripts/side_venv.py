"""A virtual environment beside `.venv`, for programs whose dependencies are not whet's.

Scripts such as `parity_venv.py` and `vllm_venv.py` say what is in theirs. Standard library only, like
`setup_venv.py`, whose words and habits they share: quick when nothing has changed, one line for what to fix.

What cannot be installed is recorded in the stamp with the reason; the tests that need it are skipped with that reason,
or fail where `CI` is set. So a script exits with 0 unless `--strict` is given.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shutil
import sys
import sysconfig
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import setup_venv
from setup_venv import ROOT, SetupError, explain_failure, fingerprint, run_merged, say, write_atomically


class SideVenv:
    """A folder `.venv-KIND`, its stamp and its log."""

    def __init__(self, folder: str) -> None:
        self.name = os.path.basename(folder)
        self.folder = folder
        kind = self.name.rpartition("-")[2]
        self.stamp = os.path.join(folder, f"whet-{kind}.json")
        self.log = os.path.join(folder, f"whet-{kind}.log")
        self.sees_own_packages = False

    def read_stamp(self) -> dict[str, Any]:
        """`key`, of what decides its contents, and `missing`, a part's name to why it is not there."""
        try:
            with open(self.stamp, encoding="utf-8") as file:
                stamp = json.load(file)
        except (OSError, ValueError):
            return {}
        return stamp if isinstance(stamp, dict) else {}

    def write_stamp(self, key: str, missing: Mapping[str, str]) -> None:
        os.makedirs(self.folder, exist_ok=True)
        write_atomically(self.stamp, json.dumps({"key": key, "missing": missing}))

    def make(self, python: str, gigabytes: float) -> None:
        """Begin anew, where the disk has room for it."""
        free = shutil.disk_usage(ROOT).free / setup_venv.GB
        if free < gigabytes:
            raise SetupError(f"{ROOT} has {free:.1f} GB free and {gigabytes} GB are needed")
        made = run_merged([python, "-m", "venv", "--clear", "--without-pip", self.folder])
        if made.returncode != 0:
            raise SetupError(explain_failure(f"{python} -m venv", made.stdout))

    def see_own_packages(self, version: tuple[int, ...]) -> None:
        """Have it import what `.venv` has, after its own packages; `version` is that of both Pythons."""
        folder = os.path.join(self.folder, "lib", f"python{version[0]}.{version[1]}", "site-packages")
        with open(os.path.join(folder, "whet_venv.pth"), "w", encoding="utf-8") as file:
            file.write(f"import site; site.addsitedir({sysconfig.get_path('purelib')!r})\n")
        self.sees_own_packages = True

    def install(self, doing: str, *arguments: str, by_pip: bool = False) -> None:
        """Install packages in it: by uv where `.venv` has it, which takes a tenth of pip's time, or else by pip.

        Also by pip what uv cannot install, as it does not read pip's configuration, and what goes beside the packages
        of `.venv`, which uv does not see. Not compiled: few modules are ever imported, and those are compiled then.
        """
        python = os.path.join(self.folder, "bin", "python")
        pip = [sys.executable, "-m", "pip", "--python", python, "--disable-pip-version-check", "--no-input"]
        commands = [[*pip, "--retries", "2", "install", "--no-compile", *arguments]]
        uv = shutil.which("uv", path=os.path.dirname(sys.executable))
        if uv is not None and not by_pip and not self.sees_own_packages:
            commands.insert(0, [uv, "pip", "install", "--python", python, *arguments])
        for command in commands:
            done = run_merged(command)
            with open(self.log, "a", encoding="utf-8") as log:
                log.write(f"$ {' '.join(command)}\n{done.stdout}\n")
            if done.returncode == 0:
                return
        raise SetupError(explain_failure(doing, done.stdout))

    def checkout(self, source: str, commit: str, *paths: str) -> None:
        """These paths of a repository at one commit, for what is in no registry, in the folder of its name."""
        folder = os.path.join(self.folder, source.rpartition("/")[2])
        shutil.rmtree(folder, ignore_errors=True)
        inside = ["git", "-C", folder]
        for command in (
            ["git", "clone", "-q", "--no-checkout", source, folder],
            [*inside, "checkout", "-q", commit, "--", *paths],
        ):
            done = run_merged(command)
            if done.returncode != 0:
                raise SetupError(explain_failure(" ".join(command), done.stdout))


def own_python() -> tuple[str, tuple[int, ...]]:
    """The interpreter that runs this, past any virtual environment, and its version."""
    return getattr(sys, "_base_executable", sys.executable), tuple(sys.version_info[:3])


def current_key(python: str, paths: Sequence[str]) -> str:
    """Of what decides the contents: the Python, and these files."""
    contents = []
    for path in (*paths, os.path.abspath(__file__)):
        with open(path, "rb") as file:
            contents.append(file.read())
    return fingerprint(contents, [ROOT, python, platform.system(), platform.machine()])


def run(description: str, venv: SideVenv, parts: Sequence[str], install: Callable[[], Mapping[str, str]]) -> int:
    """The script: `install` returns what is missing of `parts`, and why. Returns its exit status."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--strict", action="store_true", help="exit with 1 when something could not be installed")
    strict = parser.parse_args().strict
    try:
        os.makedirs(venv.folder, exist_ok=True)
        with setup_venv.only_one(setup_venv.ROOT, shared=True), setup_venv.only_one(venv.folder):
            try:
                missing = install()
            except (SetupError, OSError) as error:
                missing = dict.fromkeys(parts, str(error))
                say(f"warning: no {venv.name}: {error}")
                venv.write_stamp("", missing)
    except OSError as error:
        print(f"whet setup: error: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("\nwhet setup: interrupted; run it again to finish", file=sys.stderr)
        return 130
    return 1 if missing and strict else 0
