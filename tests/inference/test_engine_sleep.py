"""The embedded engine asleep: its tensors are gone, nothing is answered, and it wakes as if it had never slept."""

from __future__ import annotations

import asyncio
import gc
import warnings
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import LoraConfig, get_peft_model
from safetensors.torch import load_file, save_file
from tests.inference.plain import small_models

from whet.errors import ModelError, ModelLoadError
from whet.inference.embedded import EmbeddedEngine
from whet.inference.protocol import Sample, SampleRequest, SamplingParams, WeightUpdate

Checkpoints = Callable[[str], tuple[Path, Any]]
PROMPTS = [[1, 2, 3, 4, 5], [9, 8, 7], [1, 2, 3, 6]]


def live_bytes() -> int:
    """Of all tensors that Python can reach, each memory once."""
    gc.collect()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of modules that look attributes up when their class is asked for
        tensors = [one for one in gc.get_objects() if issubclass(type(one), torch.Tensor)]
    storages = [tensor.untyped_storage() for tensor in tensors if tensor.device.type == "cpu"]
    return sum({storage.data_ptr(): storage.nbytes() for storage in storages}.values())


def new_weights(directory: Path, path: Path) -> WeightUpdate:
    """Those of a checkpoint, with noise."""
    torch.manual_seed(7)
    named = load_file(directory / "model.safetensors")
    save_file({name: tensor + 0.02 * torch.randn_like(tensor) for name, tensor in named.items()}, path)
    return WeightUpdate(1, path)


async def sampled(engine: EmbeddedEngine) -> list[Sample]:
    requests = [SampleRequest(prompt, SamplingParams(max_tokens=9, seed=3)) for prompt in PROMPTS]
    return await asyncio.gather(*(engine.sample(request) for request in requests))


def run(work: Coroutine[Any, Any, Any]) -> Any:
    torch.set_num_threads(1)
    return asyncio.run(work)


@pytest.mark.parametrize("kind", ["qwen3", "qwen3-moe", "llama"])
def test_what_sleep_says_it_freed_is_gone_and_nothing_of_weights_or_cache_is_left(
    checkpoints: Checkpoints, tmp_path: Path, kind: str
) -> None:
    directory, model = checkpoints(kind)
    update = new_weights(directory, tmp_path / "new.safetensors")

    async def body() -> None:
        engine = EmbeddedEngine.from_directory(directory)
        await sampled(engine)
        before = live_bytes()
        freed = await engine.sleep()
        after = live_bytes()
        weights = sum(p.numel() for p in model.parameters()) * 4
        assert freed > weights
        assert abs((before - after) - freed) < 4096  # an element of each tensor stays, and so do rows of tokens
        await engine.wake(update)
        assert live_bytes() - after >= weights

    run(body())


def test_it_wakes_with_the_bits_of_an_engine_that_never_slept(checkpoints: Checkpoints, tmp_path: Path) -> None:
    directory, _ = checkpoints("qwen3")
    update = new_weights(directory, tmp_path / "new.safetensors")

    async def samples(*, sleeps: bool) -> list[Sample]:
        engine = EmbeddedEngine.from_directory(directory)
        first = await sampled(engine)
        if sleeps:
            await engine.sleep()
            await engine.wake(update)
        else:
            await engine.load_weights(update)
        return first + await sampled(engine)

    slept, awake = run(samples(sleeps=True)), run(samples(sleeps=False))
    assert [(one.ids, one.logprobs, one.versions) for one in slept] == [
        (one.ids, one.logprobs, one.versions) for one in awake
    ]
    assert slept[0].ids != slept[3].ids
    assert slept[3].versions == [(1, 9)]


def test_a_family_of_transformers_own_sleeps_too(tmp_path_factory: pytest.TempPathFactory, tmp_path: Path) -> None:
    directory, model = small_models.built_once(tmp_path_factory)("gpt2")
    update = new_weights(directory, tmp_path / "new.safetensors")

    async def body() -> None:
        engine = EmbeddedEngine.from_directory(directory)
        before = await sampled(engine)
        held = live_bytes()
        freed = await engine.sleep()
        assert freed > sum(p.numel() for p in model.parameters()) * 4
        assert abs((held - live_bytes()) - freed) < 4096
        await engine.wake(update)
        assert [one.ids for one in await sampled(engine)] != [one.ids for one in before]

    run(body())


def test_the_base_stays_for_the_next_adapter(checkpoints: Checkpoints, tmp_path: Path) -> None:
    directory, _ = checkpoints("qwen3")

    def adapter(version: int) -> WeightUpdate:
        from transformers import AutoModelForCausalLM

        torch.manual_seed(version)
        layers = LoraConfig(task_type="CAUSAL_LM", r=4, target_modules=["q_proj", "v_proj"], init_lora_weights=False)
        get_peft_model(AutoModelForCausalLM.from_pretrained(directory), layers).save_pretrained(tmp_path / f"{version}")
        return WeightUpdate(version, tmp_path / f"{version}", "adapter")

    async def samples(*, sleeps: bool) -> list[Sample]:
        engine = EmbeddedEngine.from_directory(directory)
        await engine.load_weights(adapter(1))
        if sleeps:
            assert await engine.sleep() > 0
            await engine.wake(adapter(2))
        else:
            await engine.load_weights(adapter(2))
        return await sampled(engine)

    slept, awake = run(samples(sleeps=True)), run(samples(sleeps=False))
    assert [(one.ids, one.logprobs) for one in slept] == [(one.ids, one.logprobs) for one in awake]


def test_requests_are_refused_while_it_sleeps_and_an_adapter_alone_does_not_wake_it(
    checkpoints: Checkpoints, tmp_path: Path
) -> None:
    directory, _ = checkpoints("qwen3")

    async def body() -> None:
        engine = EmbeddedEngine.from_directory(directory)
        await engine.sleep()
        with pytest.raises(ModelError, match="the engine sleeps"):
            await sampled(engine)
        with pytest.raises(ModelLoadError, match="were freed, and an adapter cannot be put onto those"):
            await engine.wake(WeightUpdate(1, tmp_path, "adapter"))
        with pytest.raises(ModelError, match="the engine sleeps"):
            await sampled(engine)
        await engine.wake(new_weights(directory, tmp_path / "new.safetensors"))
        assert len(await sampled(engine)) == len(PROMPTS)
        await engine.sleep()
        await engine.close()

    run(body())


def test_an_engine_that_answers_does_not_sleep(checkpoints: Checkpoints) -> None:
    async def body() -> None:
        engine = EmbeddedEngine.from_directory(checkpoints("qwen3")[0])
        answers = asyncio.create_task(sampled(engine))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        with pytest.raises(ModelError, match="an engine that answers requests"):
            await engine.sleep()
        assert len(await answers) == len(PROMPTS)

    run(body())
