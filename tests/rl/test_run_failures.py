"""What goes wrong in a run ends in one clear message, with everything that was good still there."""

import json
import zlib
from pathlib import Path

import pytest

from whet.errors import ConfigError, DatasetError, EnvironmentLoadError, ModelLoadError
from whet.rl.config import RunConfig, load_run_config
from whet.rl.monitors.protocol import Outcome
from whet.rl.run import run_training
from whet.rl.storage.checkpoints import newest_checkpoint

ENVIRONMENT = """
import whet

def rows(n):
    return {rows}

def reward(completion, **kwargs):
    {reward}

def load_environment():
    return whet.SingleTurnEnv(dataset=rows(8), eval_dataset=rows(2), rubric=whet.Rubric(funcs=[reward]))
"""
GOOD_ROWS = '[{"question": f"Say {i}", "answer": str(i)} for i in range(n)]'
LENGTH = "return float(len(completion[-1]['content'] or '')) / 10"


def module_of(directory: Path) -> Path:
    """A file name of its own for each test: a module is imported once in a process."""
    return directory / f"made_up_{zlib.crc32(str(directory).encode())}.py"


@pytest.fixture
def config(tmp_path: Path):
    def make(*overrides: str, rows: str = GOOD_ROWS, reward: str = LENGTH) -> RunConfig:
        module = module_of(tmp_path)
        module.write_text(ENVIRONMENT.replace("{rows}", rows).replace("{reward}", reward))
        path = tmp_path / "run.toml"
        path.write_text(
            f'name = "run"\nmax_steps = 3\nbatch_size = 8\nrollouts_per_example = 4\nlearning_rate = 1e-4\n'
            f'runs_directory = "{tmp_path / "runs"}"\n[sampling]\nmax_tokens = 6\n[[env]]\nid = "{module}"\n'
            f"name = 'made-up'\n[eval]\nbefore = false\nafter = false\n[checkpointing]\nsave_every_n_steps = 1\n"
            "[deployment]\nthreads = 1\n"
        )
        return load_run_config(path, list(overrides))

    return make


def outcome_of(config: RunConfig) -> Outcome:
    return run_training(config, json_output=True)


def test_a_healthy_run_finishes_so_that_the_failures_below_mean_something(config) -> None:
    made = config("--sampling.max_tokens", "6", "--eval.sampling.max_tokens", "5000")
    outcome = outcome_of(made)
    assert (outcome.state, outcome.step) == ("finished", 3)
    assert outcome.weights is not None
    log = "".join(file.read_text() for file in (made.directory / "logs").iterdir())
    assert "eval.sampling.max_tokens = 5,000 is more than the context of 1,024 tokens leaves" in log
    assert (outcome.weights / "model.safetensors").is_file()


def test_a_reward_that_always_raises_stops_the_run_and_names_it(config) -> None:
    outcome = outcome_of(config(reward="raise RuntimeError('the judge is down')"))
    assert outcome.state == "failed"
    assert "made-up" in outcome.message
    assert "the judge is down" in outcome.message


FLAKY = """
    import random
    draws = globals().setdefault("draws", random.Random(0))
    if draws.random() < RATE:
        raise RuntimeError("once in a while")
    return draws.random()
"""


@pytest.mark.parametrize("group", [4, 16])
@pytest.mark.parametrize("rate", [0.05, 0.1, 0.3])
def test_groups_are_trained_without_the_rollouts_that_failed(config, tmp_path: Path, rate: float, group: int) -> None:
    large = ("--batch_size", "32", "--rollouts_per_example", str(group), "--sampling.max_tokens", "2")
    outcome = outcome_of(config(*large, "--max_retries", "0", reward=FLAKY.strip().replace("RATE", str(rate))))
    assert (outcome.state, outcome.step) == ("finished", 3), outcome.message
    run = tmp_path / "runs" / "run"
    metrics = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    errors = [json.loads(line) for line in (run / "errors.jsonl").read_text().splitlines()]
    whole = [line for line in metrics if not line["groups/replaced"]]
    assert whole
    for line in whole:
        errored = sum(error["rollouts"] for error in errors if error["step"] == line["step"])
        assert line["rollouts/errored_frac"] == errored / 32
    assert sum(error["rollouts"] for error in errors) > 0


def test_rollouts_that_fail_are_attempted_again_as_often_as_the_config_says(config) -> None:
    fails = "globals()['calls'] = globals().get('calls', 0) + 1\n    raise RuntimeError(str(calls))"
    alone = ("--batch_size", "1", "--rollouts_per_example", "1", "--buffer.max_errored_groups", "2")
    outcome = outcome_of(config(*alone, "--max_retries", "3", reward=fails))
    assert outcome.state == "failed"
    assert "2 groups in a row had errored rollouts (2 in all)" in outcome.message
    assert "RuntimeError: 4" in outcome.message, "of the last of 4 attempts at the first group"


@pytest.mark.parametrize("value", ["float('nan')", "float('inf')", "'good'", "None"])
def test_a_reward_that_is_no_finite_number_is_an_error_and_never_a_zero(config, value: str) -> None:
    outcome = outcome_of(config(reward=f"return {value}"))
    assert outcome.state == "failed"
    assert "reward" in outcome.message


def test_a_row_without_a_prompt_is_found_before_anything_is_made(config, tmp_path: Path) -> None:
    with pytest.raises(DatasetError, match="row 0"):
        outcome_of(config(rows='[{"answer": "1"}] * n'))
    assert not (tmp_path / "runs").exists()


def test_an_environment_that_raises_on_import_says_where(config, tmp_path: Path) -> None:
    broken = config()
    module_of(tmp_path).write_text("import whet\n1 / 0\n")
    with pytest.raises(EnvironmentLoadError, match=r"\.py.*2"):
        outcome_of(broken)


def test_an_environment_that_is_not_there_says_how_to_get_it(config) -> None:
    with pytest.raises(EnvironmentLoadError, match="install"):
        outcome_of(config("--env.0.id", "no-such-environment"))


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (None, "config.json"),
        ('{"model_type": "gpt2", "architectures": ["GPT2LMHeadModel"]}', "gpt2"),
        ("{torn", "config.json"),
    ],
)
def test_a_model_that_cannot_be_run_is_refused_by_name(
    config, tmp_path: Path, content: str | None, expected: str
) -> None:
    model = tmp_path / "model"
    model.mkdir()
    if content is not None:
        (model / "config.json").write_text(content)
    with pytest.raises((ModelLoadError, ConfigError), match=expected):
        outcome_of(config("--model", str(model)))
    assert not (tmp_path / "runs").exists()


def test_weights_that_blow_up_stop_the_run_and_the_good_checkpoint_stays(config, tmp_path: Path) -> None:
    outcome = outcome_of(config("--learning_rate", "1e30", "--max_steps", "20"))
    assert outcome.state == "failed"
    assert "not finite" in outcome.message
    checkpoint, passed_over = newest_checkpoint(tmp_path / "runs" / "run" / "checkpoints")
    assert checkpoint is not None
    assert passed_over == []
    assert outcome.next_command is not None
    status = json.loads((tmp_path / "runs" / "run" / "status.json").read_text())
    assert (status["state"], status["last_error"]) == ("failed", outcome.message)


@pytest.mark.parts
@pytest.mark.parametrize(
    ("bytes_allowed", "named"), [(3_000, "rollouts"), (2_000_000, "weights"), (5_000_000, "checkpoint")]
)
def test_a_disk_that_takes_no_more_fails_with_the_file_and_resumes(
    config, warm, tmp_path: Path, bytes_allowed: int, named: str
) -> None:
    config()
    output = warm.run("train", "run", tmp_path / "run.toml", largest_file=bytes_allowed, expected=1)
    assert named in output
    assert "Traceback" not in output
    resumed = run_training(load_run_config(tmp_path / "run.toml"), resume=True, json_output=True)
    assert (resumed.state, resumed.step) == ("finished", 3)
