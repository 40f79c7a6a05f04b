"""A mixture of experts on a real vLLM server: its logprobs before and after a load of new weights."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from shutil import copyfile
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, Qwen3MoeConfig, Qwen3MoeForCausalLM

from whet.inference.model_names import resolve_model
from whet.inference.protocol import Sample, SampleRequest, SamplingParams, WeightUpdate
from whet.inference.vllm.engine import VllmEngine
from whet.inference.vllm.http_connection import HttpPool
from whet.inference.vllm.members import headers
from whet.inference.vllm.server import VllmServer

pytestmark = pytest.mark.parts
PROMPT = [5, 17, 33, 90, 120, 44]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.manual_seed(0)
    config = Qwen3MoeConfig(
        vocab_size=512,
        hidden_size=128,
        intermediate_size=256,
        moe_intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=32,
        num_experts=8,
        num_experts_per_tok=2,
        max_position_embeddings=512,
    )
    found = Qwen3MoeForCausalLM(config)
    for name, parameter in found.named_parameters():
        if "norm" not in name:
            torch.nn.init.normal_(parameter, std=0.1)
    path = tmp_path_factory.mktemp("experts")
    found.save_pretrained(path)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        copyfile(resolve_model("whet/tiny") / name, path / name)
    return path


@pytest.fixture(scope="module")
def server(vllm_servers: Any, model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[VllmServer]:
    options = {"enable-lora": False, "max-lora-rank": 8, "max-loras": 1}
    server: VllmServer = vllm_servers.server(tmp_path_factory.mktemp("vllm"), "experts", model=model, **options)
    server.start()
    try:
        asyncio.run(server.ready())
        yield server
    finally:
        server.close()


def largest_difference(model: Path, sample: Sample) -> float:
    """Of the sample's logprobs from those of a plain forward pass."""
    torch.set_num_threads(1)
    reference = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32)
    with torch.no_grad():
        logits = reference(torch.tensor([PROMPT + sample.ids])).logits[0, len(PROMPT) - 1 : -1]
    expected = logits.log_softmax(-1)[torch.arange(len(sample.ids)), torch.tensor(sample.ids)]
    return float((torch.tensor(sample.logprobs) - expected).abs().max())


@pytest.mark.long
def test_logprobs_are_those_of_the_weights_before_and_after_loads(
    server: VllmServer, model: Path, tmp_path: Path
) -> None:
    """vLLM 0.32 leaves experts unpacked after a load on a CPU: the second one finds what the first one packed."""
    draw = torch.Generator().manual_seed(1)
    paths = [model]
    for version in (1, 2):
        path = tmp_path / str(version)
        path.mkdir()
        for file in model.iterdir():
            copyfile(file, path / file.name)
        changed = {
            name: tensor * (1 + 0.1 * torch.randn(tensor.shape, generator=draw))
            for name, tensor in load_file(model / "model.safetensors").items()
        }
        save_file(changed, path / "model.safetensors", metadata={"format": "pt"})
        paths.append(path)

    async def run() -> list[Sample]:
        engine = VllmEngine(HttpPool(server.socket, headers(server.key)), max_context=512)
        request = SampleRequest(PROMPT, SamplingParams(max_tokens=24))
        samples = [await engine.sample(request)]
        for version in (1, 2):
            update = WeightUpdate(version, paths[version] / "model.safetensors")
            await engine.load_weights(update)
            samples.append(await engine.sample(request))
        await engine.close()
        return samples

    for path, sample in zip(paths, asyncio.run(run()), strict=True):
        assert largest_difference(path, sample) < 0.001
