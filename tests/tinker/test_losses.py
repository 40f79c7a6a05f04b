"""The losses of the SDK by themselves, where a ratio leaves float32."""

import pytest
import torch

from whet.tinker.losses import loss_of


@pytest.mark.parametrize(("loss", "advantage"), [("ppo", 1.0), ("ppo", 0.0), ("importance_sampling", 0.0)])
def test_a_token_without_weight_has_gradient_0_whatever_its_ratio(loss: str, advantage: float) -> None:
    logprobs = torch.tensor([-1.0, -0.5], requires_grad=True)
    inputs = {"logprobs": torch.tensor([-200.0, -0.5]), "advantages": torch.tensor([advantage, 1.0])}
    total, _ = loss_of(loss, {})(logprobs, inputs)
    total.backward()
    assert logprobs.grad is not None
    assert logprobs.grad.tolist() == [0.0, -1.0]
