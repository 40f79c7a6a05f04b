"""The batches of a training run, trained again through the SDK: the same losses and the same weights."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from safetensors.numpy import load_file

STEPS, ROLLOUTS, RATE = 4, 16, 3e-3
CONFIG = """\
model = "whet/tiny"
max_steps = {steps}
batch_size = {rollouts}
rollouts_per_example = 4
max_async_level = 0
learning_rate = {rate}
seed = 1
algorithm = {{ recipe = "rloo", loss = "{loss}" }}
sampling = {{ max_tokens = 12 }}
learner = {{ device = "cpu" }}
eval = {{ num_examples = 1, rollouts_per_example = 1 }}
lora = {{ rank = 4, path = "{path}", target_modules = {targets} }}

[[env]]
id = "reverse-text"
args = {{ min_length = 4, max_length = 6 }}
"""


def download(served: Any, path: str, to: Path) -> Path:
    import tinker

    to.mkdir()
    for name, url in (
        tinker.RestClient(base_url=served.url, api_key=served.key).get_external_weights_urls(path).result().urls.items()
    ):
        (to / name).write_bytes(httpx.get(url).content)
    return to


def of_rollout(datum: Callable[..., Any], row: dict[str, Any], rollouts: int) -> Any:
    """A rollout of one turn. The run divides its loss by its rollouts; here nothing is divided, so advantages are."""
    [turn] = row["turns"]
    prompt, completion = turn["prompt_ids"], turn["completion_ids"]
    before = [0.0] * (len(prompt) - 1)
    return datum(
        [*prompt, *completion[:-1]],
        target_tokens=[*prompt[1:], *completion],
        logprobs=[*before, *turn["completion_logprobs"]],
        advantages=[*before, *[row["advantage"] / rollouts] * len(completion)],
    )


@pytest.mark.parts
@pytest.mark.parametrize(
    ("loss", "settings"),
    [("importance_sampling", {}), ("ppo", {"clip_low_threshold": 0.8, "clip_high_threshold": 1.2})],
)
def test_batches_of_a_run_train_the_same(
    serving: Any, warm: Any, tmp_path: Path, datum: Callable[..., Any], loss: str, settings: dict[str, float]
) -> None:
    import tinker

    with serving.serving(tmp_path / "server") as served:
        client = tinker.ServiceClient(base_url=served.url, api_key=served.key)
        trainer = client.create_lora_training_client("whet/tiny", rank=4, seed=3, train_unembed=False).result()
        first = download(served, trainer.save_weights_external("first").result().path, tmp_path / "first")
        base = served.server.base
        how = {"path": first, "targets": json.dumps([*base.attention, *base.mlp]), "loss": loss}
        config = CONFIG.format(steps=STEPS, rollouts=ROLLOUTS, rate=RATE, **how)
        (tmp_path / "run.toml").write_text(config, encoding="utf-8")
        warm.run("train", "run", str(tmp_path / "run.toml"), "--name", "run", cwd=tmp_path)
        run = tmp_path / "runs" / "run"
        expected = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
        params = tinker.AdamParams(
            learning_rate=RATE, beta1=0.9, beta2=0.95, eps=1e-8, weight_decay=0.0, grad_clip_norm=1.0
        )
        for step in range(STEPS):
            lines = (run / "rollouts" / f"step_{step + 1:06d}.jsonl").read_text().splitlines()
            data = [of_rollout(datum, json.loads(line), ROLLOUTS) for line in lines]
            assert len(data) == ROLLOUTS
            passed = trainer.forward_backward(data, loss, settings).result()
            stepped = trainer.optim_step(params).result()
            assert passed.metrics["loss:sum"] == pytest.approx(expected[step]["optim/loss"], abs=1e-5)
            assert stepped.metrics["grad_norm"] == pytest.approx(expected[step]["optim/grad_norm"], rel=1e-4)
        last = download(served, trainer.save_weights_external("last").result().path, tmp_path / "last")
    weights, own, began = (
        load_file(folder / "adapter_model.safetensors") for folder in (last, run / "adapters" / f"step_{STEPS}", first)
    )
    assert weights.keys() == own.keys()
    assert max(np.abs(weights[name] - began[name]).max() for name in weights) > RATE  # it has moved
    assert max(np.abs(weights[name] - own[name]).max() for name in weights) < 1e-5
