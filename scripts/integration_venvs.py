"""Set up the virtual environments of the tests in `tests/integrations`: `integration_venvs.py KIND` makes `.venv-KIND`.

Run by the Python of `.venv`; see `side_venv.py`. What comes of a repository is fetched first: a machine that reaches
none has nothing to install for it.
"""

from __future__ import annotations

import glob
import os
import shutil
import sys
from collections.abc import Mapping
from dataclasses import dataclass

from setup_venv import ROOT, SetupError, fingerprint, run_merged, say
from side_venv import SideVenv, current_key, own_python, run


@dataclass(frozen=True)
class Part:
    """What one name in a stamp's `missing` stands for; `{folder}` in an argument of pip is the environment's."""

    repository: tuple[str, str, tuple[str, ...]] | None = None  # where, which commit, which paths
    packages: tuple[tuple[str, ...], ...] = ()  # the arguments of each call of `pip install`


@dataclass(frozen=True)
class Kind:
    gigabytes: float
    parts: Mapping[str, Part]
    sees_own_packages: bool = False
    oldest: tuple[int, int] | None = None
    """Of Python, where whet itself runs on older ones."""


KINDS = {
    "openenv": Kind(
        1.5,
        {
            "environments": Part(
                (
                    "https://github.com/meta-pytorch/OpenEnv",
                    "685de411",
                    tuple(f"envs/{name}_env" for name in ("echo", "grid_world", "maze", "reasoning_gym", "textarena")),
                ),
                (("openenv==0.10.0", "reasoning-gym>=0.1.25", "textarena>=0.7.4", "nltk>=3.9", "numpy", "matplotlib"),),
            )
        },
    ),
    "v1": Kind(
        1.5,
        {
            "tasksets": Part(
                ("https://github.com/PrimeIntellect-ai/verifiers", "a60a606ec", ("environments",)),
                (("verifiers==0.4.0", "uv", "datasets>=4"),),
            )
        },
    ),
    "nemo": Kind(2.5, {"nemo-gym": Part(packages=(("nemo-gym==0.4.0",),))}, oldest=(3, 12)),
    "inspect": Kind(
        1.5,
        {"inspect-ai": Part(packages=(("inspect-ai==0.3.285", "inspect-evals==0.26.0", "datasets>=4"),))},
        sees_own_packages=True,
    ),
    "trl": Kind(1.0, {"trl": Part(packages=(("trl==1.16.0", "datasets>=4"),))}, sees_own_packages=True),
    "bfcl": Kind(
        0.6,
        {
            # What its checker imports. It pins forty packages, among them an older numpy than Pythons of today have.
            "bfcl-eval": Part(
                packages=(
                    ("tree-sitter==0.21.3", "tree-sitter-java==0.21.0", "tree-sitter-javascript==0.21.4"),
                    (
                        *("openai>=1.86", "anthropic>=0.75", "google-genai>=1.52", "cohere>=5.18", "mistralai==1.7.0"),
                        *("boto3", "writer-sdk>=2.1", "qwen-agent", "numpy", "soundfile", "datamodel-code-generator"),
                        *("python-dotenv>=1", "tenacity>=8.5", "overrides", "tqdm", "requests", "pydantic>=2.8"),
                    ),
                    ("--no-deps", "bfcl-eval==2026.3.23"),
                )
            )
        },
    ),
    "trainers": Kind(
        2.0,
        {
            # What these need of CUDA is not installed. Without their dependencies: one of tinker-cookbook's is in no
            # registry, the others have CUDA among theirs. rLLM needs the older verl.
            "verl": Part(
                packages=(
                    (
                        *("hydra-core>=1.3,<2", "codetiming>=1.4", "polars>=1", "torchdata>=0.11", "cachetools>=6"),
                        *("cloudpickle>=3", "orjson>=3.11", "pyvers", "blobfile>=3", "chz>=0.4", "termcolor>=3"),
                        *("ray>=2.41", "loguru>=0.7", "jaxtyping", "cloudpathlib>=0.23", "func_timeout"),
                        *("aiohttp>=3.9", "pybase64>=1.4"),
                    ),
                    ("--no-deps", "tinker-cookbook==0.6.1", "tensordict==0.15.3", "verl==0.8.0"),
                    ("--no-deps", "--target", "{folder}/verl-0.9", "verl==0.9.1"),
                )
            ),
            "rllm": Part(("https://github.com/rllm-org/rllm", "9beb6e0f", ("rllm", "examples/verifiers_env"))),
            "skyrl": Part(("https://github.com/NovaSky-AI/SkyRL", "a9564572e", ("skyrl", "skyrl-gym"))),
        },
        sees_own_packages=True,
    ),
}


def find_python(name: str, oldest: tuple[int, int] | None) -> tuple[str, tuple[int, ...]]:
    """That of `.venv`, or where it is too old another one of this machine. Raises `SetupError` where there is none."""
    own, version = own_python()
    if oldest is None or version[:2] >= oldest:
        return own, version
    newer = range(13, oldest[1] - 1, -1)
    found = [shutil.which(f"python3.{minor}") for minor in newer]
    for minor in newer:
        found += glob.glob(os.path.expanduser(f"~/.pyenv/versions/3.{minor}.*/bin/python"))
    for python in filter(None, found):
        if run_merged([python, "-c", "import venv"]).returncode == 0:
            return python, ()
    raise SetupError(f"{name} needs Python {oldest[0]}.{oldest[1]} or later, and this machine has none")


def install(venv: SideVenv, kind: Kind) -> dict[str, str]:
    """Fetch and install every part; returns what is missing, and why. What `.venv` has is not installed again."""
    python, version = find_python(" and ".join(kind.parts), kind.oldest)
    key = fingerprint([current_key(python, []).encode()], [repr(kind)])
    stamp = venv.read_stamp()
    if stamp.get("key") == key and not stamp["missing"]:
        return {}
    say(f"making {venv.name}, for tests with {', '.join(kind.parts)} (once; up to {kind.gigabytes:g} GB)")
    venv.make(python, kind.gigabytes)
    if kind.sees_own_packages:
        venv.see_own_packages(version)
    missing: dict[str, str] = {}
    for part_name, part in kind.parts.items():
        try:
            if part.repository is not None:
                source, commit, paths = part.repository
                venv.checkout(source, commit, *paths)
            for packages in part.packages:
                arguments = [argument.replace("{folder}", venv.folder) for argument in packages]
                venv.install(f"installing {part_name}", *arguments)
        except SetupError as error:
            missing[part_name] = str(error)
            say(f"warning: {error}")
    venv.write_stamp(key, missing)
    return missing


def main() -> int:
    name = sys.argv.pop(1) if len(sys.argv) > 1 else ""
    if name not in KINDS:
        print(f"usage: integration_venvs.py KIND [--strict], KIND one of {', '.join(KINDS)}", file=sys.stderr)
        return 2
    venv, kind = SideVenv(os.path.join(ROOT, f".venv-{name}")), KINDS[name]
    return run((__doc__ or "").splitlines()[0], venv, list(kind.parts), lambda: install(venv, kind))


if __name__ == "__main__":
    sys.exit(main())
