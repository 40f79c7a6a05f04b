"""The config of supervised fine-tuning is strict: what has no effect or contradicts is an error that says so."""

from pathlib import Path

import pytest

from whet.config import read_toml
from whet.errors import ConfigError
from whet.inference.rendering.chat_renderer import ChatRenderer
from whet.rl.config import load_run_config
from whet.rl.sft.config import load_sft_config
from whet.rl.sft.data import load_data

SMALL = '[data]\npath = "rows.jsonl"\n'


def load(tmp_path: Path, text: str, *overrides: str):
    path = tmp_path / "small.toml"
    path.write_text(text)
    return load_sft_config(path, list(overrides))


def test_a_small_config_is_one_epoch_named_after_its_file(tmp_path: Path) -> None:
    config = load(tmp_path, SMALL)
    assert (config.name, config.epochs, config.max_steps) == ("small", 1, None)


def test_an_env_file_below_wandb_is_that_of_the_file(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    config = load(tmp_path, SMALL + '[wandb]\nenv_file = "keys.env"\n')
    assert (config.env_file, config.wandb is not None) == ((Path("keys.env"),), True)
    (warning,) = caplog.messages
    assert "wandb.env_file is read as env_file" in warning


def test_what_is_saved_reads_back_as_the_same_config(tmp_path: Path) -> None:
    config = load(tmp_path, SMALL + "[validation]\nfraction = 0.1\n[lora]\nrank = 4\n", "--num_epochs", "3")
    saved = tmp_path / "saved.toml"
    saved.write_text(config.to_toml())
    assert load_sft_config(saved) == config
    assert read_toml(saved)["data"]["path"] == "rows.jsonl"


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "'data' is missing"),
        ("[data]\n", "give either path"),
        ('[data]\npath = "a"\ndataset = "b/c"\n', "give either path"),
        ('num_epoch = 1\n[data]\npath = "a"\n', "Did you mean 'num_epochs'"),
        ('[data]\npth = "a"\n', "Did you mean 'data.path'"),
        ('num_epochs = 2\nmax_steps = 3\n[data]\npath = "a"\n', "drop one of the two"),
        (SMALL + "[validation]\n", "needs either path or fraction"),
        (SMALL + '[validation]\npath = "b"\nfraction = 0.5\n', "needs either path or fraction"),
        (SMALL + "[sampling]\ntemperature = 0.5\n", r"\[sampling\] would have no effect"),
        (SMALL + "[eval]\ninterval = 5\n", r"no \[\[eval.env\]\]"),
        ('[data]\npath = "a"\ntext = true\nenable_thinking = true\n', "no chat format"),
        (SMALL + "[learner]\nkeep_token_details = false\n", "no rollout is trained on"),
        ('[[env]]\nid = "reverse-text"\n', "is a config of whet train run"),
        (SMALL + "[optimizer]\ndecay_start = 0.5\n", "never decays"),
        (SMALL + "[budget]\nmax_cost = 2.0\n", r"budget\.max_cost would have no effect: no rollout is trained on"),
        (SMALL + "[early_stop]\n", r"set validation\.interval"),
        (SMALL + "[validation]\nfraction = 0.5\n[early_stop]\n", r"set validation\.interval"),
        (SMALL + '[early_stop]\nmetric = "reward"\n', r"set eval\.interval"),
        (
            SMALL + '[validation]\nfraction = 0.5\ninterval = 1\n[early_stop]\nenvironment = "a"\n',
            "validation/loss is of no environment",
        ),
        (
            SMALL + '[eval]\ninterval = 1\n[[eval.env]]\nid = "a"\n'
            '[early_stop]\nmetric = "reward"\nenvironment = "b"\n',
            "'b' is not evaluated; choose from a",
        ),
    ],
)
def test_a_mistake_is_named(tmp_path: Path, text: str, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        load(tmp_path, text)


def test_a_config_of_fine_tuning_is_not_one_of_reinforcement_learning(tmp_path: Path) -> None:
    (tmp_path / "small.toml").write_text(SMALL)
    with pytest.raises(ConfigError, match="is a config of whet train sft"):
        load_run_config(tmp_path / "small.toml")


def test_the_sample_is_whole(monkeypatch: pytest.MonkeyPatch, renderer: ChatRenderer) -> None:
    root = Path(__file__).parents[3]
    monkeypatch.chdir(root)
    data = load_data(load_sft_config(root / "configs" / "sft" / "hours.toml"), renderer, context=1024)
    assert (len(data.train), len(data.validation)) == (42, 6)
