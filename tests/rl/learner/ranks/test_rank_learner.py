"""What ranks do together besides computing: agree on failures, name what they wait for, and hold only their part."""

import dataclasses
import re
import shutil

import numpy as np
import pytest
from rank_workers import Raised
from safetensors.torch import load_file, save_file

from whet.errors import ModelLoadError
from whet.rl.data.batch import pack
from whet.rl.learner.config import LoraConfig
from whet.rl.learner.make import make_learner
from whet.rl.learner.protocol import OptimParams
from whet.rl.learner.ranks.own_rows import StoredModel
from whet.rl.learner.ranks.rank_group import divide
from whet.rl.sections.algorithm import LossConfig

IMPORTANCE = LossConfig(loss="importance_sampling")


@pytest.fixture
def batch(make_rollouts):
    sequences = make_rollouts(groups=((6, 9), (1, 5), (2, 4)))
    return pack(sequences, np.random.default_rng(1).normal(size=len(sequences)))


def test_a_loss_that_is_not_finite_on_one_rank_is_raised_by_all_and_they_continue(models, ranks, options, batch):
    advantages = batch.advantages.copy()
    advantages[batch.sequence_of_token == batch.sequences - 1] = np.where(batch.trained, np.inf, 0.0)[
        batch.sequence_of_token == batch.sequences - 1
    ]
    bad, good = (divide(one, 3) for one in (dataclasses.replace(batch, advantages=advantages), batch))
    chosen, step = options(micro_batch_tokens=15), OptimParams(1e-2, batch.trained_tokens)
    answers = ranks.run(
        models / "qwen3",
        chosen,
        [
            [("forward_backward", worse, IMPORTANCE), ("forward_backward", part, IMPORTANCE), ("optim_step", step)]
            for worse, part in zip(bad.parts, good.parts, strict=True)
        ],
    )
    raised = {found[0] for found in answers}
    assert len(raised) == 1
    assert isinstance(answers[0][0], Raised)
    assert answers[0][0].kind == "TrainingError"
    assert batch.rollouts[-1] in answers[0][0].text
    one = make_learner(models / "qwen3", **chosen)
    one.forward_backward(batch, IMPORTANCE)
    assert answers[2][2].grad_norm == pytest.approx(one.optim_step(step).grad_norm, rel=2e-6)


def test_a_gradient_that_is_not_finite_is_raised_by_all_and_changes_nothing(models, ranks, options, batch):
    huge = dataclasses.replace(batch, advantages=np.where(batch.trained, np.float32(1e30), np.float32(0)))
    step = OptimParams(1e-2, batch.trained_tokens)
    calls = [
        [("weights",), ("forward_backward", part, LossConfig(loss="cross_entropy")), ("optim_step", step), ("weights",)]
        for part in divide(huge, 2).parts
    ]
    answers = ranks.run(models / "qwen3", options(), calls)
    assert {found[2].kind for found in answers} == {"TrainingError"}
    assert len({found[2].text for found in answers}) == 1
    assert all(np.array_equal(answers[1][0][name], after) for name, after in answers[1][3].items())


def test_each_rank_holds_its_part_of_every_parameter_and_names_what_it_waits_for(models, ranks, options, batch):
    parts = divide(batch, 3).parts
    calls = [
        [("held",), ("forward_backward", part, IMPORTANCE), ("held",), ("token_logprobs", part), ("held",)]
        for part in parts
    ]
    answers = ranks.run_with_phases(models / "qwen3", options(micro_batch_tokens=30), calls)
    whole = make_learner(models / "qwen3", **options()).parameters
    held = [[found[0], found[2], found[4]] for found, _ in answers]
    assert all(len(set(of_rank)) == 1 for of_rank in held)
    assert sum(of_rank[0] for of_rank in held) == whole
    assert max(of_rank[0] for of_rank in held) < 0.4 * whole
    phases = [said for _, said in answers]
    assert phases[0] == phases[1] == phases[2]
    assert {"agreeing on the number of micro-batches", "agreeing that the loss is finite"} < set(phases[0])
    assert any(said.startswith("reduce-scatter of gradients, micro-batch 2 of ") for said in phases[0])


@pytest.mark.parametrize("lora", [None, LoraConfig(rank=2, target_modules=("q_proj", "v_proj"))], ids=["full", "lora"])
@pytest.mark.parametrize("kind", ["qwen3", "experts"])
def test_a_rank_reads_its_own_rows_and_no_tensor_that_is_larger(kind, lora, models, ranks, options):
    tensors = load_file(models / kind / "model.safetensors")
    answers = ranks.run(models / kind, options(lora=lora), [[("read",)]] * 3)
    read = [found[0] for found in answers]
    assert sum(map(sum, read)) == sum(tensor.nbytes for tensor in tensors.values())
    expert = max((tensor.nbytes for name, tensor in tensors.items() if ".experts." in name), default=0)
    row = max(tensor[0].nbytes for tensor in tensors.values())
    assert max(map(max, read)) <= max(expert, max(tensor.nbytes for tensor in tensors.values()) // 3 + row)
    assert max(map(sum, read)) < 0.4 * sum(map(sum, read))


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("model.norm.weight", "lack 'model.norm.weight'"),
        ("model.layers.1.mlp.experts.3.up_proj.weight", "lack 'model.layers.1.mlp.experts.3.up_proj.weight'"),
    ],
)
def test_a_file_that_lacks_a_tensor_is_refused_before_anything_is_read(name, says, models, tmp_path):
    shutil.copytree(models / "experts", tmp_path / "torn")
    tensors = load_file(tmp_path / "torn" / "model.safetensors")
    StoredModel(tmp_path / "torn")
    del tensors[name]
    save_file(tensors, tmp_path / "torn" / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(ModelLoadError, match=re.escape(says)):
        StoredModel(tmp_path / "torn")


def test_dropout_differs_between_ranks_and_probabilities_do_not_have_it(models, ranks, options, batch):
    chosen = options(lora=LoraConfig(rank=4, dropout=0.5), micro_batch_tokens=15)
    division = divide(batch, 2)
    calls = [[("random",), ("forward_backward", part, IMPORTANCE)] for part in division.parts]
    (first, mine), (second, other) = ranks.run(models / "qwen3", chosen, calls)
    assert not np.array_equal(first, second)
    one = make_learner(models / "qwen3", **chosen).forward_backward(batch, IMPORTANCE)
    found = division.join([mine, other])
    np.testing.assert_allclose(found.values.logprobs_T, one.values.logprobs_T, atol=1e-5)


def test_weights_in_bfloat16_have_float32_masters(models, ranks, options, batch):
    chosen = options(dtype="bfloat16", weights_dtype="bfloat16")
    division, step = divide(batch, 2), OptimParams(1e-4, batch.trained_tokens)
    calls = [
        [("forward_backward", part, IMPORTANCE), ("weights",), ("optim_step", step), ("weights",)]
        for part in division.parts
    ]
    answers = ranks.run(models / "qwen3", chosen, calls)
    one = make_learner(models / "qwen3", **chosen)
    loss = one.forward_backward(batch, IMPORTANCE)
    moved = one.optim_step(step)
    found = division.join([of_rank[0] for of_rank in answers])
    np.testing.assert_allclose(found.values.logprobs_T, loss.values.logprobs_T, atol=0.2)
    assert answers[0][2].grad_norm == pytest.approx(moved.grad_norm, rel=0.05)
    before, after = answers[0][1], answers[0][3]
    assert all(tensor.dtype == np.float32 for tensor in after.values())
    name = "model.layers.0.mlp.up_proj.weight"
    assert 0 < np.abs(after[name] - before[name]).max() < 2e-4  # less than bfloat16 could hold


def test_a_lora_base_in_bfloat16_is_divided_as_it_is(models, ranks, options, batch):
    chosen = options(lora=LoraConfig(rank=4), dtype="bfloat16", base_dtype="bfloat16", reference="initial")
    division, loss = divide(batch, 3), LossConfig(loss="importance_sampling", kl_coef=0.1)
    step = OptimParams(1e-2, batch.trained_tokens)
    calls = [[("forward_backward", part, loss), ("optim_step", step), ("weights",)] for part in division.parts]
    answers = ranks.run(models / "qwen3", chosen, calls)
    one = make_learner(models / "qwen3", **chosen)
    expected = one.forward_backward(batch, loss)
    moved = one.optim_step(step)
    found = division.join([of_rank[0] for of_rank in answers])
    np.testing.assert_allclose(found.values.logprobs_T, expected.values.logprobs_T, atol=0.05)
    assert answers[0][1].grad_norm == pytest.approx(moved.grad_norm, rel=0.02)
    assert all(tensor.dtype == np.float32 for tensor in answers[0][2].values())


@pytest.mark.gpu
@pytest.mark.parametrize(
    "changes", [{}, {"dtype": "bfloat16", "weights_dtype": "bfloat16"}], ids=["float32", "bfloat16"]
)
def test_one_rank_on_cuda_is_as_one_process_there(changes, models, ranks, options, batch, tmp_path):
    chosen, step = options(device="cuda", **changes), OptimParams(1e-2, batch.trained_tokens)
    calls = [
        ("forward_backward", batch, IMPORTANCE),
        ("optim_step", step),
        ("save", tmp_path),
        ("publish",),
        ("load", tmp_path),
    ]
    ((found, moved, *_, loaded),) = ranks.run(models / "qwen3", chosen, [calls])
    assert not isinstance(loaded, Raised)
    one = make_learner(models / "qwen3", **chosen)
    expected = one.forward_backward(batch, IMPORTANCE)
    exact = 0.05 if changes else 1e-3
    np.testing.assert_allclose(found.values.logprobs_T, expected.values.logprobs_T, atol=10 * exact)
    assert moved.grad_norm == pytest.approx(one.optim_step(step).grad_norm, rel=exact)
