"""`whet train run`: what reaches the room, what is printed, and which exit code a run's end becomes."""

from __future__ import annotations

import json
import sys
import tomllib
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from whet.cli.main import main
from whet.rl.config import RunConfig
from whet.rl.monitors.protocol import Outcome

CONFIG = """
max_steps = 3
batch_size = 8
rollouts_per_example = 4

[[env]]
id = "reverse-text"
"""


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.chdir(tmp_path)
    Path("small.toml").write_text(CONFIG)
    return "small.toml"


class Runs:
    """Stands in for the room: records how it was called and ends as it is told."""

    def __init__(self) -> None:
        self.calls: list[tuple[RunConfig, dict[str, Any]]] = []
        self.ends_with: Outcome | Exception | type[BaseException] = Outcome(
            "finished", 3, "done", report=Path("r.html")
        )

    def run_training(self, config: RunConfig, **options: Any) -> Outcome:
        self.calls.append((config, options))
        if not isinstance(self.ends_with, Outcome):
            raise self.ends_with
        return self.ends_with


@pytest.fixture
def runs(monkeypatch: pytest.MonkeyPatch) -> Runs:
    fake = Runs()
    module = ModuleType("whet.rl.run")
    module.run_training = fake.run_training  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "whet.rl.run", module)
    return fake


def test_overrides_reach_the_config_and_options_the_run(config: str, runs: Runs) -> None:
    arguments = ["--name", "warm", "--max_steps", "7", "--learning_rate", "1e-4", "--env.0.weight=2", "--resume"]
    assert main(["train", "run", config, *arguments]) == 0
    resolved, options = runs.calls[0]
    assert (resolved.name, resolved.max_steps, resolved.learning_rate) == ("warm", 7, 1e-4)
    assert resolved.env[0].weight == 2
    assert options == {"resume": True, "json_output": False}


def test_a_run_without_a_name_is_named_after_its_file(config: str, runs: Runs) -> None:
    main(["train", "run", config])
    assert runs.calls[0][0].name == "small"


def test_the_name_auto_takes_the_first_free_one(config: str, runs: Runs) -> None:
    Path("runs/small").mkdir(parents=True)
    main(["train", "run", config, "--name", "auto"])
    assert runs.calls[0][0].name == "small-2"


@pytest.mark.parametrize(("state", "code"), [("finished", 0), ("failed", 1), ("interrupted", 130)])
def test_the_end_of_a_run_becomes_an_exit_code(state: Any, code: int, config: str, runs: Runs) -> None:
    runs.ends_with = Outcome(state, 2, "message")
    assert main(["train", "run", config]) == code


def test_json_is_the_only_thing_on_standard_output(config: str, runs: Runs, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", "run", config, "--json"]) == 0
    outcome = json.loads(capsys.readouterr().out)
    assert (outcome["state"], outcome["step"], outcome["report"]) == ("finished", 3, "r.html")
    assert runs.calls[0][1]["json_output"] is True


def test_dry_run_prints_a_config_that_reads_back_and_starts_nothing(
    config: str, runs: Runs, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["train", "run", config, "--dry-run", "--seed", "5"]) == 0
    printed = tomllib.loads(capsys.readouterr().out)
    assert RunConfig.model_validate(printed).seed == 5
    assert runs.calls == []


@pytest.mark.parametrize(
    ("override", "said"),
    [
        (("--env.0.args", "{ nonsense = 1 }"), "nonsense"),
        (("--env.0.args.x", "nan"), "'env.0.args.x': nan is not a finite number"),
        (("--env.0.args", "{ x = [-inf] }"), "'env.0.args.x.0': -inf is not a finite number"),
        (("--env.0.taskset.x", "1e400"), "'env.0.taskset.x': inf is not a finite number"),
        (("--learning_rate", "inf"), "'learning_rate': inf is not a finite number"),
        (("--env.0.id", "no-such-environment"), "no-such-environment"),
        (("--model", "./no/such/model"), "no/such/model"),
        (("--env_file", '["missing.env"]'), "env_file missing.env"),
        (("--lora.path", "./no/adapter"), "[lora] path"),
        (("--learner.device", "cuda:4096"), '[learner] device = "cuda:4096"'),
        (("--inference.device", "cuda:4096"), '[inference] device = "cuda:4096"'),
        (("--inference.device", "gpu"), "inference.device"),
        (("--inference.engine", "openai"), "gives no token ids and takes no new weights"),
        (("--learner.base_dtype", "bfloat16"), "without [lora]"),
        (("--learner.base_dtype", "bfloat16", "--lora.rank", "4"), "needs learner.dtype = bfloat16"),
    ],
)
def test_dry_run_refuses_what_a_run_would(
    config: str, runs: Runs, capsys: pytest.CaptureFixture[str], override: tuple[str, ...], said: str
) -> None:
    assert main(["train", "run", config, "--dry-run", *override]) == 2
    assert said in capsys.readouterr().err


def test_a_dry_run_misses_the_key_of_a_tracker_as_a_run_does(
    config: str, runs: Runs, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("wandb", reason="needs the 'wandb' extra")
    for name in ("WANDB_API_KEY", "WANDB_MODE"):
        monkeypatch.delenv(name, raising=False)
    command = ["train", "run", config, "--dry-run", "--wandb.project", "p"]
    assert main(command) == 2
    assert "[wandb] needs the environment variable WANDB_API_KEY" in capsys.readouterr().err
    assert main([*command, "--wandb.offline"]) == 0
    Path("keys.env").write_text(f"WANDB_API_KEY={'0' * 40}\n")
    monkeypatch.setenv("WANDB_API_KEY", "")  # so that it is taken away again
    monkeypatch.delenv("WANDB_API_KEY")
    assert main([*command, "--env_file", "keys.env"]) == 0


def test_a_dry_run_notes_max_tokens_that_the_context_has_no_room_for(
    config: str, runs: Runs, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["train", "run", config, "--dry-run"]
    note = "# note: {} is more than the context of {} tokens leaves"
    assert main([*command, "--sampling.max_tokens", "5000", "--eval.sampling.max_tokens", "1024"]) == 0
    out = capsys.readouterr().out
    assert note.format("sampling.max_tokens = 5,000", "1,024") in out
    assert note.format("eval.sampling.max_tokens = 1,024", "1,024") in out
    assert main([*command, "--sampling.max_tokens", "1023"]) == 0
    assert "# note: " not in capsys.readouterr().out
    served = ["--inference.engine", "vllm", "--inference.max_model_len", "512", "--model", "a/b-of-nowhere"]
    assert main([*command, *served, "--json"]) == 0
    (noted,) = json.loads(capsys.readouterr().out)["notes"]
    assert noted.startswith("sampling.max_tokens = 512 is more than the context of 512 tokens leaves")
    assert main([*command, "--max_async_level", "1", "--max_off_policy_steps", "1"]) == 0
    assert "# note: max_off_policy_steps = 1 with max_async_level = 1" in capsys.readouterr().out


@pytest.mark.parametrize("name", ["wandb", "trackio"])
def test_a_dry_run_misses_the_library_of_a_tracker_as_a_run_does(
    config: str, runs: Runs, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setitem(sys.modules, name, None)
    assert main(["train", "run", config, "--dry-run", f"--{name}.project", "p"]) == 2
    assert f"pip install 'whet[{name}]'" in capsys.readouterr().err


def test_what_an_environment_prints_is_no_part_of_a_dry_run(
    config: str, runs: Runs, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    rows = "[{'question': 'q', 'answer': 'a'}]"
    made = f"whet.SingleTurnEnv(dataset={rows}, rubric=whet.Rubric())"
    loud = tmp_path / "loud.py"
    loud.write_text(f"import whet\ndef load_environment():\n    print('[loaded')\n    return {made}\n")
    assert main(["train", "run", config, "--dry-run", "--env.0.id", str(loud), "--env.0.args", "{}"]) == 0
    printed = capsys.readouterr()
    assert tomllib.loads(printed.out)["env"][0]["id"] == str(loud)
    assert "[loaded" in printed.err


def test_dry_run_prints_json_as_well(config: str, runs: Runs, capsys: pytest.CaptureFixture[str]) -> None:
    main(["train", "run", config, "--dry-run", "--json"])
    assert json.loads(capsys.readouterr().out)["max_steps"] == 3


def test_an_unknown_key_is_one_line_with_the_nearest_and_exit_code_two(
    config: str, runs: Runs, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["train", "run", config, "--max_step", "7"]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("error: ")
    assert "'max_step'" in captured.err
    assert "Did you mean 'max_steps'?" in captured.err
    assert captured.err.count("\n") == 1


def test_overrides_before_the_config_are_told_to_come_after_it(
    config: str, runs: Runs, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["train", "run", "--max_steps", "7", config]) == 2
    assert "CONFIG comes before --key value: whet train run small.toml" in capsys.readouterr().err


def test_a_config_that_is_not_there_is_named(runs: Runs, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", "run", "nowhere.toml"]) == 2
    assert "nowhere.toml" in capsys.readouterr().err


def test_ctrl_c_outside_a_step_ends_with_130(config: str, runs: Runs) -> None:
    runs.ends_with = KeyboardInterrupt
    assert main(["train", "run", config]) == 130
