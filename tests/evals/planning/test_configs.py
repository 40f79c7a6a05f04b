"""The configs in configs/eval are what their comments say they are, and run."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from whet.cli.main import main

ROOT = Path(__file__).parents[3]


@pytest.mark.parametrize(
    ("name", "evaluations"), [("several", 2), ("ablation", 6), ("models", 2)], ids=lambda value: str(value)
)
def test_a_config_runs(
    name: str, evaluations: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    config = ROOT / "configs" / "eval" / f"{name}.toml"
    assert main(["eval", "run", str(config), "-n", "1", "-r", "1", "-o", "out", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)["evaluations"]
    assert len(found) == evaluations
    assert all(one["rollouts"] == 1 and one["errors"] == 0 for one in found)
    for one in found:
        assert json.loads((Path(one["results"]) / "metadata.json").read_text())["config"]["varied"] == one["varied"]


def test_every_config_is_tried() -> None:
    assert {path.stem for path in (ROOT / "configs" / "eval").glob("*.toml")} == {"several", "ablation", "models"}
