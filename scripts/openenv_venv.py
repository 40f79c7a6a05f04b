"""Set up `.venv-openenv`: openenv, and a checkout of its environments, whose servers tests/integrations plays.

Run by the Python of `.venv`; see `side_venv.py`.
"""

from __future__ import annotations

import os
import sys
import time

from setup_venv import ROOT, SetupError, say
from side_venv import SideVenv, current_key, own_python, run

VENV = SideVenv(os.path.join(ROOT, ".venv-openenv"))
SOURCE = "https://github.com/meta-pytorch/OpenEnv"
COMMIT = "685de411"
FOLDERS = [f"envs/{name}_env" for name in ("echo", "grid_world", "maze", "reasoning_gym", "textarena")]
REQUIREMENTS = ("openenv==0.10.0", "reasoning-gym>=0.1.25", "textarena>=0.7.4", "nltk>=3.9", "numpy", "matplotlib")


def install() -> dict[str, str]:
    """Install openenv and fetch its environments; returns what is missing, and why."""
    started = time.monotonic()
    python, _ = own_python()
    key = current_key(python, [os.path.abspath(__file__)])
    stamp = VENV.read_stamp()
    if stamp.get("key") == key and not stamp["missing"]:
        return {}
    say("making .venv-openenv, for tests with openenv's servers (once; about 0.2 GB to download)")
    VENV.make(python, gigabytes=1.5)
    missing: dict[str, str] = {}
    try:
        VENV.checkout(SOURCE, COMMIT, *FOLDERS)
        VENV.install("installing openenv", *REQUIREMENTS)
    except SetupError as error:
        missing["environments"] = str(error)
        say(f"warning: {error}")
    VENV.write_stamp(key, missing)
    say(f".venv-openenv: done in {time.monotonic() - started:.0f} s")
    return missing


def main() -> int:
    return run((__doc__ or "").splitlines()[0], VENV, ["environments"], install)


if __name__ == "__main__":
    sys.exit(main())
