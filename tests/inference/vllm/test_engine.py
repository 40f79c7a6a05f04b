"""The engine on a real vLLM server: logprobs, versions, weights, adapters. `make vllm` sets the server up."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import LoraConfig, get_peft_model
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import AutoModelForCausalLM

from whet.errors import ModelError, OverlongPromptError, RequestRefusedError, TrainingError
from whet.inference.model_names import resolve_model
from whet.inference.protocol import Sample, SampleRequest, SamplingParams, Scoring, WeightUpdate
from whet.inference.vllm.engine import VllmEngine
from whet.inference.vllm.http_connection import HttpPool
from whet.inference.vllm.members import headers
from whet.inference.vllm.server import VllmServer

pytestmark = pytest.mark.parts
TINY = resolve_model("whet/tiny")
PROMPTS = [[5 + number, 17, 33, 90, 120, 44] for number in range(12)]
Perturbed = Callable[[int], Path]


@pytest.fixture(scope="module")
def perturbed(tmp_path_factory: pytest.TempPathFactory) -> Perturbed:
    """The file with the weights of a version: 0 is the model itself, each other one has noise of its own."""
    directory = tmp_path_factory.mktemp("weights")

    def of(version: int) -> Path:
        path = directory / f"{version}.safetensors"
        if not path.exists():
            draw = torch.Generator().manual_seed(version)
            noise = 0.1 if version else 0.0
            tensors = {
                name: tensor.float() * (1 + noise * torch.randn(tensor.shape, generator=draw))
                for name, tensor in load_file(TINY / "model.safetensors").items()
            }
            save_file(tensors, path, metadata={"format": "pt"})
        return path

    return of


class Reference:
    """Logprobs of a plain forward pass, by version."""

    def __init__(self, perturbed: Perturbed) -> None:
        torch.set_num_threads(1)
        self.model = AutoModelForCausalLM.from_pretrained(TINY, dtype=torch.float32)
        self._perturbed = perturbed

    def load(self, version: int) -> None:
        self.model.load_state_dict(load_file(self._perturbed(version)), strict=False)
        self.model.tie_weights()

    def logprobs(self, prompt: list[int], ids: list[int], temperature: float) -> Tensor:
        with torch.no_grad():
            logits = self.model(torch.tensor([prompt + ids])).logits[0, len(prompt) - 1 : -1].float() / temperature
        return logits.log_softmax(-1)[torch.arange(len(ids)), torch.tensor(ids)]

    def differences(self, prompt: list[int], sample: Sample, temperature: float) -> Tensor:
        """Of a sample whose tokens may be of several versions."""
        found, begin = [], 0
        for version, count in sample.versions:
            self.load(version)
            before, ids = prompt + sample.ids[:begin], sample.ids[begin : begin + count]
            expected = self.logprobs(before, ids, temperature)
            found.append((torch.tensor(sample.logprobs[begin : begin + count]) - expected).abs())
            begin += count
        assert begin == len(sample.ids)
        return torch.cat(found)


@pytest.fixture(scope="module")
def reference(perturbed: Perturbed) -> Reference:
    return Reference(perturbed)


def request(prompt: list[int], **params: Any) -> SampleRequest:
    adapter = params.pop("adapter", None)
    return SampleRequest(prompt, SamplingParams(**{"max_tokens": 24, **params}), adapter=adapter)


async def sampled(engine: VllmEngine, **params: Any) -> list[Sample]:
    return await asyncio.gather(*(engine.sample(request(prompt, **params)) for prompt in PROMPTS))


@pytest.fixture
def engine(vllm_server: VllmServer) -> VllmEngine:
    return VllmEngine(HttpPool(vllm_server.socket, headers(vllm_server.key)), max_context=512)


@pytest.fixture
def run(engine: VllmEngine, perturbed: Perturbed) -> Callable[[Callable[[VllmEngine], Any]], Any]:
    """Runs a coroutine on the engine, which begins with the model's own weights."""

    def run(body: Callable[[VllmEngine], Any]) -> Any:
        async def whole() -> Any:
            await engine.load_weights(WeightUpdate(0, perturbed(0)))
            try:
                return await body(engine)
            finally:
                await engine.close()

        return asyncio.run(whole())

    return run


def test_scores_of_prompts_and_likeliest_tokens_are_those_of_the_model(run: Any, reference: Reference) -> None:
    prompt = PROMPTS[0]
    wanted = replace(request(prompt, max_tokens=4), scoring=Scoring(prompt=True, prompt_top=3, top=2))
    (sample,) = run(lambda engine: asyncio.gather(engine.sample(wanted)))
    reference.load(0)
    with torch.no_grad():
        logprobs = reference.model(torch.tensor([prompt + sample.ids])).logits[0, :-1].float().log_softmax(-1)
    of_prompt, of_drawn, scores = logprobs[: len(prompt) - 1], logprobs[len(prompt) - 1 :], sample.prompt_scores
    own = of_prompt.gather(1, torch.tensor(prompt[1:])[:, None])
    for ids, given, expected in [
        (torch.tensor(prompt[1:])[:, None], scores.logprobs[1:, None], own),
        (torch.from_numpy(scores.top.ids[1:]).long(), scores.top.logprobs[1:], of_prompt.topk(3).values),
        (torch.from_numpy(sample.top.ids).long(), sample.top.logprobs, of_drawn.topk(2).values),
    ]:
        of = of_prompt if len(ids) == len(of_prompt) else of_drawn
        torch.testing.assert_close(torch.from_numpy(given), expected, atol=0.02, rtol=0)
        torch.testing.assert_close(torch.from_numpy(given), of.gather(1, ids), atol=0.02, rtol=0)


@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_logprobs_are_those_of_a_plain_forward_pass(run: Any, reference: Reference, temperature: float) -> None:
    samples = run(lambda engine: sampled(engine, temperature=temperature))
    differences = torch.cat([reference.differences(p, s, temperature) for p, s in zip(PROMPTS, samples, strict=True)])
    assert differences.mean() < 0.002
    assert differences.max() < 0.01


def test_greedy_logprobs_are_those_of_temperature_1(run: Any, reference: Reference) -> None:
    (sample,) = run(lambda engine: asyncio.gather(engine.sample(request(PROMPTS[0], temperature=0, top_p=0.5))))
    reference.load(0)
    with torch.no_grad():
        logits = reference.model(torch.tensor([PROMPTS[0] + sample.ids])).logits[0, len(PROMPTS[0]) - 1 : -1]
    assert logits.argmax(-1).tolist() == sample.ids
    assert reference.differences(PROMPTS[0], sample, 1.0).max() < 0.01


def test_weights_that_change_in_mid_generation_are_seen_in_versions_and_logprobs(
    run: Any, reference: Reference, perturbed: Perturbed
) -> None:
    prompts = PROMPTS * 12  # more than are answered at once: whenever weights change, some answers are half done
    heard: list[list[int]] = [[] for _ in prompts]
    updates = [WeightUpdate(version, perturbed(version)) for version in (1, 2, 3)]  # made while nothing is sampled

    async def body(engine: VllmEngine) -> list[Sample]:
        tasks = []
        for number, prompt in enumerate(prompts):
            listening = {"on_tokens": heard[number].extend} if number % 2 else {}
            long = request(prompt, temperature=0.7, max_tokens=500)
            tasks.append(asyncio.create_task(engine.sample(long, **listening)))
        for number, update in enumerate(updates, 1):
            while sum(map(len, heard)) < 1000 * number:
                await asyncio.sleep(0.001)
            await engine.load_weights(update)
            assert engine.version == number
        return await asyncio.gather(*tasks)

    samples = run(body)
    for number, sample in enumerate(samples):
        versions = [run.version for run in sample.versions]
        assert len(sample.ids) == 500
        assert versions == sorted(set(versions))
        if number % 2:
            assert heard[number] == sample.ids
    changed = [number for number, sample in enumerate(samples) if len(sample.versions) > 1]
    assert changed
    for number in changed[:12]:
        assert reference.differences(prompts[number], samples[number], 0.7).max() < 0.01


def test_a_server_that_slept_answers_with_the_weights_it_woke_with(
    run: Any, reference: Reference, perturbed: Perturbed
) -> None:
    """On a CPU vLLM frees nothing; requests and weights are as on a GPU."""

    async def body(engine: VllmEngine) -> tuple[int, list[Sample]]:
        await sampled(engine)
        freed = await engine.sleep()
        with pytest.raises(ModelError, match="the engine sleeps"):
            await engine.sample(request(PROMPTS[0]))
        await engine.wake(WeightUpdate(1, perturbed(1)))
        found = await sampled(engine)
        await engine.sleep()
        await engine.wake(WeightUpdate(2, perturbed(2)))
        return freed, [*found, *await sampled(engine)]

    freed, samples = run(body)
    assert freed == 0
    assert [sample.versions for sample in samples] == [[(1, 24)]] * 12 + [[(2, 24)]] * 12
    differences = [reference.differences(p, s, 1.0) for p, s in zip(PROMPTS * 2, samples, strict=True)]
    assert torch.cat(differences).max() < 0.01


def test_a_prefix_is_not_reused_over_an_update(run: Any, reference: Reference, perturbed: Perturbed) -> None:
    prompt = [(7 * number) % 250 + 1 for number in range(300)]

    async def body(engine: VllmEngine) -> list[Sample]:
        first = await engine.sample(request(prompt, max_tokens=8))
        await engine.load_weights(WeightUpdate(4, perturbed(4)))
        return [first, await engine.sample(request(prompt, max_tokens=8))]

    samples = run(body)
    assert [sample.versions[0].version for sample in samples] == [0, 4]
    for sample in samples:
        assert reference.differences(prompt, sample, 1.0).max() < 0.01


def test_weights_that_the_server_does_not_take_are_found(run: Any, perturbed: Perturbed, tmp_path: Path) -> None:
    """A file that lacks a matrix leaves the old one where it was."""
    tensors = load_file(perturbed(5))
    missing = "model.layers.1.self_attn.o_proj.weight"
    changed = {name: tensor for name, tensor in tensors.items() if name != missing}
    save_file(changed, tmp_path / "torn.safetensors", metadata={"format": "pt"})

    async def body(engine: VllmEngine) -> None:
        with pytest.raises(TrainingError, match=r"1 tensors differ, the first is model.layers.1.self_attn.o_proj"):
            await engine.load_weights(WeightUpdate(5, tmp_path / "torn.safetensors"))

    run(body)


def test_an_answer_ends_at_a_stop_token_or_string_which_stays(run: Any) -> None:
    async def body(engine: VllmEngine) -> tuple[Sample, Sample]:
        plain = await engine.sample(request(PROMPTS[0], temperature=0))
        return plain, await engine.sample(request(PROMPTS[0], temperature=0, stop_token_ids=(plain.ids[-1],)))

    plain, stopped = run(body)
    first = plain.ids.index(plain.ids[-1])
    assert stopped.ids == plain.ids[: first + 1]
    assert (plain.finish_reason, stopped.finish_reason) == ("length", "stop")


def test_requests_that_cannot_be_answered_right_are_refused(run: Any) -> None:
    async def body(engine: VllmEngine) -> None:
        with pytest.raises(RequestRefusedError, match=r"top_p 0.9"):
            await engine.sample(request(PROMPTS[0], top_p=0.9))
        with pytest.raises(OverlongPromptError, match="context of 512"):
            await engine.sample(request(PROMPTS[0], max_tokens=600))
        with pytest.raises(RequestRefusedError, match="no adapter 'none'"):
            await engine.sample(request(PROMPTS[0], adapter="none"))

    run(body)


@pytest.fixture(scope="module")
def adapters(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Ten adapters of the tiny model, each with other values."""
    directory, found = tmp_path_factory.mktemp("adapters"), []
    for number in range(10):
        torch.manual_seed(number)
        base = AutoModelForCausalLM.from_pretrained(TINY, dtype=torch.float32)
        model: Any = get_peft_model(
            base, LoraConfig(r=4, lora_alpha=8, target_modules=["q_proj", "v_proj", "down_proj"])
        )
        for name, parameter in model.named_parameters():
            if "lora_B" in name:
                torch.nn.init.normal_(parameter, std=0.3)
        model.save_pretrained(directory / str(number))
        found.append(directory / str(number))
    return found


def merged_logprobs(adapter: Path, prompt: list[int], ids: list[int]) -> Tensor:
    from peft import PeftModel

    model: Any = PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(TINY, dtype=torch.float32), adapter)
    with torch.no_grad():
        logits = model(torch.tensor([prompt + ids])).logits[0, len(prompt) - 1 : -1]
    return logits.log_softmax(-1)[torch.arange(len(ids)), torch.tensor(ids)]


def close_to(sample: Sample, adapter: Path, prompt: list[int]) -> bool:
    expected = merged_logprobs(adapter, prompt, sample.ids)
    return bool((torch.tensor(sample.logprobs) - expected).abs().max() < 0.01)


def test_ten_versions_of_an_adapter_as_the_policy(run: Any, adapters: list[Path]) -> None:
    prompt = [(3 * number) % 250 + 1 for number in range(100)]

    async def body(engine: VllmEngine) -> tuple[list[Sample], list[str]]:
        samples = []
        for version, path in enumerate(adapters, 1):
            await engine.load_weights(WeightUpdate(version, path, kind="adapter"))
            samples.append(await engine.sample(request(prompt)))
        return samples, await engine.served_names()

    samples, names = run(body)
    for version, (sample, path) in enumerate(zip(samples, adapters, strict=True), 1):
        assert sample.versions == [(version, 24)]
        assert close_to(sample, path, prompt)
    assert [name for name in names if "@" in name] == [name for name in names if name.startswith("policy@10-")]


def test_a_server_that_slept_answers_with_the_adapter_it_woke_with(run: Any, adapters: list[Path]) -> None:
    async def body(engine: VllmEngine) -> tuple[Sample, list[str]]:
        await engine.load_weights(WeightUpdate(1, adapters[0], kind="adapter"))
        await engine.sample(request(PROMPTS[0]))
        await engine.sleep()
        await engine.wake(WeightUpdate(2, adapters[1], kind="adapter"))
        return await engine.sample(request(PROMPTS[0])), await engine.served_names()

    sample, names = run(body)
    assert sample.versions == [(2, 24)]
    assert close_to(sample, adapters[1], PROMPTS[0])
    assert [name[:9] for name in names if name.startswith(("policy@1-", "policy@2-"))] == ["policy@2-"]


def test_two_adapters_at_once_and_old_ones_are_gone(run: Any, adapters: list[Path]) -> None:
    async def body(engine: VllmEngine) -> tuple[dict[str, list[Sample]], list[str]]:
        for name, path in (("a", adapters[0]), ("b", adapters[1])):
            await engine.load_weights(WeightUpdate(1, path, kind="adapter", adapter=name))
        both = await asyncio.gather(*(sampled(engine, adapter=name) for name in "ab"))
        await engine.load_weights(WeightUpdate(2, adapters[2], kind="adapter", adapter="a"))
        renewed = await sampled(engine, adapter="a")
        await engine.unload_adapter("b")
        with pytest.raises(RequestRefusedError, match="no adapter 'b'; it has: a"):
            await engine.sample(request(PROMPTS[0], adapter="b"))
        names = await engine.served_names()
        await engine.unload_adapter("a")
        return {"a": both[0], "b": both[1], "renewed": renewed}, names

    answers, names = run(body)
    for name, path in (("a", adapters[0]), ("b", adapters[1]), ("renewed", adapters[2])):
        assert all(close_to(sample, path, prompt) for sample, prompt in zip(answers[name], PROMPTS, strict=True))
    assert [name[:4] for name in names if name.startswith(("a@", "b@"))] == ["a@2-"]
