"""On-policy distillation: the KL to a teacher on the student's own rollouts, beside reinforcement learning."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from pydantic import ValidationError
from transformers import AutoModelForCausalLM

from whet.errors import ConfigError, TrainingError
from whet.inference.loading import read_model, shares_base
from whet.inference.model_names import resolve_model
from whet.inference.rendering.chat_renderer import ChatRenderer
from whet.rl.config import RunConfig
from whet.rl.data.assembly import RewardShaper, assemble
from whet.rl.data.curriculum import DrawnTask
from whet.rl.data.metrics import without_clock
from whet.rl.data.teacher import HintedPrompts, teacher_view
from whet.rl.learner.config import LearnerConfig, LoraConfig, OptimizerConfig
from whet.rl.learner.make import make_learner
from whet.rl.loop.group import Group
from whet.rl.run import run_training
from whet.types import State, UserMessage

ENVIRONMENTS = [{"id": "reverse-text", "name": "rl"}, {"id": "reverse-text", "name": "taught", "algorithm": "opd"}]


def run_config(tmp_path: Path, **keys: Any) -> RunConfig:
    given: dict[str, Any] = {
        "name": "r",
        "env": ENVIRONMENTS,
        "algorithm": {"reference": "whet/tiny"},
        "runs_directory": tmp_path,
        "max_steps": 2,
        "batch_size": 8,
        "rollouts_per_example": 2,
        "learning_rate": 1e-3,
        "sampling": {"max_tokens": 8},
        "eval": {"before": False, "after": False},
        "deployment": {"threads": 1},
    }
    return RunConfig.model_validate({**given, **keys})


def rollout(reward: float, ids: list[int]) -> State:
    tokens = {
        "prompt_ids": [5, 6],
        "completion_ids": ids,
        "completion_mask": [1] * len(ids),
        "completion_logprobs": [-1.5] * len(ids),
        "policy_version": [[0, len(ids)]],
    }
    return State(example_id=0, reward=reward, is_truncated=False, trajectory=[{"tokens": tokens}])


def groups() -> list[Group]:
    states = [
        [rollout(1.0, [7, 8, 9]), rollout(0.0, [9])],
        [rollout(1.0, [11, 12]), rollout(0.0, [13, 14, 15, 16, 17])],
    ]
    return [Group(n, DrawnTask(n, n, 0, 0), name, states[n]) for n, name in enumerate(("rl", "taught"))]


@pytest.fixture(scope="module")
def student(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """whet/tiny with other weights than its teacher's."""
    learner = make_learner(
        resolve_model("whet/tiny"), optimizer=OptimizerConfig(), lora=None, **options(tmp_path_factory.mktemp("w"))
    )
    with torch.no_grad():
        for number, (_, p) in enumerate(learner.weights.parameters()):
            p.add_(0.2 * p.std() * torch.randn(p.shape, generator=torch.Generator().manual_seed(number)))
    path = tmp_path_factory.mktemp("student")
    learner.export(path)
    return path


def options(directory: Path) -> dict[str, Any]:
    computation = LearnerConfig(device="cpu", dtype="float32")
    return {"computation": computation, "max_steps": 10, "seed": 0, "publish_directory": directory}


def gradients(student: Path, tmp_path: Path, chosen: list[Group], config: RunConfig) -> dict[str, torch.Tensor]:
    torch.set_num_threads(1)
    algorithm = config.algorithm
    learner = make_learner(student, optimizer=OptimizerConfig(), lora=None, reference="whet/tiny", **options(tmp_path))
    weights = {env.label: env.loss_weight for env in config.env}
    part = assemble(
        chosen,
        algorithm,
        RewardShaper(algorithm),
        temperature=1.0,
        loss_weights=weights,
        distilled=config.distilled,
    )
    output = learner.forward_backward(part.batch, algorithm)
    assert ("kl_teacher" in output.sums) == any(group.environment == "taught" for group in chosen)
    return {name: p.grad / part.divisor for name, p in learner.weights.parameters()}


def difference(found: dict[str, torch.Tensor], expected: dict[str, torch.Tensor]) -> float:
    """Of all gradients together, relative: |found - expected| / |expected|."""
    vectors = [torch.cat([each[name].flatten().double() for name in found]) for each in (found, expected)]
    return float((vectors[0] - vectors[1]).norm() / vectors[1].norm())


@pytest.mark.parametrize("aggregation", ["token_mean", "sequence_mean"])
def test_gradients_of_both_are_the_weighted_sum_of_each_alone(student: Path, tmp_path: Path, aggregation: str) -> None:
    environments = [{**ENVIRONMENTS[0], "loss_weight": 0.5}, {**ENVIRONMENTS[1], "loss_weight": 3.0}]
    algorithm = {"reference": "whet/tiny", "loss": "dro", "aggregation": aggregation}
    both = run_config(tmp_path, env=environments, algorithm=algorithm)
    rl = run_config(tmp_path, env=environments[:1], algorithm={k: v for k, v in algorithm.items() if k != "reference"})
    taught = run_config(tmp_path, env=environments[1:], algorithm=algorithm)
    found = gradients(student, tmp_path, groups(), both)
    alone = [gradients(student, tmp_path, groups()[n : n + 1], config) for n, config in enumerate((rl, taught))]
    scale = max(float(gradient.abs().max()) for gradient in found.values())
    expected = {name: alone[0][name] + alone[1][name] for name in found}
    assert difference(found, expected) <= 1e-6
    for name, gradient in found.items():
        torch.testing.assert_close(gradient, expected[name], atol=2e-6 * scale, rtol=0)
    assert any(float(gradient.abs().max()) > 1e-3 * scale for gradient in alone[0].values())


def test_the_loss_of_a_distilled_token_is_the_kl_alone_whatever_the_loss(student: Path, tmp_path: Path) -> None:
    """Rollouts are far from the learner's own (`groups`), where a penalty on the ratio would show."""
    found = []
    for loss in ("masked_is", "dro", "ppo"):
        config = run_config(tmp_path, env=ENVIRONMENTS[1:], algorithm={"reference": "whet/tiny", "loss": loss})
        found.append(gradients(student, tmp_path, groups()[1:], config))
    for other in found[1:]:
        assert all(torch.equal(gradient, other[name]) for name, gradient in found[0].items())


@pytest.mark.parametrize(("kind", "reference"), [("opd", "whet/tiny"), ("opsd", "initial"), ("opsd", "current")])
def test_a_run_of_both_has_a_curve_for_each_and_resumes_bit_for_bit(
    student: Path, tmp_path: Path, kind: str, reference: str
) -> None:
    keys = {"env": [ENVIRONMENTS[0], {**ENVIRONMENTS[1], "algorithm": kind}], "algorithm": {"reference": reference}}
    config = run_config(tmp_path, model=str(student), checkpointing={"save_every_n_steps": 1}, **keys)
    assert run_training(config, json_output=True).state == "finished"
    expected = [json.loads(line) for line in (tmp_path / "r" / "metrics.jsonl").read_text().splitlines()]
    assert all(0 < line["policy/distilled_frac"] < 1 for line in expected)
    assert {"reward/rl/mean", "reward/taught/mean", "policy/kl_teacher"} <= expected[-1].keys()
    shutil.rmtree(tmp_path / "r" / "checkpoints" / "step_2")
    assert run_training(config, resume=True, json_output=True).state == "finished"
    resumed = [json.loads(line) for line in (tmp_path / "r" / "metrics.jsonl").read_text().splitlines()]
    assert list(map(without_clock, resumed)) == list(map(without_clock, expected))


SAID = ([64, 65, 64], [65], [64, 258])
"""Two turns, and the tokens between them."""


def hinted_groups(renderer: ChatRenderer, **keys: Any) -> list[Group]:
    """One rollout, its prompts as the policy client renders them."""
    asked = [UserMessage("Reverse: ab")]
    prompt, (first, between, second) = renderer.render(asked), SAID
    state = rollout(1.0, first)
    state.update({"answer": "ba", **keys})
    state["trajectory"][0]["prompt"] = asked
    state["trajectory"][0]["tokens"]["prompt_ids"] = prompt
    later = rollout(1.0, second)["trajectory"][0]
    later["tokens"]["prompt_ids"] = [*prompt, *first, *between]
    state["trajectory"].append(later)
    return [Group(0, DrawnTask(0, 0, 0, 0), "taught", [state])]


def view_of(groups: list[Group], prompts: HintedPrompts, config: RunConfig) -> tuple[Any, Any]:
    shaper = RewardShaper(config.algorithm)
    part = assemble(groups, config.algorithm, shaper, temperature=1.0, distilled=config.distilled)
    return part, teacher_view(part, groups, prompts)


OPSD = [{**ENVIRONMENTS[1], "algorithm": "opsd"}]


@pytest.fixture(scope="module")
def renderer() -> ChatRenderer:
    return read_model("whet/tiny").renderer


def test_the_teacher_of_self_distillation_is_the_model_behind_the_prompt_with_the_hint(
    tmp_path: Path, renderer: ChatRenderer
) -> None:
    torch.set_num_threads(1)
    config = run_config(tmp_path, env=OPSD, algorithm={"reference": "current", "loss": "ppo"})
    part, view = view_of(hinted_groups(renderer), HintedPrompts(renderer, {"taught": "It is {hint}."}, 999), config)
    learner = make_learner(resolve_model("whet/tiny"), optimizer=OptimizerConfig(), lora=None, **options(tmp_path))
    batch = view.to_student(learner.token_logprobs(view.batch), part.batch)
    output = learner.forward_backward(batch, config.algorithm)

    model = AutoModelForCausalLM.from_pretrained(resolve_model("whet/tiny"), dtype=torch.float64).eval()
    said, trained = [*SAID[0], *SAID[1], *SAID[2]], torch.tensor([0, 1, 2, 4, 5])

    def logprobs(text: str) -> torch.Tensor:
        prompt = renderer.render([UserMessage(text)])
        logits = model(torch.tensor([[*prompt, *said]])).logits[0, len(prompt) - 1 : -1].log_softmax(-1)
        return logits[torch.arange(6), torch.tensor(said)][trained]

    p_N, q_N = logprobs("Reverse: ab"), logprobs("Reverse: ab\n\nIt is ba.").detach()
    gap_N = (p_N - q_N).detach()
    (gap_N * p_N).mean().backward()
    assert output.sums["kl_teacher"] == pytest.approx(float(gap_N.sum()), rel=5e-6)
    assert float(gap_N.abs().max()) > 0.01
    theirs = {
        name: p.grad for name, p in model.named_parameters()
    }  # in double precision; the learner computes in single
    scale = max(float(gradient.abs().max()) for gradient in theirs.values() if gradient is not None)
    for name, p in learner.weights.parameters():
        torch.testing.assert_close(p.grad.double() / part.divisor, theirs[name], atol=5e-6 * scale, rtol=0)


def test_a_hint_is_the_rollout_s_or_the_row_s_or_the_answer(tmp_path: Path, renderer: ChatRenderer) -> None:
    config, prompts = run_config(tmp_path, env=OPSD), HintedPrompts(renderer, {"taught": "It is {hint}."}, 60)
    shown = {
        "of the rollout": {"hint": "x", "info": {"hint": "y"}},
        "of the row": {"info": {"hint": "y"}},
        "answer": {},
    }
    for keys, hint in zip(shown.values(), ("x", "y", "ba"), strict=True):
        _, view = view_of(hinted_groups(renderer, **keys), prompts, config)
        assert f"Reverse: ab\n\nIt is {hint}." in renderer.decode(view.batch.ids.tolist())
        assert view.batch.ids[view.batch.trained].tolist() == [*SAID[0], *SAID[2]]
    part, view = view_of(hinted_groups(renderer, hint=""), prompts, config)
    assert view.batch.ids.tolist() == part.batch.ids.tolist()
    for keys, said in (({"answer": None}, "gives none"), ({"hint": "word " * 60}, "the model takes 60")):
        with pytest.raises(TrainingError, match=said):
            view_of(hinted_groups(renderer, **keys), prompts, config)
    changed = hinted_groups(renderer)
    changed[0].states[0]["trajectory"][0]["prompt"] = [UserMessage("Other")]
    with pytest.raises(TrainingError, match="not what was sampled from"):
        view_of(changed, prompts, config)


@pytest.mark.parametrize("lora", [None, LoraConfig(rank=2)])
def test_an_adapter_teaches_as_the_whole_model_does(tmp_path: Path, lora: LoraConfig | None) -> None:
    base, config = resolve_model("whet/tiny"), run_config(tmp_path, env=ENVIRONMENTS[1:])

    def learner(lora: LoraConfig | None, reference: str | None) -> Any:
        return make_learner(base, optimizer=OptimizerConfig(), lora=lora, reference=reference, **options(tmp_path))

    teacher = learner(LoraConfig(rank=3, alpha=5, target_modules=("q_proj", "up_proj")), None)
    with torch.no_grad():
        for number, (_, p) in enumerate(teacher.weights.parameters()):
            p.copy_(0.1 * torch.randn(p.shape, generator=torch.Generator().manual_seed(number)))
    teacher.export(tmp_path / "adapter")
    teacher.export_merged(tmp_path / "merged")
    assert [shares_base(str(tmp_path / name), str(base)) for name in ("adapter", "merged")] == [True, False]
    found = []
    for name in ("adapter", "merged"):
        student = learner(lora, str(tmp_path / name))
        part = assemble(
            groups()[1:],
            config.algorithm,
            RewardShaper(config.algorithm),
            temperature=1.0,
            distilled=config.distilled,
        )
        sums = student.forward_backward(part.batch, config.algorithm).sums
        found.append((sums["kl_teacher"], dict(student.weights.parameters())))
        if name == "adapter" and lora is not None:
            trained = {id(p) for p in student.weights.model.parameters()}
            with student._reference.lend() as model:
                assert {n for n, p in model.named_parameters() if id(p) not in trained} == {
                    n for n, _ in model.named_parameters() if ".lora_" in n
                }
    (of_adapter, adapter), (of_merged, merged) = found
    assert abs(of_merged) > 0.1
    assert of_adapter == pytest.approx(of_merged, rel=1e-4)
    scale = max(float(p.grad.abs().max()) for p in merged.values())
    for key, p in adapter.items():
        torch.testing.assert_close(p.grad, merged[key].grad, atol=1e-5 * scale, rtol=0)


@pytest.mark.parts
def test_an_adapter_learns_from_rollouts_of_older_weights(student: Path, tmp_path: Path) -> None:
    config = run_config(tmp_path, model=str(student), lora={"rank": 4}, max_async_level=1)
    assert run_training(config, json_output=True).state == "finished"
    last = json.loads((tmp_path / "r" / "metrics.jsonl").read_text().splitlines()[-1])
    assert last["staleness/max"] == 1
    assert last["policy/kl_teacher"] != 0
    assert 0 < last["policy/distilled_frac"] < 1


@pytest.mark.parts
def test_a_student_comes_to_its_teacher(student: Path, tmp_path: Path) -> None:
    keys = {"max_steps": 25, "batch_size": 64, "rollouts_per_example": 1, "learning_rate": 5e-4}
    config = run_config(tmp_path, model=str(student), env=ENVIRONMENTS[1:], **keys)
    assert run_training(config, json_output=True).state == "finished"
    metrics = [json.loads(line) for line in (tmp_path / "r" / "metrics.jsonl").read_text().splitlines()]
    distances = [line["policy/kl_teacher"] for line in metrics]
    assert sum(distances[-5:]) < 0.5 * sum(distances[:5])


def test_a_teacher_of_other_tokens_is_refused_by_name(tmp_path: Path) -> None:
    teacher = tmp_path / "teacher"
    shutil.copytree(resolve_model("whet/tiny"), teacher)
    tokenizer = json.loads((teacher / "tokenizer.json").read_text())
    vocabulary = tokenizer["model"]["vocab"]
    first, second = list(vocabulary)[-2:]
    vocabulary[first], vocabulary[second] = vocabulary[second], vocabulary[first]
    (teacher / "tokenizer.json").write_text(json.dumps(tokenizer))
    chosen = {"optimizer": OptimizerConfig(), "lora": None, "reference": str(teacher), **options(tmp_path)}
    with pytest.raises(ConfigError, match=f"reference: {teacher} has other tokens"):
        make_learner(resolve_model("whet/tiny"), **chosen)


@pytest.mark.parametrize(
    ("keys", "said"),
    [
        ({"algorithm": {}}, "needs a teacher"),
        ({"env": ENVIRONMENTS[:1]}, "reference would have no effect"),
        ({"buffer": {"difficulty_threshold": 0.1}}, "which distillation ignores"),
        ({"algorithm": {"reference": "whet/tiny", "loss": "cross_entropy"}}, "imitates all rollouts"),
        ({"eval": {"env": ENVIRONMENTS[1:]}}, "not learned from"),
        ({"algorithm": {"reference": "current"}}, "teacher of opsd alone"),
        ({"env": OPSD, "algorithm": {"distill_top_k": 4}}, "distill_top_k needs a teacher"),
        ({"env": ENVIRONMENTS[:1], "algorithm": {}, "teacher": {"url": "http://h/v1"}}, "teacher. has no effect"),
        ({"teacher": {"url": "http://h/v1"}}, "reference has no effect"),
        ({"algorithm": {}, "teacher": {"url": "http://h/v1"}, "sampling": {"temperature": 0.7}}, "of temperature 1"),
        ({"env": OPSD, "algorithm": {"reference": "current", "kl_coef": 0.1}}, "teacher of opsd alone"),
        ({"env": [{**OPSD[0], "hint_prompt": "no"}], "algorithm": {}}, "where the hint goes"),
        ({"env": [{**ENVIRONMENTS[1], "hint_prompt": "So: {hint}"}]}, 'without algorithm = "opsd"'),
    ],
)
def test_what_has_no_effect_is_refused(tmp_path: Path, keys: dict[str, Any], said: str) -> None:
    with pytest.raises(ValidationError, match=said):
        run_config(tmp_path, **keys)
