"""Set up `.venv-parity`: `verifiers` 0.1.14, which the tests in `tests/parity` run the same environments under as whet.

It has a virtual environment of its own because its dependencies are not ours. Run by the Python of `.venv`; standard
library only, like `setup_venv.py`, whose words and habits it shares: quick when nothing has changed, one line for what
the user has to fix.

What cannot be installed is recorded in the stamp with the reason; the tests that need it are skipped with that reason,
or fail where `CI` is set. So this exits with 0 unless `--strict` is given.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shutil
import sys
import time
from collections.abc import Mapping, Sequence
from typing import Any

import setup_venv
from setup_venv import ROOT, SetupError, explain_failure, fingerprint, run_merged, say, write_atomically

VENV = os.path.join(ROOT, ".venv-parity")
STAMP = os.path.join(VENV, "whet-parity.json")
LOG = os.path.join(VENV, "whet-parity.log")
CONSTRAINTS = os.path.join(ROOT, "requirements", "parity.txt")
NEWEST = (3, 13)  # of verifiers 0.1.14

# What is installed, by the name under which the stamp says whether it is there, in this order.
PARTS = {
    "verifiers": ("verifiers==0.1.14",),
    "games": ("reasoning-gym", "textarena", "nltk"),  # one of their dependencies has to be compiled on some systems
}


def is_supported(version: Sequence[int]) -> bool:
    return setup_venv.OLDEST <= tuple(version[:2]) <= NEWEST


def choose_python(found: Mapping[str, Sequence[int]]) -> str:
    """The first of `found` (a command to its version) that verifiers 0.1.14 runs on."""
    for command, version in found.items():
        if is_supported(version):
            return command
    oldest, newest = (".".join(map(str, version)) for version in (setup_venv.OLDEST, NEWEST))
    listed = ", ".join(".".join(map(str, version[:2])) for version in found.values())
    raise SetupError(f"verifiers 0.1.14 needs Python {oldest} to {newest}, and here is {listed or 'none'}")


def current_key(python: str) -> str:
    contents = []
    for path in (CONSTRAINTS, os.path.abspath(__file__)):
        with open(path, "rb") as file:
            contents.append(file.read())
    return fingerprint(contents, [ROOT, python, platform.system(), platform.machine()])


def read_stamp() -> dict[str, Any]:
    """`key`, of what decides its contents, and `missing`, a part's name to why it is not there."""
    try:
        with open(STAMP, encoding="utf-8") as file:
            stamp = json.load(file)
    except (OSError, ValueError):
        return {}
    return stamp if isinstance(stamp, dict) else {}


def own_python() -> tuple[str, tuple[int, ...]]:
    """The interpreter that runs this, past any virtual environment, and its version."""
    return getattr(sys, "_base_executable", sys.executable), tuple(sys.version_info[:3])


def other_pythons() -> dict[str, Sequence[int]]:
    """The Pythons of this machine that verifiers 0.1.14 may run on, by the names they are installed under."""
    found: dict[str, Sequence[int]] = {}
    for name in ("python3.13", "python3.12", "python3.11"):
        command = shutil.which(name)
        identity = setup_venv.identify(command) if command is not None else None
        if identity is not None:
            found[identity[0]] = identity[1]
    return found


def install_part(requirements: Sequence[str]) -> None:
    command = [os.path.join(VENV, "bin", "python"), "-m", "pip", "--disable-pip-version-check", "--no-input"]
    # Not compiled: of 860 MB a few modules are ever imported, and those are compiled then.
    command += ["--retries", "2", "install", "--no-compile", "-c", CONSTRAINTS, *requirements]
    done = run_merged(command)
    with open(LOG, "a", encoding="utf-8") as log:
        log.write(f"$ {' '.join(command)}\n{done.stdout}\n")
    if done.returncode != 0:
        raise SetupError(explain_failure(f"installing {' '.join(requirements)}", done.stdout))


def install() -> dict[str, str]:
    """Install the requirements of `.venv-parity`; returns what is missing, and why."""
    started = time.monotonic()
    python, version = own_python()
    stamp = read_stamp()
    if not is_supported(version):
        python = choose_python({**other_pythons(), python: version})
    wanted = list(PARTS)
    if stamp.get("key") == current_key(python):
        wanted = [name for name in PARTS if name in stamp["missing"]]
        if not wanted:
            return {}
    free = shutil.disk_usage(ROOT).free / setup_venv.GB
    if free < 1.5:
        raise SetupError(f"{ROOT} has {free:.1f} GB free and 1.5 GB are needed")
    if wanted == list(PARTS):
        say("making .venv-parity, to compare with verifiers 0.1.14 (once; about 0.2 GB to download)")
        made = run_merged([python, "-m", "venv", "--clear", VENV])
        if made.returncode != 0:
            raise SetupError(explain_failure(f"{python} -m venv", made.stdout))
    missing: dict[str, str] = {}
    for name in wanted:
        try:
            install_part(PARTS[name])
        except SetupError as error:
            missing[name] = str(error)
            say(f"warning: {error}")
    write_atomically(STAMP, json.dumps({"key": current_key(python), "missing": missing}))
    say(f".venv-parity: {len(PARTS) - len(missing)} of {len(PARTS)} parts in {time.monotonic() - started:.0f} s")
    return missing


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--strict", action="store_true", help="exit with 1 when something could not be installed")
    strict = parser.parse_args().strict
    try:
        with setup_venv.only_one():
            try:
                missing = install()
            except (SetupError, OSError) as error:
                missing = dict.fromkeys(PARTS, str(error))
                say(f"warning: no .venv-parity: {error}")
                os.makedirs(VENV, exist_ok=True)
                write_atomically(STAMP, json.dumps({"key": "", "missing": missing}))
    except OSError as error:
        print(f"whet setup: error: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("\nwhet setup: interrupted; run it again to finish", file=sys.stderr)
        return 130
    return 1 if missing and strict else 0


if __name__ == "__main__":
    sys.exit(main())
