"""What TRL 1.16.0 makes of a few tokens: the source of `trl-1.16.0.json` beside this, which whet's losses are held to.

    pip install trl==1.16.0 && python tests/rl/algorithms/trl_numbers.py > tests/rl/algorithms/trl-1.16.0.json

TRL's own `GRPOTrainer._compute_loss` is run on logprobs that are given to it, without a model, in float64.
"""

import json
from collections import defaultdict
from types import SimpleNamespace

import torch

CASES = {
    "ppo": {"loss_type": "bnpo", "epsilon_low": 0.2, "epsilon_high": 0.28},
    "importance_sampling": {"loss_type": "bnpo", "epsilon_low": 1.0, "epsilon_high": 1e9},
    "gspo": {"loss_type": "bnpo", "importance_sampling_level": "sequence", "epsilon_low": 0.05, "epsilon_high": 0.1},
    "cispo": {"loss_type": "cispo", "epsilon_high": 1.5},
    "ppo with a KL": {"loss_type": "bnpo", "epsilon_low": 0.2, "epsilon_high": 0.2, "beta": 0.1},
    "ppo with entropy": {"loss_type": "bnpo", "epsilon_low": 0.2, "epsilon_high": 0.2, "entropy_coef": 0.05},
}


def tokens():
    """Three answers of 4, 2 and 5 tokens, padded: logprobs under learner, sampler, reference; entropies; advantages."""
    torch.manual_seed(0)
    learner = -3 * torch.rand(3, 5, dtype=torch.float64)
    return {
        "mask": (torch.arange(5) < torch.tensor([[4], [2], [5]])).double(),
        "learner": learner,
        "sampler": learner + 0.3 * torch.randn_like(learner),
        "reference": learner + 0.5 * torch.randn_like(learner),
        "entropies": 2 * torch.rand_like(learner),
        "advantages": torch.tensor([1.5, -0.5, -1.0], dtype=torch.float64),
    }


def trl_loss(given, settings):
    """TRL's loss of one case, and its gradient with respect to the learner's logprobs."""
    from accelerate import Accelerator
    from trl import GRPOTrainer

    logprobs = given["learner"].clone().requires_grad_()
    ids = torch.zeros_like(given["mask"], dtype=torch.long)
    trainer = SimpleNamespace(
        **{"importance_sampling_level": "token", "beta": 0.0, "entropy_coef": 0.0, "epsilon_low": 0.2, **settings},
        _entropy_bonus_enabled="entropy_coef" in settings,
        _get_per_token_logps_and_entropies=lambda *_, **__: (logprobs, given["entropies"], None),
        _metrics=defaultdict(lambda: defaultdict(list)),
        accelerator=Accelerator(cpu=True),
        args=SimpleNamespace(delta=None, use_bias_correction_kl=False, steps_per_generation=1),
        aux_loss_enabled=False,
        current_gradient_accumulation_steps=1,
        model=SimpleNamespace(training=True),
        off_policy_mask_threshold=None,
        top_entropy_quantile=1.0,
        use_adaptive_entropy=False,
        use_vllm=False,
    )
    inputs = {
        "prompt_ids": ids[:, :1],
        "prompt_mask": ids[:, :1],
        "completion_ids": ids,
        "completion_mask": given["mask"],
        "advantages": given["advantages"],
        "old_per_token_logps": given["sampler"],
        "ref_per_token_logps": given["reference"],
        "num_items_in_batch": given["mask"].sum(),
    }
    loss = GRPOTrainer._compute_loss(trainer, None, inputs)
    loss.backward()
    return {"loss": loss.item(), "gradient": logprobs.grad.tolist()}


def numbers():
    given = tokens()
    return {
        "tokens": {name: values.tolist() for name, values in given.items()},
        "cases": {name: {**settings, **trl_loss(given, settings)} for name, settings in CASES.items()},
    }


if __name__ == "__main__":
    print(json.dumps(numbers()))
