"""Set up `.venv-nemo`: nemo-gym, whose resources servers and agents tests/integrations runs.

Run by the Python of `.venv`; see `side_venv.py`. nemo-gym 0.4 needs Python 3.12, so `.venv-nemo` may be made with
another Python of this machine.
"""

from __future__ import annotations

import glob
import os
import shutil
import sys

from setup_venv import ROOT, SetupError, run_merged, say
from side_venv import SideVenv, current_key, own_python, run

VENV = SideVenv(os.path.join(ROOT, ".venv-nemo"))
REQUIREMENTS = ("nemo-gym==0.4.0",)
OLDEST = (3, 12)


def find_python() -> str:
    """A Python that nemo-gym runs in. Raises `SetupError` where this machine has none."""
    own, version = own_python()
    found = [shutil.which(f"python3.{minor}") for minor in (13, 12)]
    found += sorted(glob.glob(os.path.expanduser("~/.pyenv/versions/3.1[23].*/bin/python")), reverse=True)
    for python in ([own] if version[:2] >= OLDEST else []) + [path for path in found if path]:
        if run_merged([python, "-c", "import venv"]).returncode == 0:
            return python
    raise SetupError(f"nemo-gym needs Python {OLDEST[0]}.{OLDEST[1]} or later, and this machine has none")


def install() -> dict[str, str]:
    """Install nemo-gym; returns what is missing, and why."""
    python = find_python()
    key = current_key(python, [os.path.abspath(__file__)])
    stamp = VENV.read_stamp()
    if stamp.get("key") == key and not stamp["missing"]:
        return {}
    say("making .venv-nemo, for tests with nemo-gym (once; about 0.4 GB to download)")
    VENV.make(python, gigabytes=2.5)
    missing: dict[str, str] = {}
    try:
        VENV.install("installing nemo-gym", *REQUIREMENTS)
    except SetupError as error:
        missing["nemo-gym"] = str(error)
        say(f"warning: {error}")
    VENV.write_stamp(key, missing)
    return missing


def main() -> int:
    return run((__doc__ or "").splitlines()[0], VENV, ["nemo-gym"], install)


if __name__ == "__main__":
    sys.exit(main())
