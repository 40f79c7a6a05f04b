"""The server with whet/tiny, through the SDK: the tokenizer, learning, several models at once, exports for peft."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
import torch

RATE = 3e-3


@pytest.fixture(scope="module")
def base_and_bank() -> Any:
    from whet.tinker.opening import load_base

    return load_base("whet/tiny")


@pytest.fixture
def tiny(serving: Any, tmp_path: Path, base_and_bank: Any) -> Iterator[Any]:
    with serving.serving(tmp_path / "data", base_and_bank=base_and_bank) as served:
        yield served
    for name in base_and_bank[1].names:
        base_and_bank[1].remove(name)


@pytest.fixture
def tiny_client(tiny: Any) -> Iterator[Any]:
    import tinker

    opened = tinker.ServiceClient(base_url=tiny.url, api_key=tiny.key)
    yield opened
    opened.close("success").result()


def steps(trainer: Any, data: list[Any], count: int = 3) -> list[float]:
    import tinker

    losses = []
    for _ in range(count):
        passed = trainer.forward_backward(data, "cross_entropy")
        trainer.optim_step(tinker.AdamParams(learning_rate=RATE)).result(timeout=120)
        losses.append(passed.result(timeout=120).metrics["loss:sum"])
    return losses


def text(datum: Callable[..., Any], ids: list[int]) -> Any:
    return datum(ids[:-1], target_tokens=ids[1:], weights=[1.0] * (len(ids) - 1))


def test_it_learns_a_sentence(tiny_client: Any, datum: Callable[..., Any]) -> None:
    trainer = tiny_client.create_lora_training_client(base_model="whet/tiny", rank=8, seed=0).result()
    ids = trainer.get_tokenizer().encode("the loop is yours, the model is here")
    losses = steps(trainer, [text(datum, ids)], 12)
    assert losses[-1] < 0.5 * losses[0]


@pytest.mark.parametrize("count", [6, pytest.param(32, marks=pytest.mark.long)])
def test_models_at_once_are_what_they_are_alone(
    tiny: Any, tiny_client: Any, datum: Callable[..., Any], count: int
) -> None:
    import tinker

    data = [text(datum, list(range(5, 5 + n))) for n in (7, 12, 30)]
    parts: list[dict[str, Any]] = [{}, {"train_mlp": False}, {"train_unembed": False}, {"train_attn": False}]
    how = [{"rank": 1 + i, **parts[i % 4]} for i in range(count)]

    def made() -> list[Any]:
        return [
            tiny_client.create_lora_training_client(base_model="whet/tiny", seed=i, **more).result()
            for i, more in enumerate(how)
        ]

    alone = [steps(trainer, data[: 1 + i % 3]) for i, trainer in enumerate(made())]
    together = made()
    futures: list[list[Any]] = [[] for _ in together]
    for _ in range(3):
        for i, trainer in enumerate(together):
            futures[i].append(trainer.forward_backward(data[: 1 + i % 3], "cross_entropy"))
            trainer.optim_step(tinker.AdamParams(learning_rate=RATE))
    assert [[one.result(timeout=120).metrics["loss:sum"] for one in row] for row in futures] == alone


def test_an_export_is_read_by_peft(
    tiny: Any, tiny_client: Any, datum: Callable[..., Any], tmp_path: Path, base_and_bank: Any
) -> None:
    import tinker
    from peft import PeftModel

    from whet.inference.model_names import resolve_model
    from whet.rl.learner.make import load_model

    trainer = tiny_client.create_lora_training_client(base_model="whet/tiny", rank=4, seed=5).result()
    one = text(datum, list(range(20, 40)))
    steps(trainer, [one])
    expected = trainer.forward([one], "cross_entropy").result().loss_fn_outputs[0]["logprobs"].to_numpy()
    path = trainer.save_weights_external("out").result().path
    rest = tinker.RestClient(base_url=tiny.url, api_key=tiny.key)
    folder = tmp_path / "adapter"
    folder.mkdir()
    for name, url in rest.get_external_weights_urls(path).result().urls.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(httpx.get(url).content)
    assert json.loads((folder / "adapter_config.json").read_text())["r"] == 4
    model = PeftModel.from_pretrained(load_model(resolve_model("whet/tiny")), str(folder))
    ids = torch.tensor([list(range(20, 39))])
    with torch.no_grad():
        logprobs = model(ids).logits.log_softmax(-1)[0]
    own = logprobs.gather(-1, torch.arange(21, 40)[:, None])[:, 0].numpy()
    assert np.abs(own - expected).max() < 1e-5
    assert np.abs(engine_logprobs(folder, list(range(20, 40))) - expected).max() < 1e-5


def engine_logprobs(folder: Path, ids: list[int]) -> Any:
    """Those of an engine of the adapter alone, as `whet eval run -m FOLDER` has one: of lm_head over a tied base."""
    from whet.inference.loading import load_policy
    from whet.inference.protocol import SampleRequest, SamplingParams, Scoring

    policy = load_policy(str(folder), device="cpu")

    async def score() -> Any:
        request = SampleRequest(ids, SamplingParams(max_tokens=1), scoring=Scoring(prompt=True))
        sample = await policy.engine.sample(request)
        await policy.engine.close()
        return sample.prompt_scores.logprobs

    return asyncio.run(score())[1:]


def test_a_start_continues(serving: Any, tmp_path: Path, datum: Callable[..., Any], base_and_bank: Any) -> None:
    """The bits after a start are those without one: states and the steps after them."""
    import tinker

    bank, one = base_and_bank[1], text(datum, list(range(5, 25)))
    losses = []
    for name, stop in (("whole", False), ("stopped", True)):
        with serving.serving(tmp_path / name, base_and_bank=base_and_bank, state_every=2) as served:
            client = tinker.ServiceClient(base_url=served.url, api_key=served.key)
            trainer = client.create_lora_training_client(base_model="whet/tiny", rank=4, seed=1).result()
            row = steps(trainer, [one], 3)
            trainer.forward_backward([one], "cross_entropy").result()
            port = int(served.url.rpartition(":")[2])
            if not stop:
                losses.append(row + steps(trainer, [one], 2))
        for adapter in bank.names:
            bank.remove(adapter)
        if stop:
            with serving.serving(tmp_path / name, port, base_and_bank=base_and_bank):
                losses.append(row + steps(trainer, [one], 2))
            for adapter in bank.names:
                bank.remove(adapter)
    assert losses[0] == losses[1]
