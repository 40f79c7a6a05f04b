"""The configs in configs/eval are what their comments say they are, and run."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from whet.cli.main import main
from whet.evals.planning.plan import plan_evals

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


@pytest.mark.parts
def test_the_suite_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("reasoning_gym", reason="reasoning-gym is not installed")
    monkeypatch.chdir(tmp_path)
    config = ROOT / "configs" / "eval" / "suite.toml"
    assert main(["eval", "run", str(config), "-n", "2", "-t", "16", "--no-save", "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    [overall] = said["overall"]
    assert (len(said["evaluations"]), overall["environments"], overall["examples"]) == (11, 11, 22)
    means = [one["reward"]["mean"] for one in said["evaluations"]]
    assert overall["reward"]["mean"] == pytest.approx(sum(means) / 11)


def test_the_suite_is_eleven_evaluations() -> None:
    configs = plan_evals([str(ROOT / "configs" / "eval" / "suite.toml")], {})
    assert [config.varied.get("args.task", config.environment) for config in configs][:4] == [
        *("instructions", "arithmetic", "reverse-text", "chain_sum")
    ]
    assert len(configs) == 11


def test_every_config_is_tried() -> None:
    assert {path.stem for path in (ROOT / "configs" / "eval").glob("*.toml")} == {
        "several",
        "ablation",
        "models",
        "suite",
    }
