"""From the name of a model to a policy: what is loaded, and the one line for what cannot be."""

import asyncio
import json
from pathlib import Path

import pytest
from safetensors.torch import load_file, save_file
from transformers import tokenization_utils_base

from whet.errors import ModelLoadError
from whet.inference.loading import load_policy, read_model
from whet.inference.protocol import SampleRequest, SamplingParams
from whet.models import tiny
from whet.rl.learner.config import LoraConfig, OptimizerConfig
from whet.rl.learner.make import make_learner


@pytest.fixture
def adapter(tmp_path: Path) -> Path:
    """A LoRA adapter of whet/tiny that changes what is sampled."""
    learner = make_learner(
        tiny.path(),
        optimizer=OptimizerConfig(),
        lora=LoraConfig(rank=4),
        max_steps=1,
        seed=0,
        threads=1,
        publish_directory=tmp_path,
    )
    target = tmp_path / "adapter"
    learner.export(target)
    file = target / "adapter_model.safetensors"
    save_file({name: tensor + 0.3 for name, tensor in load_file(file).items()}, file)
    return target


def logprobs(model: str) -> list[float]:
    async def sample() -> list[float]:
        engine = load_policy(model, threads=1).engine
        try:
            params = SamplingParams(max_tokens=4, seed=1)
            return (await engine.sample(SampleRequest(prompt_ids=[257, 266, 198, 70, 71], params=params))).logprobs
        finally:
            await engine.close()

    return asyncio.run(sample())


def test_a_directory_with_an_adapter_is_its_base_model_with_the_adapter_merged(adapter: Path) -> None:
    assert logprobs(str(adapter)) != logprobs("whet/tiny")


def test_an_adapter_whose_base_is_gone_names_both(adapter: Path) -> None:
    config = adapter / "adapter_config.json"
    config.write_text(json.dumps({**json.loads(config.read_text()), "base_model_name_or_path": "/no/such/base"}))
    with pytest.raises(ModelLoadError, match=r"is an adapter of /no/such/base"):
        load_policy(str(adapter))


def test_an_adapter_is_refused_as_the_start_of_training(adapter: Path, tmp_path: Path) -> None:
    with pytest.raises(ModelLoadError, match="adapter"):
        make_learner(
            adapter,
            optimizer=OptimizerConfig(),
            lora=None,
            max_steps=1,
            seed=0,
            threads=1,
            publish_directory=tmp_path,
        )


def test_a_missing_directory_says_what_can_be_given() -> None:
    with pytest.raises(ModelLoadError, match="whet/tiny"):
        load_policy("./no/such/model")


def test_tokenizer_does_not_warn_of_long_prompts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    said: list[object] = []
    monkeypatch.setattr(tokenization_utils_base.logger, "warning", lambda *message: said.append(message))
    ids = read_model("whet/tiny").tokenizer.encode("9" * 2000)
    assert len(ids) > 1024
    assert said == []
