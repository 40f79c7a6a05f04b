"""Direct preference optimisation: its loss against the formula, pairs of files and rollouts, and runs."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM

from whet.errors import DatasetError, ModelLoadError
from whet.inference.model_names import resolve_model
from whet.inference.rendering.chat_renderer import ChatRenderer
from whet.rl.data.metrics import without_clock
from whet.rl.data.preferences import losses
from whet.rl.learner.config import LearnerConfig, OptimizerConfig
from whet.rl.learner.make import make_learner
from whet.rl.learner.protocol import OptimOutput, OptimParams
from whet.rl.sft.config import SftConfig
from whet.rl.sft.data import SftData, load_data
from whet.rl.sft.dpo import prefer
from whet.rl.sft.run import imitate, run_sft

Write = Callable[..., Path]
BETA = 0.3


def pair(number: int) -> dict[str, Any]:
    prompt = [{"role": "user", "content": f"Reverse the text: a{number}"}]
    better, worse = ([{"role": "assistant", "content": said}] for said in (f"{number}a", "no" * (number % 3 + 1)))
    return {"prompt": prompt, "chosen": better, "rejected": worse}


def config(path: Path, tmp_path: Path, **changes: Any) -> SftConfig:
    given = {
        "name": "r", "data": {"path": path}, "dpo": {"beta": BETA}, "runs_directory": tmp_path / "runs",
        "batch_size": 4, "learning_rate": 1e-3, "num_epochs": 2, "deployment": {"threads": 1},
    }  # fmt: skip
    return SftConfig.model_validate({**given, **changes})


def read(path: Path, tmp_path: Path, renderer: ChatRenderer, **changes: Any) -> SftData:
    return load_data(config(path, tmp_path, **changes), renderer, context=1024)


def test_loss_and_gradient_are_those_of_the_formula(write_rows: Write, tmp_path: Path, renderer: ChatRenderer) -> None:
    torch.set_num_threads(1)
    pairs = read(write_rows(map(pair, range(4))), tmp_path, renderer).train
    learner = make_learner(
        resolve_model("whet/tiny"), optimizer=OptimizerConfig(type="sgd"), lora=None, max_steps=9, seed=0,
        computation=LearnerConfig(device="cpu", dtype="float32"), publish_directory=tmp_path, reference="initial",
    )  # fmt: skip
    imitate(
        learner, [sequence for one in pairs for sequence in one.sequences[1:]], 1e-3, None
    )  # away from the reference
    learner.export(tmp_path / "policy")
    seen: list[Any] = []

    def note(params: OptimParams) -> OptimOutput:
        seen.append({name: p.grad.double() / params.denominator for name, p in learner.weights.parameters()})
        return OptimOutput(0.0, 0.0, 1)

    learner.optim_step = note  # type: ignore[method-assign]
    output, _, margins_P = prefer(learner, pairs, BETA, 1e-3, None)

    def said(model: Any, sequence: Any) -> torch.Tensor:
        logs = model(torch.from_numpy(sequence.ids).long()[None]).logits[0, :-1].log_softmax(-1)
        taken = logs.gather(1, torch.from_numpy(sequence.ids).long()[1:, None])[:, 0]
        return taken[torch.from_numpy(sequence.trained)[1:]].sum()

    policy, reference = (
        AutoModelForCausalLM.from_pretrained(path, dtype=torch.float64).eval()
        for path in (tmp_path / "policy", resolve_model("whet/tiny"))
    )
    margins = []
    for one in pairs:
        (better, worse), with_grad = one.sequences, []
        for sequence in (better, worse):
            with torch.no_grad():
                of_reference = said(reference, sequence)
            with_grad.append(said(policy, sequence) - of_reference)
        margins.append(BETA * (with_grad[0] - with_grad[1]))
    loss = -torch.nn.functional.logsigmoid(torch.stack(margins)).mean()
    loss.backward()
    loss = loss.detach()
    np.testing.assert_allclose(margins_P, torch.stack(margins).detach(), atol=1e-5)
    assert float(np.abs(margins_P).min()) > 1e-2
    assert output.loss / len(pairs) == pytest.approx(float(loss), abs=1e-5)
    assert float(losses(margins_P).mean()) == pytest.approx(float(loss), abs=1e-5)
    theirs = {name: p.grad for name, p in policy.named_parameters()}
    scale = max(float(gradient.abs().max()) for gradient in theirs.values() if gradient is not None)
    for name, gradient in seen[0].items():
        torch.testing.assert_close(gradient, theirs[name], atol=5e-6 * scale, rtol=0)  # the learner is in float32


def test_a_loss_of_margins_is_that_of_the_formula() -> None:
    margins = np.array([-800.0, -1.5, 0.0, 0.25, 800.0])
    expected = -torch.nn.functional.logsigmoid(torch.from_numpy(margins)).numpy()
    np.testing.assert_allclose(losses(margins), expected, rtol=1e-12, atol=1e-300)


def rollout(example: int, reward: float, said: str, **fields: Any) -> dict[str, Any]:
    asked, answered = {"role": "user", "content": f"Hi {example}"}, {"role": "assistant", "content": said}
    return {
        "example_id": example,
        "prompt": [asked],
        "completion": [answered],
        "reward": reward,
        "metrics": {},
        **fields,
    }


def test_a_pair_is_the_best_and_the_worst_rollout_of_a_task(tmp_path: Path, renderer: ChatRenderer) -> None:
    rows = [
        rollout(0, 0.5, "fair"), rollout(0, 1.0, "good"), rollout(1, 0.0, "dull"), rollout(0, 0.0, "bad"),
        rollout(1, 0.0, "dull too"), rollout(2, 1.0, "alone"), rollout(0, 2.0, "", error={"error": "ToolError"}),
    ]  # fmt: skip
    (tmp_path / "eval").mkdir()
    (tmp_path / "eval" / "results.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    data = read(tmp_path / "eval", tmp_path, renderer)
    (one,) = data.train
    assert [renderer.decode(each.ids[each.trained].tolist()) for each in one.sequences] == [
        "good<|im_end|>",
        "bad<|im_end|>",
    ]
    assert one.preferred == 1
    assert data.notes == [
        "1 row left out: the rollout failed",
        "3 rows left out: rollouts of one task with equal rewards, or one alone",
    ]


def test_what_cannot_be_compared_is_refused(write_rows: Write, tmp_path: Path, renderer: ChatRenderer) -> None:
    answered = {**pair(0), "chosen": [*pair(0)["prompt"], *pair(0)["chosen"]]}
    with pytest.raises(DatasetError, match="chosen should begin with the assistant"):
        read(write_rows([answered]), tmp_path, renderer)
    with pytest.raises(DatasetError, match="this row has none"):
        read(write_rows(3), tmp_path, renderer)
    for keys in ({"min_reward": 1.0}, {"best_per_example": 1}, {"too_long": "cut"}):
        with pytest.raises(ValueError, match="compared with each other"):
            config(tmp_path, tmp_path, data={"path": tmp_path, **keys})


def test_a_run_prefers_the_better_answers_and_resumes_bit_for_bit(write_rows: Write, tmp_path: Path) -> None:
    path = write_rows(map(pair, range(10)))
    chosen = config(
        path, tmp_path, num_epochs=4, validation={"fraction": 0.2, "interval": 2},
        checkpointing={"save_every_n_steps": 1},
    )  # fmt: skip
    assert run_sft(chosen, json_output=True).state == "finished"
    lines = (tmp_path / "runs/r/metrics.jsonl").read_text()
    expected = [without_clock(json.loads(line)) for line in lines.splitlines()]
    assert expected[1]["optim/loss"] == pytest.approx(np.log(2), abs=1e-6)
    assert expected[1]["preference/margin"] == pytest.approx(0, abs=1e-6)
    assert expected[-1]["validation/loss"] < 0.5 * expected[0]["validation/loss"]
    assert expected[-1]["validation/accuracy"] == 1
    for step in (5, 6, 7, 8):
        shutil.rmtree(tmp_path / "runs/r/checkpoints" / f"step_{step}")
    assert run_sft(chosen, resume=True, json_output=True).state == "finished"
    lines = (tmp_path / "runs/r/metrics.jsonl").read_text()
    assert [without_clock(json.loads(line)) for line in lines.splitlines()] == expected


def test_another_model_may_be_the_reference(write_rows: Write, tmp_path: Path) -> None:
    path = write_rows(map(pair, range(4)))
    assert run_sft(config(path, tmp_path, name="other", learning_rate=3e-2), json_output=True).state == "finished"
    margins = []
    for reference in ("initial", str(resolve_model("whet/tiny")), str(tmp_path / "runs" / "other" / "model")):
        keys = {"name": f"r{len(margins)}", "num_epochs": 1, "dpo": {"beta": BETA, "reference": reference}}
        assert run_sft(config(path, tmp_path, **keys), json_output=True).state == "finished"
        lines = (tmp_path / "runs" / keys["name"] / "metrics.jsonl").read_text().splitlines()
        margins.append(json.loads(lines[0])["preference/margin"])
    assert margins[:2] == pytest.approx([0, 0], abs=1e-6)
    assert abs(margins[2]) > 0.1
    with pytest.raises(ModelLoadError, match="reference: there is no"):
        run_sft(config(path, tmp_path, name="none", dpo={"reference": "./nothing"}), json_output=True)


@pytest.mark.parts
def test_two_ranks_prefer_what_one_process_does(write_rows: Write, tmp_path: Path) -> None:
    path, losses_of = write_rows(map(pair, range(8))), []
    for name, ranks in (("one", None), ("two", 2)):
        keys = {"name": name, "learner": {} if ranks is None else {"ranks": ranks}, "optimizer": {"type": "sgd"}}
        assert run_sft(config(path, tmp_path, **keys), json_output=True).state == "finished"
        lines = (tmp_path / "runs" / name / "metrics.jsonl").read_text().splitlines()
        losses_of.append([json.loads(line)["optim/loss"] for line in lines])
    assert losses_of[0] == pytest.approx(losses_of[1], rel=1e-5)
