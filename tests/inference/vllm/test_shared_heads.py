"""A server whose ranks are more than the model's key heads: weights with biases are compared rank by rank."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from shutil import copyfile
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, Qwen2Config, Qwen2ForCausalLM

from whet.errors import TrainingError
from whet.inference.model_names import resolve_model
from whet.inference.protocol import SampleRequest, SamplingParams, WeightUpdate
from whet.inference.vllm.engine import VllmEngine
from whet.inference.vllm.http_connection import HttpPool
from whet.inference.vllm.members import headers
from whet.inference.vllm.server import VllmServer

pytestmark = [pytest.mark.parts, pytest.mark.timeout(600)]
PROMPT = [5, 17, 33, 90, 120, 44]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Qwen2, whose queries, keys and values have biases, with one key head."""
    torch.manual_seed(0)
    sizes = {"hidden_size": 128, "intermediate_size": 256, "num_attention_heads": 4, "num_key_value_heads": 1}
    found = Qwen2ForCausalLM(Qwen2Config(vocab_size=512, num_hidden_layers=2, max_position_embeddings=512, **sizes))
    for name, parameter in found.named_parameters():
        if "norm" not in name:
            torch.nn.init.normal_(parameter, std=0.1)
    path = tmp_path_factory.mktemp("shared-heads")
    found.save_pretrained(path)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        copyfile(resolve_model("whet/tiny") / name, path / name)
    return path


@pytest.fixture(scope="module")
def server(vllm_servers: Any, model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[VllmServer]:
    options = {"enable-lora": False, "max-lora-rank": 8, "max-loras": 1, "tensor-parallel-size": 2}
    server: VllmServer = vllm_servers.server(tmp_path_factory.mktemp("vllm"), "heads", model=model, **options)
    server.start()
    try:
        asyncio.run(server.ready())
        yield server
    finally:
        server.close()


@pytest.mark.long
def test_right_weights_are_taken_and_a_wrong_bias_is_found(server: VllmServer, model: Path, tmp_path: Path) -> None:
    draw = torch.Generator().manual_seed(1)
    changed = {
        name: tensor * (1 + 0.1 * torch.randn(tensor.shape, generator=draw))
        for name, tensor in load_file(model / "model.safetensors").items()
    }
    save_file(changed, tmp_path / "changed.safetensors", metadata={"format": "pt"})
    lacking = {name: tensor for name, tensor in changed.items() if name != "model.layers.1.self_attn.k_proj.bias"}
    save_file(lacking, tmp_path / "lacking.safetensors", metadata={"format": "pt"})

    async def whole() -> Any:
        engine = VllmEngine(HttpPool(server.socket, headers(server.key)), max_context=512)
        try:
            await engine.load_weights(WeightUpdate(1, tmp_path / "changed.safetensors"))
            sample = await engine.sample(SampleRequest(PROMPT, SamplingParams(max_tokens=24)))
            with pytest.raises(TrainingError, match=r"the first is model\.layers\.1\.self_attn\.qkv_proj\.bias"):
                await engine.load_weights(WeightUpdate(2, tmp_path / "lacking.safetensors"))
            return sample
        finally:
            await engine.close()

    sample = asyncio.run(whole())
    torch.set_num_threads(1)
    reference = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32)
    reference.load_state_dict(changed, strict=False)
    with torch.no_grad():
        logits = reference(torch.tensor([PROMPT + sample.ids])).logits[0, len(PROMPT) - 1 : -1]
    expected = logits.log_softmax(-1)[torch.arange(len(sample.ids)), torch.tensor(sample.ids)]
    assert float((torch.tensor(sample.logprobs) - expected).abs().max()) < 0.01
