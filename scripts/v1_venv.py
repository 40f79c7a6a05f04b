"""Set up `.venv-v1`: verifiers 0.4, and a checkout of its tasksets, which tests/integrations plays.

Run by the Python of `.venv`; see `side_venv.py`.
"""

from __future__ import annotations

import os
import sys

from setup_venv import ROOT, SetupError, say
from side_venv import SideVenv, current_key, own_python, run

VENV = SideVenv(os.path.join(ROOT, ".venv-v1"))
SOURCE = "https://github.com/PrimeIntellect-ai/verifiers"
COMMIT = "a60a606ec"
REQUIREMENTS = ("verifiers==0.4.0", "uv", "datasets>=4")


def install() -> dict[str, str]:
    """Install verifiers and fetch its tasksets; returns what is missing, and why."""
    python, _ = own_python()
    key = current_key(python, [os.path.abspath(__file__)])
    stamp = VENV.read_stamp()
    if stamp.get("key") == key and not stamp["missing"]:
        return {}
    say("making .venv-v1, for tests with tasksets of verifiers 0.4 (once; about 0.3 GB to download)")
    VENV.make(python, gigabytes=1.5)
    missing: dict[str, str] = {}
    try:
        VENV.checkout(SOURCE, COMMIT, "environments")
        VENV.install("installing verifiers", *REQUIREMENTS)
    except SetupError as error:
        missing["tasksets"] = str(error)
        say(f"warning: {error}")
    VENV.write_stamp(key, missing)
    return missing


def main() -> int:
    return run((__doc__ or "").splitlines()[0], VENV, ["tasksets"], install)


if __name__ == "__main__":
    sys.exit(main())
