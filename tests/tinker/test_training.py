"""The verbs through the SDK as it is."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest

IDS = [1, 2, 3, 4]
TARGETS = [2, 3, 4, 5]
ONES = [1.0] * 4


def passes(trainer: Any, data: list[Any], loss: str = "cross_entropy", config: Mapping[str, Any] | None = None) -> Any:
    return trainer.forward_backward(data, loss, config).result(timeout=20)


@pytest.fixture
def trainer(client: Any) -> Any:
    return client.create_lora_training_client(base_model="whet/tiny", rank=4, seed=1).result()


def test_steps_lower_the_loss(trainer: Any, datum: Callable[..., Any]) -> None:
    from tinker import types

    assert trainer.get_info().lora_rank == 4
    losses = []
    for _ in range(12):
        passed = trainer.forward_backward([datum(IDS, target_tokens=TARGETS, weights=ONES)], "cross_entropy")
        stepped = trainer.optim_step(types.AdamParams(learning_rate=5e-3))
        output = passed.result()
        losses.append(output.metrics["loss:sum"])
        assert output.loss_fn_outputs[0]["logprobs"].shape == [4]
        assert losses[-1] == pytest.approx(-output.loss_fn_outputs[0]["logprobs"].to_numpy().sum(), rel=1e-5)
        assert stepped.result().metrics["grad_norm"] > 0
    assert losses[-1] < losses[0] / 2


def test_losses_are_sums_as_documented(trainer: Any, datum: Callable[..., Any]) -> None:
    q, a = np.array([-4.0, -3.0, -3.5, -2.5], np.float32), np.array([1.0, -1.0, 2.0, -0.5], np.float32)
    known = trainer.forward([datum(IDS, target_tokens=TARGETS)], "cross_entropy").result()
    p = known.loss_fn_outputs[0]["logprobs"].to_numpy()
    ratio = np.exp(p - q)
    expected: list[tuple[str, dict[str, float] | None, float]] = [
        ("importance_sampling", None, -(ratio * a).sum()),
        ("ppo", None, -np.minimum(ratio * a, np.clip(ratio, 0.8, 1.2) * a).sum()),
        ("ppo", {"clip_high_threshold": 2.0}, -np.minimum(ratio * a, np.clip(ratio, 0.8, 2.0) * a).sum()),
        ("cispo", None, -(np.clip(ratio, 0, 4) * a * p).sum()),
        ("dro", {"beta": 0.2}, -(p * a - 0.1 * (p - q) ** 2).sum()),
    ]
    for loss, config, value in expected:
        output = passes(trainer, [datum(IDS, target_tokens=TARGETS, logprobs=q, advantages=a)], loss, config)
        assert output.metrics["loss:sum"] == pytest.approx(value, rel=1e-4), loss


def test_targets_may_be_a_matrix(trainer: Any, datum: Callable[..., Any]) -> None:
    weights = np.arange(8, dtype=np.float32).reshape(4, 2)
    targets = np.array([[2, 3], [3, 4], [4, 5], [5, 6]])
    two = [datum(IDS, target_tokens=targets, weights=weights), datum(IDS, target_tokens=TARGETS, weights=ONES)]
    output = passes(trainer, two)
    matrix, row = (one["logprobs"] for one in output.loss_fn_outputs)
    assert matrix.shape == [4, 2]
    assert row.shape == [4]
    expected = -(matrix.to_numpy() * weights).sum() - row.to_numpy().sum()
    assert output.metrics["loss:sum"] == pytest.approx(expected, rel=1e-5)


def test_a_custom_loss_has_the_gradient_of_the_client(
    client: Any, trainer: Any, served: Any, datum: Callable[..., Any]
) -> None:
    import torch
    from tinker import types

    def squared(data: Any, logprobs: list[torch.Tensor]) -> tuple[torch.Tensor, dict[str, float]]:
        return sum((one**2).sum() for one in logprobs), {"mine": 1.0}

    output = trainer.forward_backward_custom([datum(IDS, target_tokens=TARGETS)], squared).result(timeout=20)
    assert output.metrics["mine"] == 1.0
    gradient = served.bank.gradient(trainer.model_id)
    trainer.optim_step(types.AdamParams(learning_rate=0.0)).result()
    p = trainer.forward([datum(IDS, target_tokens=TARGETS)], "cross_entropy").result()
    weights = -2 * p.loss_fn_outputs[0]["logprobs"].to_numpy()
    passes(trainer, [datum(IDS, target_tokens=TARGETS, weights=weights)])
    assert torch.allclose(served.bank.gradient(trainer.model_id), gradient, rtol=1e-4, atol=1e-6)


def test_a_batch_of_several_chunks_is_one_result(trainer: Any, datum: Callable[..., Any]) -> None:
    """More sequences than go into one request: the SDK sends the first chunk last."""
    output = passes(trainer, [datum(IDS, target_tokens=TARGETS, weights=ONES)] * 2100)
    assert len(output.loss_fn_outputs) == 2100
    expected = -2100 * output.loss_fn_outputs[0]["logprobs"].to_numpy().sum()
    assert output.metrics["loss:sum"] == pytest.approx(expected, rel=1e-3)


def test_several_models_share_a_pass(client: Any, served: Any, datum: Callable[..., Any]) -> None:
    trainers = [client.create_lora_training_client(base_model="whet/tiny", rank=1 + i).result() for i in range(4)]
    futures = []
    for _ in range(6):
        one = [datum(IDS, target_tokens=TARGETS, weights=ONES)]
        futures += [trainer.forward_backward(one, "cross_entropy") for trainer in trainers]
    for future in futures:
        future.result(timeout=30)
    assert max(len(models) for models in served.bank.passes) > 1
    assert all(len(set(models)) == len(models) for models in served.bank.passes)


@pytest.mark.parametrize(
    ("loss", "config", "inputs", "said"),
    [
        ("gspo", None, {}, "there is no loss 'gspo' here"),
        ("ppo", {"epsilon": 1.0}, {}, "ppo has no setting 'epsilon'"),
        ("ppo", {"clip_low_threshold": 2.0}, {}, "clip_low_threshold is above"),
        ("ppo", None, {"advantages": ONES}, "'logprobs' is missing"),
        ("ppo", None, {"logprobs": ONES, "advantages": [1.0, np.nan, 1.0, 1.0]}, "advantages: a value is not finite"),
        ("ppo", None, {"logprobs": ONES, "advantages": [1.0]}, "its shape is [1]"),
        ("cross_entropy", None, {"target_tokens": [1, 2, 3, 999]}, "the id 999 is not in 0 to 511"),
        ("cross_entropy", None, {"target_tokens": [1, 2]}, "one integer for each of the 4 tokens"),
        ("cross_entropy", None, {"advantages": ONES}, "no input 'advantages'"),
    ],
)
def test_what_is_wrong_is_named_and_harms_nothing(
    trainer: Any, datum: Callable[..., Any], loss: str, config: Any, inputs: dict[str, Any], said: str
) -> None:
    import tinker

    with pytest.raises(tinker.RequestFailedError) as caught:
        passes(trainer, [datum(IDS, **{"target_tokens": TARGETS, **inputs})], loss, config)
    assert said in str(caught.value)
    assert caught.value.category == "user"
    assert passes(trainer, [datum(IDS, target_tokens=TARGETS, weights=ONES)]).metrics["loss:sum"] > 0


def test_a_request_that_is_too_large_fails_and_the_next_does_not_wait(trainer: Any, datum: Callable[..., Any]) -> None:
    import tinker

    matrix = np.ones((1000, 5200))  # 62 MB
    large = trainer.forward_backward([datum([1] * 1000, target_tokens=matrix, weights=matrix)], "cross_entropy")
    with pytest.raises(tinker.RequestFailedError, match="larger than this server takes"):
        large.result(timeout=60)
    assert passes(trainer, [datum(IDS, target_tokens=TARGETS, weights=ONES)]).metrics["loss:sum"] > 0


def test_ids_and_lengths_are_checked(trainer: Any, datum: Callable[..., Any]) -> None:
    import tinker

    for ids, said in (([1, 2, 3, 512], "the id 512"), ([1] * 1025, "it has 1025 tokens; there have to be 1 to 1024")):
        with pytest.raises(tinker.RequestFailedError, match=said):
            passes(trainer, [datum(ids, target_tokens=[1] * len(ids))])


def test_models_that_cannot_be_made_are_refused(client: Any) -> None:
    import tinker

    for how, said in (
        ({"base_model": "other"}, "this server has 'whet/tiny', not 'other'"),
        ({"rank": 0}, "it is 0; this server has 1 to 512"),
        ({"rank": 10_000}, "it is 10000"),
        ({"optimizer": tinker.DimuonOptimizerConfig()}, "there is no optimiser 'dimuon' here"),
    ):
        with pytest.raises(tinker.UnprocessableEntityError, match=said):
            client.create_lora_training_client(**{"base_model": "whet/tiny", **how}).result()


def test_parameters_of_a_step_are_checked(trainer: Any, served: Any) -> None:
    import tinker

    for wrong in ({"learning_rate": -1.0}, {"beta1": 1.0}, {"grad_clip_norm": -0.5}):
        with pytest.raises(tinker.RequestFailedError, match="adam_params"):
            trainer.optim_step(tinker.AdamParams(**wrong)).result(timeout=20)
    assert served.bank.steps == []
