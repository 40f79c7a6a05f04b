"""Set up `.venv-inspect`: inspect-ai and tasks of inspect-evals beside the packages of `.venv`, for tests/integrations.

Run by the Python of `.venv`; see `side_venv.py`.
"""

from __future__ import annotations

import os
import sys

from setup_venv import ROOT, SetupError, say
from side_venv import SideVenv, current_key, own_python, run

VENV = SideVenv(os.path.join(ROOT, ".venv-inspect"))
REQUIREMENTS = ("inspect-ai==0.3.285", "inspect-evals==0.26.0", "datasets>=4")


def install() -> dict[str, str]:
    """Install inspect-ai; returns what is missing, and why. What `.venv` has is not installed again."""
    python, version = own_python()
    key = current_key(python, [os.path.abspath(__file__)])
    stamp = VENV.read_stamp()
    if stamp.get("key") == key and not stamp["missing"]:
        return {}
    say("making .venv-inspect, for tests with inspect-ai (once; about 0.2 GB to download)")
    VENV.make(python, gigabytes=1.5)
    VENV.see_own_packages(version)
    missing: dict[str, str] = {}
    try:
        VENV.install("installing inspect-ai", *REQUIREMENTS)
    except SetupError as error:
        missing["inspect-ai"] = str(error)
        say(f"warning: {error}")
    VENV.write_stamp(key, missing)
    return missing


def main() -> int:
    return run((__doc__ or "").splitlines()[0], VENV, ["inspect-ai"], install)


if __name__ == "__main__":
    sys.exit(main())
