"""Ranks leave the files of one process: publications and exports byte for byte, checkpoints for any number of ranks."""

import dataclasses
import json

import numpy as np
import pytest
from rank_workers import Raised, relative

from whet.rl.data.batch import pack
from whet.rl.learner.config import LoraConfig, OptimizerConfig
from whet.rl.learner.make import make_learner
from whet.rl.learner.protocol import OptimParams
from whet.rl.learner.ranks.rank_group import divide
from whet.rl.sections.algorithm import LossConfig
from whet.rl.storage.checkpoints import fault_of, newest_checkpoint, save_checkpoint

PPO = LossConfig(loss="ppo")
LORA = LoraConfig(rank=4)
KINDS = {
    "packed": ("qwen3", {}),
    "packed, rounded": ("llama", {"publish_dtype": "bfloat16"}),
    "experts": ("experts", {"publish_format": "checkpoint", "publish_dtype": "bfloat16"}),
    "packed experts": ("experts", {}),
    "adapter": ("qwen3", {"lora": LORA}),
    "transformers' own forward": ("gpt2", {}),
}


def files_in(directory):
    return {str(path.relative_to(directory)): path.read_bytes() for path in directory.rglob("*") if path.is_file()}


@pytest.fixture
def batch(make_rollouts):
    sequences = make_rollouts(groups=((6, 9), (1, 5), (2, 4)))
    return pack(sequences, np.random.default_rng(1).normal(size=len(sequences)))


@pytest.mark.parametrize(("model", "changes"), KINDS.values(), ids=KINDS)
def test_what_ranks_publish_and_export_is_that_of_one_process_byte_for_byte(
    model, changes, models, ranks, options, batch, tmp_path
):
    one = make_learner(models / model, **options(**changes))
    one.forward_backward(batch, PPO)
    one.optim_step(OptimParams(1e-2, batch.trained_tokens))
    for name in ("saved", "export", "merged"):
        (tmp_path / name).mkdir()
    one.save(tmp_path / "saved")
    update = one.publish()
    one.export(tmp_path / "export")
    one.export_merged(tmp_path / "merged", "bfloat16")
    expected = [files_in(path) for path in (one_publication(update), tmp_path / "export", tmp_path / "merged")]

    apart = options(**changes, publish_directory=tmp_path / "by ranks" / "published")
    calls = [
        ("load", tmp_path / "saved"),
        ("publish",),
        ("export", tmp_path / "by ranks" / "export"),
        ("export_merged", tmp_path / "by ranks" / "merged", "bfloat16"),
    ]
    answers = ranks.run(models / model, apart, [calls] * 3)
    assert all(found == answers[0] for found in answers)
    of_ranks = answers[0][1]
    assert (of_ranks.version, of_ranks.kind) == (1, update.kind)
    written = [one_publication(of_ranks), tmp_path / "by ranks" / "export", tmp_path / "by ranks" / "merged"]
    assert [files_in(path) for path in written] == expected


def one_publication(update):
    """A folder with what was published alone."""
    return update.path if update.path.is_dir() else update.path.parent


class Learning:
    """Steps of learners that take each other's place, and what each step was."""

    def __init__(self, model, options, ranks, batch, loss=PPO, *, share=0.0):
        self.model, self.options, self.ranks, self.batch, self.loss = model, options, ranks, batch, loss
        self.step = OptimParams(1e-2, batch.trained_tokens, reference_share=share)

    def steps(self, ranks, count, save=None, load=None):
        """Loss and norm of each step, and the weights then, of a learner of so many ranks; of one process for None."""
        step = self.step
        before, after = [("load", load)] * (load is not None), [("save", save)] * (save is not None)
        if ranks is None:
            learner = make_learner(self.model, **self.options)
            for _, path in before:
                learner.load(path)
            found = [
                (learner.forward_backward(self.batch, self.loss).loss, learner.optim_step(step)) for _ in range(count)
            ]
            for _, path in after:
                learner.save(path)
            return found, {name: p.detach().numpy().copy() for name, p in learner.weights.parameters()}
        division = divide(self.batch, ranks)
        calls = [
            [*before, *[("forward_backward", part, self.loss), ("optim_step", step)] * count, *after, ("weights",)]
            for part in division.parts
        ]
        answers = self.ranks.run(self.model, self.options, calls)
        assert not any(isinstance(answer, Raised) for one in answers for answer in one), answers
        made = [list(of_all) for of_all in zip(*answers, strict=True)][len(before) :]
        losses, moved = made[0 : 2 * count : 2], made[1 : 2 * count : 2]
        return [
            (division.join(some).loss, some_moved[0]) for some, some_moved in zip(losses, moved, strict=True)
        ], made[-1][0]


PATHS = {"2 1 2": (2, 1, 2), "3, one process, 2": (3, None, 2), "one process, 3, one process": (None, 3, None)}
TRAINED = {
    "adamw": {},
    "muon": {"optimizer": OptimizerConfig(type="muon")},
    "lora": {"lora": LORA, "reference": "initial"},
}


@pytest.mark.parametrize(
    ("path", "changes"),
    [
        pytest.param(path, changes, id=f"{of}: {ways}", marks=() if number % 3 == place else pytest.mark.parts)
        for number, (of, changes) in enumerate(TRAINED.items())
        for place, (ways, path) in enumerate(PATHS.items())
    ],
)
def test_a_checkpoint_resumes_on_another_number_of_ranks(path, changes, models, ranks, options, batch, tmp_path):
    learning = Learning(models / "qwen3", options(**changes), ranks, batch)
    expected, weights = learning.steps(None, 6)
    found, load = [], None
    for number, size in enumerate(path):
        save = tmp_path / f"saved_{number}"
        save.mkdir()
        steps, moved = learning.steps(size, 2, save, load)
        found, load = found + steps, save
    for (loss, step), (expected_loss, expected_step) in zip(found, expected, strict=True):
        assert loss / batch.trained_tokens == pytest.approx(expected_loss / batch.trained_tokens, abs=1e-6)
        assert step.grad_norm == pytest.approx(expected_step.grad_norm, rel=5e-6)
        assert step.version == expected_step.version
    assert relative(moved, weights) < 1e-5


@pytest.mark.parametrize("changes", TRAINED.values(), ids=TRAINED)
def test_groups_that_hold_the_same_resume_what_one_process_saved_and_the_reverse(
    changes, models, ranks, options, batch, tmp_path
):
    learning = Learning(models / "qwen3", options(**changes, shard_ranks=2), ranks, batch)
    alone = Learning(models / "qwen3", options(**changes), ranks, batch)
    expected, weights = alone.steps(None, 6)
    saved = [tmp_path / "of one", tmp_path / "of groups"]
    for path in saved:
        path.mkdir()
    found = alone.steps(None, 2, saved[0])[0] + learning.steps(4, 2, saved[1], saved[0])[0]
    last, moved = alone.steps(None, 2, tmp_path, saved[1])
    for (_, step), (_, expected_step) in zip(found + last, expected, strict=True):
        assert step.grad_norm == pytest.approx(expected_step.grad_norm, rel=5e-6)
    assert relative(moved, weights) < 1e-5


@pytest.mark.parametrize(
    ("changes", "share"),
    [({}, 1.0), ({"micro_batch_tokens": 20, "lora": LORA}, 1.0), ({}, 0.25)],
    ids=["all weights", "lora", "average"],
)
def test_a_reference_that_moves_is_divided_and_resumes_on_another_number_of_ranks(
    changes, share, models, ranks, options, batch, tmp_path
):
    chosen, loss = options(**changes, reference="initial"), LossConfig(loss="ppo", kl_coef=0.5)
    learning = Learning(models / "qwen3", chosen, ranks, batch, loss, share=share)
    expected, weights = learning.steps(None, 6)
    found, load = [], None
    for number, size in enumerate((2, None, 2)):
        save = tmp_path / f"saved_{number}"
        save.mkdir()
        steps, moved = learning.steps(size, 2, save, load)
        assert (save / "reference.safetensors").is_file()
        found, load = found + steps, save
    for (part, step), (expected_part, expected_step) in zip(found, expected, strict=True):
        assert part / batch.trained_tokens == pytest.approx(expected_part / batch.trained_tokens, abs=1e-6)
        assert step.grad_norm == pytest.approx(expected_step.grad_norm, rel=2e-5)
    assert relative(moved, weights) < 1e-5


def test_a_reset_reference_of_ranks_in_bfloat16_is_rounded_as_the_policy_is(models, ranks, options, batch):
    chosen = options(dtype="bfloat16", weights_dtype="bfloat16", reference="initial")
    step = OptimParams(1e-2, batch.trained_tokens, reference_share=1.0)
    kl = LossConfig(loss="ppo", kl_coef=0.5)
    calls = [
        [("forward_backward", part, kl), ("optim_step", step), ("forward_backward", part, kl)]
        for part in divide(batch, 2).parts
    ]
    moved = make_learner(models / "qwen3", **chosen)
    moved.forward_backward(batch, kl)
    moved.optim_step(OptimParams(1e-2, batch.trained_tokens))
    assert moved.forward_backward(batch, kl).sums["kl_reference"] > 1
    for _, _, found in ranks.run(models / "qwen3", chosen, calls):
        assert found.sums["kl_reference"] < 0.05  # the policy's vectors are rounded too, when they are gathered


@pytest.mark.parametrize("alone", [False, True], ids=["each has a part", "one has no part"])
def test_ranks_have_one_critic_which_one_process_goes_on_with(
    alone, models, ranks, options, make_rollouts, batch, tmp_path
):
    if alone:
        batch = pack(make_rollouts(groups=((3, 9),)), [1.0, -1.0, 0.5])
    chosen, step = options(micro_batch_tokens=20), OptimParams(1e-2, batch.trained_tokens, critic_rate=0.1)
    returns = np.where(batch.trained, np.random.default_rng(0).normal(size=len(batch.ids)), 0).astype(np.float32)
    seen = dataclasses.replace(batch, values=np.zeros_like(returns), returns=returns)
    one = make_learner(models / "qwen3", **chosen)
    expected = [one.token_values(batch)]
    for _ in range(2):
        loss = one.forward_backward(seen, PPO)
        one.optim_step(step)
    expected.append(one.token_values(batch))
    division, shown = divide(batch, 2), divide(seen, 2).parts
    calls = [
        [
            ("token_values", part),
            *[("forward_backward", own, PPO), ("optim_step", step)] * 2,
            ("token_values", part),
            ("save", tmp_path),
        ]
        for part, own in zip(division.parts, shown, strict=True)
    ]
    answers = ranks.run(models / "qwen3", chosen, calls)
    assert not any(isinstance(answer, Raised) for of_rank in answers for answer in of_rank), answers
    for number, whole in ((0, expected[0]), (5, expected[1])):
        rows = zip(*(of_rank[number] for of_rank in answers), strict=True)
        found = np.stack([division.join_logprobs(of_ranks) for of_ranks in rows])
        np.testing.assert_allclose(found, whole, atol=5e-5)
    joined = division.join([of_rank[3] for of_rank in answers])
    assert joined.sums["value_loss"] == pytest.approx(loss.sums["value_loss"], rel=1e-5)
    assert expected[1][1].any()
    again = make_learner(models / "qwen3", **chosen)
    again.load(tmp_path)
    np.testing.assert_allclose(again.token_values(batch), expected[1], atol=5e-5)


def test_a_checkpoint_of_ranks_is_sealed_with_every_file(models, ranks, options, batch, tmp_path):
    learning = Learning(models / "qwen3", options(), ranks, batch)
    path = save_checkpoint(tmp_path, 2, lambda directory: learning.steps(2, 2, directory), keep=1)
    names = json.loads((path / "manifest.json").read_text())["files"]
    assert {"weights.safetensors", "learner.json", "optimizer/.metadata"} < set(names)
    assert {"optimizer/__0_0.distcp", "optimizer/__1_0.distcp"} < set(names)
    (path / "optimizer" / "__1_0.distcp").write_bytes(b"")
    assert "__1_0.distcp has 0 bytes" in fault_of(path)
    assert newest_checkpoint(tmp_path)[0] is None


def test_a_checkpoint_of_another_optimiser_is_refused_by_all_ranks(models, ranks, options, batch, tmp_path):
    Learning(models / "qwen3", options(), ranks, batch).steps(2, 1, tmp_path)
    other = options(optimizer=OptimizerConfig(type="sgd"))
    answers = ranks.run(models / "qwen3", other, [[("load", tmp_path), ("weights",)]] * 2)
    assert answers[0][0] == answers[1][0]
    assert answers[0][0].kind == "RunError"
    assert "optimiser is adamw" in answers[0][0].text
    with pytest.raises(Exception, match="optimiser is adamw"):
        make_learner(models / "qwen3", **other).load(tmp_path)


@pytest.mark.parametrize("verb", ["publish", "export", "save"])
def test_a_write_that_fails_on_rank_0_is_raised_by_all_and_they_continue(verb, models, ranks, options, batch, tmp_path):
    blocked = tmp_path / "file"
    blocked.write_text("")  # where a folder should be
    chosen = options(publish_directory=blocked)
    call = (verb,) if verb == "publish" else (verb, blocked)
    parts = divide(batch, 3).parts
    answers = ranks.run(models / "qwen3", chosen, [[call, ("forward_backward", part, PPO)] for part in parts])
    assert all(found[0] == answers[0][0] for found in answers)
    assert isinstance(answers[0][0], Raised)
    assert str(blocked) in answers[0][0].text
    assert np.isfinite([found[1].loss for found in answers]).all()
