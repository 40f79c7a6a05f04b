"""The configs in configs/rl and configs/distill pass their dry run: keys, models, environments, and data."""

from __future__ import annotations

from pathlib import Path

import pytest

from whet.cli.main import main
from whet.rl.config import load_run_config
from whet.rl.plan import load_environments

CONFIGS = Path(__file__).parents[2] / "configs" / "rl"
GENERATED = "smollm2-terminal"
NAMES = {path.stem for path in CONFIGS.glob("*.toml")} - {GENERATED}
SMOLLM2 = {name for name in NAMES if name.startswith("smollm2-")}
FROM_THE_HUB = {"gsm8k"}
TAUGHT = {f"../distill/{path.stem}" for path in CONFIGS.with_name("distill").glob("*.toml")}  # by a run's model


@pytest.fixture(autouse=True)
def _from_the_root(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(CONFIGS.parents[1])


@pytest.mark.parametrize("name", sorted(NAMES - SMOLLM2 - FROM_THE_HUB))
def test_a_config_passes_its_dry_run(name: str) -> None:
    assert main(["train", "run", f"configs/rl/{name}.toml", "--dry-run"]) == 0


@pytest.mark.parametrize("name", sorted(SMOLLM2 | TAUGHT))
def test_a_config_of_smollm2_has_enough_tasks_to_train_and_to_evaluate(name: str) -> None:
    config = load_run_config(CONFIGS / f"{name}.toml")
    [[trained], held_out] = load_environments(config)
    assert not held_out
    assert len(trained.rows) >= config.max_steps * config.batch_size // config.rollouts_per_example
    assert len(trained.env.get_eval_dataset()) >= config.eval.num_examples


def test_config_of_generated_tasks_trains_on_those_that_its_comment_makes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    file = CONFIGS / f"{GENERATED}.toml"
    [command] = [line[2:] for line in file.read_text().splitlines() if line.startswith("# whet env generate")]
    assert main(command.split()[1:]) == 0
    config = load_run_config(file)
    [[trained], held_out] = load_environments(config)
    assert not held_out
    assert len(trained.rows) >= config.max_steps * config.batch_size // config.rollouts_per_example
    assert len(trained.env.get_eval_dataset()) == config.eval.num_examples


@pytest.mark.parts
@pytest.mark.parametrize("name", sorted(SMOLLM2))
def test_a_config_of_smollm2_passes_its_dry_run(name: str) -> None:
    assert main(["train", "run", f"configs/rl/{name}.toml", "--dry-run"]) == 0


@pytest.mark.parametrize("name", sorted(FROM_THE_HUB))
def test_a_config_whose_data_is_on_the_hub_loads(name: str) -> None:
    assert load_run_config(CONFIGS / f"{name}.toml").env
