"""A run records which environments it trains on, and is resumed with those alone."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

pytest.importorskip("torch")

from whet.envs.identity.record import digest_of_files
from whet.errors import RunError
from whet.rl.config import RunConfig, load_run_config
from whet.rl.run import run_training
from whet.rl.storage.run_directory import FILE
from whet.rl.stored.compare import compare_runs
from whet.rl.stored.stored_run import open_run

GAME = """
from whet import Rubric, SingleTurnEnv


def load_environment():
    rows = [{"question": f"Reverse the text: {text}", "answer": text[::-1]} for text in ("abc", "bcd", "cde", "def")]
    rubric = Rubric(funcs=[lambda completion: len(str(completion))])
    return SingleTurnEnv(dataset=rows, eval_dataset=rows, rubric=rubric)
"""
CONFIG = """
model = "whet/tiny"
max_steps = 1
batch_size = 4
rollouts_per_example = 2
[sampling]
max_tokens = 4
[[env]]
id = "./whet_test_recorded.py"
name = "game"
[eval]
before = false
after = false
[checkpointing]
save_every_n_steps = 1
[deployment]
threads = 1
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "whet_test_recorded.py").write_text(GAME)
    (tmp_path / "run.toml").write_text(CONFIG)
    return tmp_path


def config(*overrides: str) -> RunConfig:
    return load_run_config(Path("run.toml"), overrides)


def test_a_run_is_resumed_with_the_environment_that_it_began_with(folder: Path) -> None:
    assert run_training(config(), json_output=True).state == "finished"
    recorded = json.loads(Path("runs/run", FILE).read_text())
    game = folder / "whet_test_recorded.py"
    assert recorded["trained"]["game"]["content"] == digest_of_files(game)
    assert recorded["trained"]["game"]["path"] == str(game)

    game.write_text(GAME.replace("Reverse", "Turn"))
    before = digest_of_files(game)
    with pytest.raises(RunError) as raised:
        run_training(config("--max_steps", "2"), resume=True, json_output=True)
    heading, line, advice = str(raised.value).splitlines()
    assert "was trained on other environments" in heading
    assert line.strip() == f"game: content: was {recorded['trained']['game']['content']!r}, is {before!r}"
    assert "runs/run/checkpoints/step_N" in advice
    assert json.loads(Path("runs/run", FILE).read_text()) == recorded

    assert run_training(config("--name", "other"), json_output=True).state == "finished"
    compared = compare_runs(open_run("run"), open_run("other"))
    assert compared.config["environments.game.content"] == (recorded["trained"]["game"]["content"], before)

    game.write_text(GAME)
    assert run_training(config("--max_steps", "2"), resume=True, json_output=True).step == 2
