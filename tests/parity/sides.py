"""Both libraries on the same definitions, each in a process of its own, and where they differ.

Both run with the Python and the libraries of `.venv-parity`, so that a difference is one between the two and not
between versions of what they use. Neither reaches a network.
"""

from __future__ import annotations

import ast
import json
import os
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import pytest
from compare import differences

ROOT = Path(__file__).parents[2]
VENV = ROOT / ".venv-parity"
DRIVER = Path(__file__).with_name("driver.py")


@dataclass(frozen=True)
class Expected:
    """A difference that is meant: its number in docs/design/environments.md, and where it may show.

    `definition` and `paths` are patterns; `*` is anything.
    """

    number: int
    definition: str
    paths: tuple[str, ...]

    def covers(self, definition: str, path: str) -> bool:
        return fnmatchcase(definition, self.definition) and any(fnmatchcase(path, pattern) for pattern in self.paths)


def names_of(*modules: str) -> list[str]:
    """The definitions in these modules, read from their text: they cannot be imported where `verifiers` is missing."""
    names = []
    for module in modules:
        for node in ast.walk(ast.parse((Path(__file__).parent / "definitions" / f"{module}.py").read_text())):
            if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "definition":
                names.append(ast.literal_eval(node.args[0]))
    return names


def absent(part: str) -> str | None:
    """Why a part of `.venv-parity` is missing; None where it is there."""
    stamp = VENV / "whet-parity.json"
    missing = json.loads(stamp.read_text())["missing"] if stamp.exists() else dict.fromkeys((part,), "not made yet")
    return f"no {part} in .venv-parity ({missing[part]}); make it with: make parity" if part in missing else None


def require(part: str) -> None:
    """Skip where a part of `.venv-parity` is missing, with the reason; fail where CI is set."""
    if (reason := absent(part)) is not None:
        if os.environ.get("CI"):
            pytest.fail(reason)
        pytest.skip(reason)


def observe(folder: Path, subjects: Mapping[str, Sequence[str]]) -> dict[str, dict[str, dict[str, Any]]]:
    """What each library did with its subjects, by definition; the libraries at once, each in one process."""
    dead_end = "http://127.0.0.1:9"
    environment = {
        "PATH": os.environ["PATH"],
        "HOME": str(folder),
        "NLTK_DATA": str(folder),
        "HF_HUB_OFFLINE": "1",
        "OMP_NUM_THREADS": "1",
        "PYTHONHASHSEED": "0",
        **dict.fromkeys(("http_proxy", "https_proxy"), dead_end),
    }
    running = []
    for library, given in subjects.items():
        output = folder / f"{library}.json"
        log = (folder / f"{library}.log").open("w")
        process = subprocess.Popen(
            [str(VENV / "bin" / "python"), str(DRIVER), library, str(output), *given],
            env={**environment, "PYTHONPATH": str(ROOT / "src") if library == "whet" else ""},
            cwd=folder,
            stdout=log,
            stderr=log,
        )
        running.append((library, process, output, log))
    found = {}
    for library, process, output, log in running:
        code = process.wait()
        log.close()
        assert code == 0, Path(log.name).read_text()[-3000:]
        found[library] = json.loads(output.read_text())
    return found


class Comparison:
    """All differences of a subject, those expected sorted out."""

    def __init__(self, peer: dict[str, Any], own: dict[str, Any], expected: tuple[Expected, ...]) -> None:
        self.peer, self.own = peer, own
        self.used: set[Expected] = set()
        self.unexpected: dict[str, dict[str, tuple[Any, Any]]] = {}
        for name in self.peer:
            left = {}
            for path, values in self._differences(name).items():
                covering = [entry for entry in expected if entry.covers(name, path)]
                self.used.update(covering)
                if not covering:
                    left[path] = values
            self.unexpected[name] = left

    def _differences(self, name: str) -> dict[str, tuple[Any, Any]]:
        peer, own = self.peer[name], self.own[name]
        raised = [one.get("raised") if isinstance(one, dict) else None for one in (peer, own)]
        if raised[0] is None and raised[1] is None:
            return differences(peer, own)
        if raised[0] is None or raised[1] is None:
            return {"runs": (raised[0] or "runs", raised[1] or "runs")}
        return differences(raised[0][0], raised[1][0], "raised")
