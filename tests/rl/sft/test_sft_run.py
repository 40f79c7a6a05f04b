"""A run of supervised fine-tuning with the tiny model: what it learns, what it leaves behind, how it goes on."""

import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from whet.errors import ConfigError, DatasetError, ModelLoadError, RunError
from whet.inference.model_names import resolve_model
from whet.inference.rendering.chat_renderer import ChatRenderer
from whet.rl.data.batch import pack
from whet.rl.learner.config import OptimizerConfig
from whet.rl.learner.make import make_learner
from whet.rl.monitors.protocol import Outcome
from whet.rl.sft.config import SftConfig
from whet.rl.sft.data import load_data
from whet.rl.sft.run import CROSS_ENTROPY, imitate, run_sft
from whet.system.files import read_lines

Run = Callable[..., Outcome]


@pytest.fixture
def config(tmp_path: Path, write_rows: Any) -> Callable[..., SftConfig]:
    path = write_rows(20)

    def make(**changes: Any) -> SftConfig:
        settings = {
            "name": "run",
            "batch_size": 8,
            "learning_rate": 1e-3,
            "runs_directory": tmp_path / "runs",
            "data": {"path": path},
            "checkpointing": {"save_every_n_steps": 2},
            "deployment": {"threads": 1},
        }
        return SftConfig.model_validate(settings | changes)

    return make


@pytest.fixture
def run(config: Callable[..., SftConfig]) -> Run:
    return lambda *, resume=False, **changes: run_sft(config(**changes), resume=resume, json_output=True)


def metrics(tmp_path: Path) -> list[dict[str, Any]]:
    return list(read_lines(tmp_path / "runs" / "run" / "metrics.jsonl"))


def trained(tmp_path: Path) -> list[str]:
    return [row for line in read_lines(tmp_path / "runs" / "run" / "ledger.jsonl") for row in line["groups"]]


def test_the_loss_falls_on_rows_that_are_trained_and_on_rows_that_are_not(run: Run, tmp_path: Path) -> None:
    outcome = run(num_epochs=4, validation={"fraction": 0.2, "interval": 4})
    assert (outcome.state, outcome.step) == ("finished", 8)
    rows = metrics(tmp_path)
    validated = {row["step"]: row["validation/loss"] for row in rows if "validation/loss" in row}
    assert list(validated) == [0, 4, 8]
    assert validated[8] < 0.5 * validated[0]
    assert rows[-1]["optim/loss"] < 0.5 * rows[1]["optim/loss"]


def test_every_row_is_in_the_ledger_once_an_epoch(run: Run, tmp_path: Path) -> None:
    run(num_epochs=2, validation={"fraction": 0.2})
    counted = Counter(trained(tmp_path))
    assert set(counted.values()) == {1}
    epochs = Counter(name.partition("-")[0] for name in counted)
    assert epochs == {"1": 16, "2": 16}


def test_the_run_directory_holds_what_one_of_reinforcement_learning_does(
    run: Run, tmp_path: Path, read_page: Any
) -> None:
    outcome = run(max_steps=2)
    directory = tmp_path / "runs" / "run"
    assert {path.name for path in directory.iterdir()} >= {
        *("config.toml", "status.json", "metrics.jsonl", "ledger.jsonl", "report.html", "checkpoints", "model", "logs")
    }
    status = json.loads((directory / "status.json").read_text())
    assert (status["state"], status["step"], status["max_steps"]) == ("finished", 2, 2)
    assert outcome.report is not None
    page = read_page(outcome.report)
    assert "imitates" in page.text
    assert {"optim/loss", "optim/grad_norm", "optim/lr", "perf/tokens_per_s", "data/epoch"} <= metrics(tmp_path)[
        0
    ].keys()


def test_an_adapter_is_trained_and_exported(run: Run, tmp_path: Path) -> None:
    outcome = run(max_steps=8, lora={"rank": 4}, learning_rate=3e-3)
    assert outcome.weights == tmp_path / "runs" / "run" / "adapters" / "step_8"
    adapter = load_file(outcome.weights / "adapter_model.safetensors")
    assert any(tensor.abs().sum() > 0 for name, tensor in adapter.items() if "lora_B" in name)
    assert metrics(tmp_path)[-1]["optim/loss"] < metrics(tmp_path)[0]["optim/loss"]


def test_environments_are_evaluated_before_and_after(run: Run, tmp_path: Path) -> None:
    evaluation = {"num_examples": 2, "greedy": False, "env": [{"id": "reverse-text"}]}
    outcome = run(max_steps=1, eval=evaluation, sampling={"max_tokens": 8})
    assert [row["moment"] for row in read_lines(tmp_path / "runs" / "run" / "evals.jsonl")] == ["before", "after"]
    assert outcome.next_command == f"whet eval run reverse-text -m {outcome.weights}"


def test_a_finished_run_goes_on_when_it_is_given_more_epochs(run: Run, tmp_path: Path) -> None:
    run(num_epochs=1)
    outcome = run(num_epochs=2, resume=True)
    assert outcome.step == 6  # 3 steps for each epoch, since the first ended with a short one
    assert Counter(trained(tmp_path)) == {f"{epoch}-{row}": 1 for epoch in (1, 2) for row in range(1, 21)}


def used(tmp_path: Path, step: int) -> dict[str, Any]:
    state = tmp_path / "runs" / "run" / "checkpoints" / f"step_{step}" / "curriculum.json"
    found: dict[str, Any] = json.loads(state.read_text())["budget"]
    return found


def test_a_budget_of_tokens_ends_a_run_with_its_weights_and_a_larger_one_goes_on(run: Run, tmp_path: Path) -> None:
    whole = run(name="whole", num_epochs=2)
    lengths = [row["seq_len/mean"] * row["data/rows"] for row in read_lines(tmp_path / "runs/whole/metrics.jsonl")]
    two = round(sum(lengths[:2]))
    outcome = run(num_epochs=2, budget={"max_tokens": two})
    assert (outcome.state, outcome.step) == ("finished", 2)
    assert outcome.message == (
        f"after 2 of {whole.step} steps: budget.max_tokens = {two} is used up ({two} tokens were trained)"
    )
    assert outcome.weights is not None
    assert used(tmp_path, 2)["tokens"] == two
    assert "--resume" in str(outcome.next_command)
    assert run(num_epochs=2, budget={"max_tokens": two}, resume=True).step == 2
    assert run(num_epochs=2, budget={"max_tokens": 10**6}, resume=True).message == f"{whole.step} steps"
    assert used(tmp_path, whole.step)["tokens"] == round(sum(lengths))


def test_a_budget_of_rows_ends_a_run_as_its_last_step_does_and_a_larger_one_continues(run: Run, tmp_path: Path) -> None:
    keys: dict[str, Any] = {"num_epochs": 2, "validation": {"fraction": 0.2}}
    whole = run(**keys, name="whole")
    expected = list(read_lines(tmp_path / "runs/whole/metrics.jsonl"))
    outcome = run(**keys, budget={"max_rows": 23})
    assert (outcome.state, outcome.step) == ("finished", 2)
    assert outcome.message == "after 2 of 4 steps: budget.max_rows = 23 is used up"
    assert [row["step"] for row in metrics(tmp_path) if "validation/loss" in row] == [0, 2]
    assert run(**keys, budget={"max_rows": 32}, resume=True).message == whole.message == "4 steps"
    assert metrics(tmp_path)[-1]["validation/loss"] == expected[-1]["validation/loss"]
    with pytest.raises(ConfigError, match="max_rows = 7 is less than the first batch"):
        run(name="none", budget={"max_rows": 7})


def test_a_budget_that_is_used_up_by_the_last_step_ends_nothing_early(run: Run) -> None:
    assert run(max_steps=1, budget={"max_tokens": 1}).message == "1 steps"


def test_time_is_a_budget_too(run: Run) -> None:
    outcome = run(max_steps=10_000, budget={"max_time": 0.2})
    assert outcome.state == "finished"
    assert "budget.max_time = 0.2 s is used up" in outcome.message
    assert outcome.step < 10_000


def test_a_validation_loss_that_gets_no_better_ends_a_run_also_across_a_resume(run: Run, tmp_path: Path) -> None:
    changes: dict[str, Any] = {
        "num_epochs": 20,
        "learning_rate": 1e-9,  # nothing is learned, so nothing gets better
        "validation": {"fraction": 0.2, "interval": 2},
        "early_stop": {"patience": 3, "min_delta": 0.01},
    }
    interrupted = run(**changes | {"budget": {"max_tokens": 1}})
    assert interrupted.step == 1
    outcome = run(**changes, resume=True)
    assert (outcome.state, outcome.step) == ("finished", 6)
    first = metrics(tmp_path)[0]["validation/loss"]
    assert outcome.message == (
        f"after 6 of 40 steps: validation/loss has not been better than {first:.3f} (step 0) for 3 validations: "
        "early_stop.patience = 3"
    )
    assert [row["step"] for row in metrics(tmp_path) if "validation/loss" in row] == [0, 2, 4, 6]


def test_held_out_rewards_may_end_it_instead(run: Run) -> None:
    outcome = run(
        max_steps=9,
        learning_rate=1e-9,
        sampling={"max_tokens": 4},
        eval={"num_examples": 2, "interval": 1, "greedy": False, "after": False, "env": [{"id": "reverse-text"}]},
        early_stop={"metric": "reward", "patience": 2},
    )
    assert outcome.state == "finished"
    assert "eval reward has not been better than" in outcome.message
    assert outcome.step == 2


WAITS = """
import asyncio

import whet


class Waits(whet.SingleTurnEnv):
    async def setup_state(self, state, **kwargs):
        await asyncio.Event().wait()


def load_environment():
    rows = [{"question": "Say 1", "answer": "1"}]
    return Waits(dataset=rows, eval_dataset=rows, rubric=whet.Rubric(funcs=[lambda completion: 1.0]))
"""


def test_what_waits_for_ever_ends_the_run_with_a_checkpoint_and_a_name(run: Run, tmp_path: Path) -> None:
    (tmp_path / "waits_for_ever.py").write_text(WAITS)
    outcome = run(
        max_steps=5,
        eval={"num_examples": 1, "interval": 3, "before": False, "env": [{"id": str(tmp_path / "waits_for_ever.py")}]},
        watchdog={"report_seconds": 0.2, "act_seconds": 4, "first_seconds": 4},
    )
    assert (outcome.state, outcome.step) == ("failed", 3)
    assert "the run has waited" in outcome.message
    assert "for the evaluation of waits_for_ever" in outcome.message
    assert outcome.message.endswith("There is a checkpoint of step 3.")
    assert "--resume" in str(outcome.next_command)
    assert "stalled: " in (tmp_path / "runs" / "run" / "logs" / "run.log").read_text()


def test_a_run_begins_where_another_one_was(run: Run, tmp_path: Path) -> None:
    run(max_steps=4, validation={"fraction": 0.2})
    run(name="adapted", max_steps=2, lora={"rank": 2})
    losses = [row["validation/loss"] for row in metrics(tmp_path) if "validation/loss" in row]
    checkpoints = tmp_path / "runs" / "run" / "checkpoints"
    assert run(name="on", model=str(checkpoints / "step_4"), max_steps=1, validation={"fraction": 0.2}).step == 1
    on = next(read_lines(tmp_path / "runs" / "on" / "metrics.jsonl"))
    assert on["validation/loss"] == pytest.approx(losses[-1], rel=1e-5)
    adapter = tmp_path / "runs" / "adapted" / "checkpoints" / "step_2"
    outcome = run(name="adapter-on", max_steps=1, lora={"rank": 2, "path": str(adapter)})
    assert (outcome.state, outcome.step) == ("finished", 1)


def test_the_share_of_the_device_s_peak_is_told_where_the_peak_is_known(run: Run, tmp_path: Path) -> None:
    run(max_steps=1, learner={"peak_tflops": 1.0})
    assert 0 < metrics(tmp_path)[0]["perf/mfu"] < 1


def test_another_seed_is_another_order(run: Run, tmp_path: Path) -> None:
    run(max_steps=1)
    run(max_steps=1, name="other", seed=1)
    ledgers = [(tmp_path / "runs" / name / "ledger.jsonl").read_text() for name in ("run", "other")]
    assert ledgers[0] != ledgers[1]


def test_a_run_does_not_go_on_with_another_config(run: Run, config: Callable[..., SftConfig]) -> None:
    run(max_steps=1)
    with pytest.raises(RunError, match=r"data\.train_on: was 'assistant', is 'last'"):
        run(max_steps=1, resume=True, data={"path": config().data.path, "train_on": "last"})


def test_a_run_does_not_go_on_with_other_rows(run: Run, write_rows: Any) -> None:
    run(max_steps=2)
    write_rows(19)
    outcome = run(max_steps=4, resume=True)
    assert outcome.state == "failed"
    assert "the data is not what the checkpoint of step 2 was trained on" in outcome.message


def test_what_is_wrong_is_found_before_a_directory_is_made(run: Run, tmp_path: Path) -> None:
    with pytest.raises(DatasetError, match="no such file"):
        run(data={"path": tmp_path / "nowhere.jsonl"})
    with pytest.raises(ModelLoadError, match="no model directory"):
        run(model="./nowhere")
    with pytest.raises(RunError, match="is not a run"):
        run(resume=True)
    assert not (tmp_path / "runs").exists()


def gradients(learner: Any) -> dict[str, torch.Tensor]:
    return {name: p.grad.clone() for name, p in learner.weights.parameters()}


def test_packed_rows_have_the_gradients_of_rows_one_at_a_time(
    config: Callable[..., SftConfig], renderer: ChatRenderer, tmp_path: Path
) -> None:
    data = load_data(config(), renderer, context=1024)
    sequences = [sequence for example in data.train[:6] for sequence in example.sequences]
    path = resolve_model("whet/tiny")
    packed, apart = (
        make_learner(
            path, optimizer=OptimizerConfig(), lora=None, max_steps=1, seed=0, publish_directory=tmp_path, threads=1
        )
        for _ in range(2)
    )
    packed.forward_backward(pack(sequences), CROSS_ENTROPY)
    for sequence in sequences:
        apart.forward_backward(pack([sequence]), CROSS_ENTROPY)
    for name, gradient in gradients(packed).items():
        torch.testing.assert_close(gradient, gradients(apart)[name], atol=2e-4, rtol=1e-4)


def test_a_step_takes_the_mean_over_the_trained_tokens_alone(
    config: Callable[..., SftConfig], renderer: ChatRenderer, tmp_path: Path
) -> None:
    data = load_data(config(), renderer, context=1024)
    sequences = [sequence for example in data.train[:3] for sequence in example.sequences]
    learner = make_learner(
        resolve_model("whet/tiny"),
        optimizer=OptimizerConfig(type="sgd", momentum=0.0),
        lora=None,
        max_steps=1,
        seed=0,
        publish_directory=tmp_path,
        threads=1,
    )
    logprobs = learner.token_logprobs(pack(sequences))
    before = {name: p.detach().clone() for name, p in learner.weights.parameters()}
    loss, optim = imitate(learner, sequences, 0.5, None)
    assert loss.tokens == sum(int(sequence.trained.sum()) for sequence in sequences)
    assert loss.loss == pytest.approx(-float(logprobs.sum()), rel=1e-5)
    moved = torch.cat([(before[name] - p.detach()).flatten() for name, p in learner.weights.parameters()])
    assert float(moved.norm()) == pytest.approx(0.5 * optim.grad_norm, rel=1e-4)
