"""Set up `.venv-trainers`: rLLM, verl and SkyRL beside the packages of `.venv`, for tests in tests/integrations.

Run by the Python of `.venv`; see `side_venv.py`. rLLM and SkyRL are checkouts. What these packages need of CUDA is not
installed: the tests use what a CPU can run.
"""

from __future__ import annotations

import os
import sys
import sysconfig

from setup_venv import ROOT, SetupError, say
from side_venv import SideVenv, current_key, own_python, run

VENV = SideVenv(os.path.join(ROOT, ".venv-trainers"))
REQUIREMENTS = (
    *("hydra-core>=1.3,<2", "codetiming>=1.4", "polars>=1", "torchdata>=0.11", "cachetools>=6", "cloudpickle>=3"),
    *(
        "orjson>=3.11",
        "pyvers",
        "blobfile>=3",
        "chz>=0.4",
        "termcolor>=3",
        "ray>=2.41",
        "loguru>=0.7",
        "jaxtyping",
        "cloudpathlib>=0.23",
        "func_timeout",
        "aiohttp>=3.9",
        "pybase64>=1.4",
    ),
)
ALONE = ("tinker-cookbook==0.6.1", "tensordict==0.15.3", "verl==0.8.0")
"""Without their dependencies: one of the first is in no registry, the others have CUDA among theirs."""
NEWER_VERL = "verl==0.9.1"
"""In a folder of its own, since rLLM needs the other."""
CHECKOUTS = {
    "rllm": ("https://github.com/rllm-org/rllm", "9beb6e0f", ("rllm", "examples/verifiers_env")),
    "skyrl": ("https://github.com/NovaSky-AI/SkyRL", "a9564572e", ("skyrl", "skyrl-gym")),
}


def install() -> dict[str, str]:
    """Install and fetch them; returns what is missing, and why. What `.venv` has is not installed again."""
    python, version = own_python()
    key = current_key(python, [os.path.abspath(__file__)])
    stamp = VENV.read_stamp()
    if stamp.get("key") == key and not stamp["missing"]:
        return {}
    say("making .venv-trainers, for the tests with rLLM, verl and SkyRL (once; about 0.3 GB to download)")
    VENV.make(python, gigabytes=2.0)
    folder = os.path.join(VENV.folder, "lib", f"python{version[0]}.{version[1]}", "site-packages")
    with open(os.path.join(folder, "whet_venv.pth"), "w", encoding="utf-8") as file:
        file.write(f"import site; site.addsitedir({sysconfig.get_path('purelib')!r})\n")
    missing: dict[str, str] = {}
    try:
        VENV.install("installing what rLLM, verl and SkyRL need", *REQUIREMENTS)
        VENV.install("installing verl", "--no-deps", *ALONE)
        VENV.install("installing verl", "--no-deps", "--target", os.path.join(VENV.folder, "verl-0.9"), NEWER_VERL)
    except SetupError as error:
        missing["verl"] = str(error)
        say(f"warning: {error}")
    for name, (source, commit, paths) in CHECKOUTS.items():
        try:
            VENV.checkout(source, commit, *paths)
        except SetupError as error:
            missing[name] = str(error)
            say(f"warning: {error}")
    VENV.write_stamp(key, missing)
    return missing


def main() -> int:
    return run((__doc__ or "").splitlines()[0], VENV, ["verl", *CHECKOUTS], install)


if __name__ == "__main__":
    sys.exit(main())
