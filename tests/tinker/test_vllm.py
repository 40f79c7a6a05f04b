"""Sampling on a real vLLM server: saved weights, logprobs of prompts, and what it cannot do. `make vllm` sets it up."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import openai
import pytest
import tinker
from tinker import types

from whet.errors import ConfigError, EngineError
from whet.inference.vllm.policy import open_vllm_policy
from whet.tinker.serve import TinkerConfig, check_engine

SENTENCE = [5, 17, 33, 90, 120, 44, 9, 61, 5, 17, 33]
PROMPT = types.ModelInput.from_ints(SENTENCE)


@pytest.fixture
def sampled(serving: Any, tmp_path: Path, vllm_servers: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    monkeypatch.setenv("WHET_VLLM_PYTHON", str(vllm_servers.python()))
    opening = partial(open_vllm_policy, "whet/tiny", threads=1, adapters=True, highest_rank=16)
    with serving.serving(tmp_path / "data", sampled=opening) as served:
        yield served


@pytest.mark.parts
def test_vllm_samples_what_was_trained(sampled: Any, datum: Callable[..., Any]) -> None:
    client = tinker.ServiceClient(base_url=sampled.url, api_key=sampled.key)
    base = client.create_sampling_client(base_model="whet/tiny").result()
    sentence = [datum(SENTENCE[:-1], target_tokens=SENTENCE[1:], weights=[1.0] * 10)]
    for rank, unembed in ((4, True), (16, False)):
        trainer = client.create_lora_training_client(
            base_model="whet/tiny", rank=rank, seed=rank, train_unembed=unembed
        ).result()
        for _ in range(10):
            trainer.forward_backward(sentence, "cross_entropy")
            trainer.optim_step(types.AdamParams(learning_rate=5e-3)).result()
        expected = trainer.forward(sentence, "cross_entropy").result().loss_fn_outputs[0]["logprobs"].to_numpy()
        sampler = trainer.save_weights_and_get_sampling_client()
        found = sampler.compute_logprobs(PROMPT).result()
        np.testing.assert_allclose(np.asarray(found[1:], np.float32), expected, atol=1e-4)
        assert np.abs(np.asarray(base.compute_logprobs(PROMPT).result()[1:]) - expected).max() > 0.1
        answer = sampler.sample(PROMPT, 2, types.SamplingParams(max_tokens=6, temperature=0), topk_prompt_logprobs=3)
        assert len(answer.result().sequences[1].tokens) == 6
        path = trainer.save_weights_for_sampler("mine").result().path
        chat = openai.OpenAI(base_url=f"{sampled.url}/oai/api/v1", api_key=sampled.key, max_retries=0)
        stream = chat.completions.create(model=path, prompt="hello", max_tokens=5, stream=True)
        assert "".join(chunk.choices[0].text for chunk in stream)
    targets = types.TensorData(data=[1] * 10, dtype="int64", shape=[10, 1])
    for params, more, said in (
        ({}, {"target_prompt_logprobs": targets}, "scoring.targets"),
        ({}, {"prompt_alt_tokens_k": 2}, "scoring.prompt_draws"),
        ({"seed": 1}, {}, "seed"),
        ({"top_p": 0.9}, {}, "top_p 0.9"),
    ):
        with pytest.raises((tinker.RequestFailedError, tinker.UnprocessableEntityError), match=said):
            base.sample(PROMPT, 1, types.SamplingParams(max_tokens=2, **params), **more).result()
    client.close("success").result()


def test_options_of_the_other_engine_are_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("WHET_VLLM_PYTHON", str(tmp_path / "none"))
    with pytest.raises(ConfigError, match="--engine vllm"):
        check_engine(TinkerConfig(engine_memory=0.5))
    with pytest.raises(ConfigError, match="--base packed"):
        check_engine(TinkerConfig(engine="vllm", base="packed"))
    with pytest.raises(EngineError, match="does not exist"):
        check_engine(TinkerConfig(engine="vllm"))
