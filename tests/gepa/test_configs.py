"""The configs in configs/gepa are what their comments say they are, and load."""

from __future__ import annotations

from pathlib import Path

import pytest

from whet.cli.main import main
from whet.gepa.options import load_config

pytest.importorskip("gepa")
pytest.importorskip("openai")

CONFIGS = Path(__file__).parents[2] / "configs" / "gepa"


@pytest.mark.parametrize("name", sorted(path.stem for path in CONFIGS.glob("*.toml")))
def test_a_config_comes_to_a_plan(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    # Made-up problems stand in for those of the hub.
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    path = CONFIGS / f"{name}.toml"
    assert main(["gepa", "run", str(path), "--dry-run"]) == 0
    printed = "".join(capsys.readouterr())
    assert f"{load_config(str(path), {}).max_calls} calls: " in printed
    assert "nothing was run" in printed
    assert not (tmp_path / "runs").exists()


def test_there_is_one_for_a_prompt_one_for_several_environments_and_one_for_tools() -> None:
    simple, several, agent = (
        load_config(str(CONFIGS / f"{name}.toml"), {}) for name in ("gsm8k", "several", "wiki-search")
    )
    assert (len(simple.env), simple.components) == (1, ("system_prompt",))
    assert [env.weight for env in several.env] == [2, 1]
    assert agent.components == ("system_prompt", "tools")
    assert len(list(CONFIGS.glob("*.toml"))) == 3


def test_the_plan_says_how_long_answers_without_a_limit_may_become(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    command = ["gepa", "run", "reverse-text", "-m", "whet/tiny", "-B", "500", "--dry-run"]
    assert main(command) == 0
    assert "no max_tokens: an answer that does not end goes on until" in "".join(capsys.readouterr())
    assert main([*command, "--max-tokens", "16"]) == 0
    assert "no max_tokens" not in "".join(capsys.readouterr())
