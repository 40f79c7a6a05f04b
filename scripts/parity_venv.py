"""Set up `.venv-parity`: `verifiers` 0.1.14, which the tests in `tests/parity` run the same environments under as whet.

Run by the Python of `.venv`; see `side_venv.py`.
"""

from __future__ import annotations

import os
import shutil
import sys
import time
from collections.abc import Mapping, Sequence

import setup_venv
from setup_venv import ROOT, SetupError, say
from side_venv import SideVenv, current_key, own_python, run

VENV = SideVenv(os.path.join(ROOT, ".venv-parity"))
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


def other_pythons() -> dict[str, Sequence[int]]:
    """The Pythons of this machine that verifiers 0.1.14 may run on, by the names they are installed under."""
    found: dict[str, Sequence[int]] = {}
    for name in ("python3.13", "python3.12", "python3.11"):
        command = shutil.which(name)
        identity = setup_venv.identify(command) if command is not None else None
        if identity is not None:
            found[identity[0]] = identity[1]
    return found


def install() -> dict[str, str]:
    """Install the requirements of `.venv-parity`; returns what is missing, and why."""
    started = time.monotonic()
    python, version = own_python()
    if not is_supported(version):
        python = choose_python({**other_pythons(), python: version})
    stamp, key = VENV.read_stamp(), current_key(python, [CONSTRAINTS, os.path.abspath(__file__)])
    wanted = list(PARTS)
    if stamp.get("key") == key:
        wanted = [name for name in PARTS if name in stamp["missing"]]
        if not wanted:
            return {}
    if wanted == list(PARTS):
        say("making .venv-parity, to compare with verifiers 0.1.14 (once; about 0.2 GB to download)")
        VENV.make(python, gigabytes=1.5)
    missing: dict[str, str] = {}
    for name in wanted:
        try:
            VENV.install(f"installing {' '.join(PARTS[name])}", "-c", CONSTRAINTS, *PARTS[name])
        except SetupError as error:
            missing[name] = str(error)
            say(f"warning: {error}")
    VENV.write_stamp(key, missing)
    say(f".venv-parity: {len(PARTS) - len(missing)} of {len(PARTS)} parts in {time.monotonic() - started:.0f} s")
    return missing


def main() -> int:
    return run((__doc__ or "").splitlines()[0], VENV, list(PARTS), install)


if __name__ == "__main__":
    sys.exit(main())
