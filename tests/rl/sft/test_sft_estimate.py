"""A dry run of fine-tuning says what the data comes to and what a run will hold, and starts nothing."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")

from whet.cli.main import main
from whet.inference.model_names import resolve_model
from whet.inference.rendering.chat_renderer import ChatRenderer
from whet.rl.estimate import Estimate, lines
from whet.rl.learner.make import make_learner
from whet.rl.memory import LEARNER_HEAP, PROCESSES
from whet.rl.plan import plan_training
from whet.rl.sft.config import SftConfig
from whet.rl.sft.data import load_data

Make = Callable[..., SftConfig]


def estimate(config: SftConfig) -> Estimate:
    """What a dry run of the config estimates."""
    return plan_training(config).estimate


@pytest.fixture
def config(tmp_path: Path, write_rows: Any) -> Make:
    path = write_rows(20)

    def make(**changes: Any) -> SftConfig:
        settings = {"name": "run", "batch_size": 8, "runs_directory": tmp_path / "runs", "data": {"path": path}}
        return SftConfig.model_validate(settings | changes)

    return make


def test_it_counts_rows_tokens_and_steps_as_the_run_will(config: Make, renderer: ChatRenderer) -> None:
    made = config(num_epochs=3, validation={"fraction": 0.2}, batch_tokens=200)
    data = load_data(made, renderer, context=1024)
    found = estimate(made)
    assert found.data == {
        "rows": 16,
        "rows of validation": 4,
        "tokens": sum(example.tokens for example in data.train),
        "longest": max(example.tokens for example in data.train + data.validation),
    }
    assert found.steps == data.batches(made).left()
    assert estimate(config(max_steps=7)).steps == 7


def test_memory_is_that_of_a_learner_and_of_an_engine_only_where_something_is_evaluated(
    config: Make, tmp_path: Path
) -> None:
    alone = estimate(config())
    learner = make_learner(
        resolve_model("whet/tiny"), optimizer=config().optimizer, lora=None, max_steps=1, seed=0,
        publish_directory=tmp_path,
    )  # fmt: skip
    assert {name.partition(":")[0] for name in alone.memory} == {"learner", PROCESSES, LEARNER_HEAP}
    assert alone.memory["learner: weights"] == 4 * learner.parameters
    evaluated = estimate(config(eval={"env": [{"id": "reverse-text"}]}))
    assert evaluated.memory["sampler: weights"] == 4 * learner.parameters
    assert {name: evaluated.memory[name] for name in alone.memory} == alone.memory


def test_no_more_is_counted_than_a_batch_has_and_no_less_than_the_longest_row(config: Make) -> None:
    def activations(**changes: Any) -> int:
        return estimate(config(**changes)).memory["learner: activations"]

    longest = estimate(config()).data["longest"]
    small, large = ({"learner": {"micro_batch_tokens": tokens}} for tokens in (1, 10**6))
    assert activations(**large) == 8 * activations(**small)
    assert activations(batch_size=1, **large) == activations(**small)
    assert activations(batch_tokens=2 * longest, **large) == 2 * activations(**small)


def test_what_would_have_to_be_downloaded_is_named_and_the_rest_is_said(config: Make) -> None:
    hub = estimate(config(data={"dataset": "owner/name", "max_length": 64}, num_epochs=2))
    assert any("owner/name is read when the run begins" in line for line in hub.unknown)
    assert (hub.steps, hub.data) == (None, {})
    assert hub.total is not None
    unknown = estimate(config(model="nobody/such-a-model"))
    assert unknown.total is None
    assert sum(line.startswith("unknown: ") for line in lines(unknown)) == 3


def test_a_step_takes_what_it_took_a_run_of_the_same_work(config: Make, tmp_path: Path) -> None:
    run = tmp_path / "runs" / "before"
    run.mkdir(parents=True)
    (run / "config.toml").write_text(config().settled().to_toml())
    rows = [{"step": step, "time/step": seconds} for step, seconds in enumerate((9.0, 0.5, 0.25), 1)]
    (run / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    found = estimate(config(max_steps=7200))
    assert found.step_seconds == 0.5
    assert f"# a step takes 0.50 s (median of 3 steps of {run}), 7,200 steps 1.0 h" in [f"# {x}" for x in lines(found)]
    assert estimate(config(batch_size=4)).step_seconds is None


def test_the_command_prints_a_config_file_and_finds_what_is_wrong_with_the_data(
    tmp_path: Path, write_rows: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    write_rows(5)
    Path("r.toml").write_text('batch_size = 2\n[data]\npath = "rows.jsonl"\n')
    assert main(["train", "sft", "r.toml", "--dry-run"]) == 0
    out = capsys.readouterr().out
    assert SftConfig.model_validate(tomllib.loads(out)).name == "r"
    assert "# rows 5, tokens " in out
    assert "# 3 steps" in out
    assert "; the data comes on top" in out
    assert main(["train", "sft", "r.toml", "--dry-run", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["estimate"]["data"]["rows"] == 5
    write_rows([{"messages": []}])
    assert main(["train", "sft", "r.toml", "--dry-run"]) == 2
    assert "rows.jsonl, line 1" in capsys.readouterr().err
    assert not Path("runs").exists()
