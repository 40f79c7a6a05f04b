"""Set up `.venv-trl`: trl beside the packages of `.venv`, for the test in tests/integrations that trains with it.

Run by the Python of `.venv`; see `side_venv.py`.
"""

from __future__ import annotations

import os
import sys

from setup_venv import ROOT, SetupError, say
from side_venv import SideVenv, current_key, own_python, run

VENV = SideVenv(os.path.join(ROOT, ".venv-trl"))
REQUIREMENTS = ("trl==1.16.0", "datasets>=4")


def install() -> dict[str, str]:
    """Install trl; returns what is missing, and why. What `.venv` has is not installed again."""
    python, version = own_python()
    key = current_key(python, [os.path.abspath(__file__)])
    stamp = VENV.read_stamp()
    if stamp.get("key") == key and not stamp["missing"]:
        return {}
    say("making .venv-trl, for the test with trl (once; about 0.1 GB to download)")
    VENV.make(python, gigabytes=1.0)
    VENV.see_own_packages(version)
    missing: dict[str, str] = {}
    try:
        VENV.install("installing trl", *REQUIREMENTS)
    except SetupError as error:
        missing["trl"] = str(error)
        say(f"warning: {error}")
    VENV.write_stamp(key, missing)
    return missing


def main() -> int:
    return run((__doc__ or "").splitlines()[0], VENV, ["trl"], install)


if __name__ == "__main__":
    sys.exit(main())
