"""`whet model build-tiny` and `whet model show`."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from whet.cli.main import main


@pytest.fixture
def room(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Any, ...]]:
    """Stands in for the room; the list holds what it was asked for."""
    calls: list[tuple[Any, ...]] = []

    def build_tiny(out: Path, *, seed: int, progress: Callable[[str, int, int], None]) -> Path:
        calls.append(("build", out, seed))
        progress("imitation", 1, 1)
        return out

    def describe(model: str | Path) -> dict[str, Any]:
        calls.append(("describe", str(model)))
        return {"architecture": "Qwen3ForCausalLM", "scores": [{"environment": "calculator", "reward": 0.4}]}

    for name, function in {"whet.models.build": build_tiny, "whet.models.card": describe}.items():
        module = ModuleType(name)
        setattr(module, function.__name__, function)
        monkeypatch.setitem(sys.modules, name, module)
    return calls


def test_show_describes_the_tiny_model_unless_told_another(room: list[tuple[Any, ...]]) -> None:
    main(["model", "show"])
    main(["model", "show", "runs/a/model"])
    assert room == [("describe", "whet/tiny"), ("describe", "runs/a/model")]


def test_show_prints_lines_and_tables_or_json(room: list[tuple[Any, ...]], capsys: pytest.CaptureFixture[str]) -> None:
    main(["model", "show"])
    out = capsys.readouterr().out
    assert "architecture  Qwen3ForCausalLM" in out
    assert "calculator" in out
    main(["model", "show", "--json"])
    assert json.loads(capsys.readouterr().out)["scores"][0]["reward"] == 0.4


def test_build_tiny_builds_where_it_is_told_and_describes_the_result(
    room: list[tuple[Any, ...]], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["model", "build-tiny", "--out", "there", "--seed", "4", "--json"]) == 0
    assert room == [("build", Path("there"), 4), ("describe", "there")]
    captured = capsys.readouterr()
    assert json.loads(captured.out)["architecture"] == "Qwen3ForCausalLM"
    assert captured.err == ""


def test_build_tiny_says_how_far_it_is(room: list[tuple[Any, ...]], capsys: pytest.CaptureFixture[str]) -> None:
    main(["model", "build-tiny"])
    assert capsys.readouterr().err == "imitation 1/1\n"
