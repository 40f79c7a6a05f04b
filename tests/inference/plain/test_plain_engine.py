"""Families that whet's own forward does not know: the engine's logprobs are those of transformers' forward pass."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from peft import LoraConfig, get_peft_model
from safetensors.torch import save_file
from tests.inference.plain import small_models

from whet.errors import ModelLoadError
from whet.inference.embedded import EmbeddedEngine
from whet.inference.limits import EngineLimits
from whet.inference.protocol import Sample, SampleRequest, SamplingParams, Scoring, VersionRun, WeightUpdate
from whet.inference.weights.packed_file import write_packed

Others = Callable[[str], tuple[Path, Any]]
Reference = Callable[..., torch.Tensor]
TOLERANCE = 5e-5


def together(engine: EmbeddedEngine, requests: list[SampleRequest]) -> list[Sample]:
    async def run() -> list[Sample]:
        return list(await asyncio.gather(*map(engine.sample, requests)))

    return asyncio.run(run())


def check(reference: Reference, model: Any, requests: list[SampleRequest], samples: list[Sample]) -> None:
    for request, sample in zip(requests, samples, strict=True):
        expected = reference(model, request.prompt_ids, sample.ids, request.params.temperature or 1.0)
        assert (expected - torch.tensor(sample.logprobs)).abs().max().item() < TOLERANCE


def prompt_of(rng: random.Random, length: int) -> list[int]:
    return [rng.randrange(512) for _ in range(length)]


@pytest.mark.parametrize("kind", small_models.SIZES)
def test_mixed_requests_agree_with_the_forward_pass_of_transformers(
    reference: Reference, others: Others, kind: str
) -> None:
    directory, model = others(kind)
    engine = EmbeddedEngine.from_directory(directory, limits=EngineLimits(max_rows=4))
    rng = random.Random(1)
    requests = [
        SampleRequest(
            prompt_of(rng, length),
            SamplingParams(max_tokens=tokens, temperature=temperature, top_p=0.9, stop_token_ids=(3, 4), seed=seed),
        )
        for seed, (length, tokens, temperature) in enumerate(
            [(1, 14, 1.0), (30, 3, 0.6), (9, 12, 0.0), (14, 1, 1.0), (2, 16, 0.6), (22, 8, 1.0)]
        )
    ]
    samples = together(engine, requests)
    check(reference, model, requests, samples)
    alone = EmbeddedEngine.from_directory(directory)
    assert [together(alone, [request])[0].ids for request in requests[:2]] == [sample.ids for sample in samples[:2]]


@pytest.mark.parametrize("at_once", [1 << 23, 512 * 9])
@pytest.mark.parametrize("kind", ["gpt2", "gemma2"])
def test_prompts_are_scored(others: Others, kind: str, at_once: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("whet.inference.plain.decoder.LOGITS_AT_ONCE", at_once)
    directory, model = others(kind)
    requests = [
        SampleRequest(
            prompt_of(random.Random(length), length),
            SamplingParams(max_tokens=2, seed=1),
            scoring=Scoring(prompt=True, prompt_last=last, prompt_top=2, top=2),
        )
        for length, last in [(30, None), (11, 4), (2, 1)]
    ]
    for request, sample in zip(requests, together(EmbeddedEngine.from_directory(directory), requests), strict=True):
        with torch.no_grad():
            logits = model(torch.tensor([request.prompt_ids + sample.ids])).logits[0, :-1].float()
        expected, scores = logits.log_softmax(-1), sample.prompt_scores
        assert scores is not None
        assert scores.top is not None
        assert sample.top is not None
        assert request.scoring is not None
        first, count = request.scoring.first(len(request.prompt_ids)), len(request.prompt_ids)
        own = expected[torch.arange(count - 1), torch.tensor(request.prompt_ids[1:])]
        close = partial(torch.testing.assert_close, atol=TOLERANCE, rtol=0)
        close(torch.from_numpy(scores.logprobs)[first:], own[first - 1 :])
        assert np.isnan(scores.logprobs[:first]).all()
        close(torch.from_numpy(scores.top.logprobs)[first:], expected[first - 1 : count - 1].topk(2).values)
        close(torch.from_numpy(sample.top.logprobs), expected[count - 1 :].topk(2).values)


@pytest.mark.parametrize("kind", ["gpt2", "bloom", "gemma2"])
def test_groups_share_their_prompt_and_turns_continue_from_kept_keys(
    reference: Reference, others: Others, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("whet.inference.plain.decoder._SCORES_PER_CHUNK", 2000)  # so that prompts come in pieces
    directory, model = others(kind)
    engine = EmbeddedEngine.from_directory(directory)
    rng = random.Random(2)
    prompt = prompt_of(rng, 40)
    first = [
        SampleRequest(prompt, SamplingParams(max_tokens=5 + i, seed=i), group_key="g", rollout_key=f"r{i}")
        for i in range(3)
    ]
    samples = together(engine, first)
    assert engine.stats.prefill_tokens == 39
    second = [
        SampleRequest(
            [*prompt, *sample.ids, *prompt_of(rng, 6)], SamplingParams(max_tokens=4, seed=9), rollout_key=f"r{i}"
        )
        for i, sample in enumerate(samples)
    ]
    check(reference, model, [*first, *second], [*samples, *together(engine, second)])
    assert engine.stats.prefill_tokens == 39 + 3 * 6


@pytest.fixture
def adapter(tmp_path: Path) -> Callable[..., tuple[Path, Any]]:
    """(directory, PEFT model) of an adapter with random weights."""

    def make(kind: str, name: str, targets: Any) -> tuple[Path, Any]:
        torch.manual_seed(len(name))
        model = small_models.build(kind)
        layers = LoraConfig(r=3, lora_alpha=5, target_modules=targets, init_lora_weights=False)
        adapted = get_peft_model(model, layers).eval()
        adapted.save_pretrained(tmp_path / name)
        return tmp_path / name, adapted

    return make


@pytest.mark.filterwarnings("ignore:fan_in_fan_out")
@pytest.mark.parametrize(
    ("kind", "targets"), [("gpt2", ["c_attn", "c_proj", "c_fc"]), ("granite", "all-linear")], ids=["gpt2", "granite"]
)
def test_adapters_are_merged_and_served_beside_the_base(
    reference: Reference, others: Others, adapter: Callable[..., tuple[Path, Any]], kind: str, targets: Any
) -> None:
    directory, base = others(kind)
    path, adapted = adapter(kind, "one", targets)
    other_path, other = adapter(kind, "another", targets[:1] if isinstance(targets, list) else ["q_proj"])
    merged, beside = (EmbeddedEngine.from_directory(directory) for _ in range(2))
    asyncio.run(merged.load_weights(WeightUpdate(1, path, "adapter")))
    for name, of in (("one", path), ("another", other_path)):
        asyncio.run(beside.load_weights(WeightUpdate(1, of, "adapter", adapter=name)))
    models = {None: base, "one": adapted, "another": other}
    rng = random.Random(3)
    requests = [
        SampleRequest(prompt_of(rng, 4 + 7 * i), SamplingParams(max_tokens=8, seed=i), adapter=name)
        for i, name in enumerate([None, "one", "another", "one"])
    ]
    for request, sample in zip(requests, together(beside, requests), strict=True):
        check(reference, models[request.adapter], [request], [sample])
    plain = [SampleRequest(request.prompt_ids, request.params) for request in requests]
    check(reference, adapted, plain, together(merged, plain))
    loaded = EmbeddedEngine.from_directory(directory)
    check(reference, base, plain[:1], together(loaded, plain[:1]))


@pytest.mark.parametrize("form", ["model", "packed"])
def test_new_weights_come_between_two_tokens(reference: Reference, others: Others, tmp_path: Path, form: str) -> None:
    directory, _ = others("gpt2")
    new = small_models.build("gpt2")
    with torch.no_grad():
        for parameter in new.parameters():
            parameter.mul_(1.1)
    named = {name: parameter.detach() for name, parameter in new.named_parameters()}
    if form == "model":
        save_file(named, tmp_path / "new")
    else:
        write_packed(tmp_path / "new", named.items())
    engine = EmbeddedEngine.from_directory(directory)
    # Many tokens: the weights are read in a thread meanwhile.
    request = SampleRequest([7, 8, 9], SamplingParams(max_tokens=240, seed=1))

    async def run() -> Sample:
        seen: list[int] = []
        half = asyncio.Event()

        def listen(ids: list[int]) -> None:
            seen.extend(ids)
            if len(seen) >= 4:
                half.set()

        sampling = asyncio.create_task(engine.sample(request, on_tokens=listen))
        await half.wait()
        await engine.load_weights(WeightUpdate(5, tmp_path / "new", "model" if form == "model" else "packed"))
        return await sampling

    sample = asyncio.run(run())
    assert [run.version for run in sample.versions] == [0, 5]
    assert sum(run.count for run in sample.versions) == 240
    after = together(engine, [request])[0]
    assert after.versions == [VersionRun(5, 240)]
    check(reference, new, [request], [after])


def test_weights_of_another_model_are_refused_and_change_nothing(others: Others, tmp_path: Path) -> None:
    engine = EmbeddedEngine.from_directory(others("gpt2")[0])
    named = {name: p.detach() for name, p in others("gpt2")[1].named_parameters()}
    request = SampleRequest([7, 8, 9], SamplingParams(max_tokens=3, seed=1))
    before = together(engine, [request])
    for change, message in (
        ({"transformer.wte.weight": torch.zeros(3, 3)}, "has shape"),
        ({"transformer.h.9.ln_1.weight": torch.zeros(3)}, "does not have"),
    ):
        save_file(named | change, tmp_path / "wrong")
        with pytest.raises(ModelLoadError, match=message):
            asyncio.run(engine.load_weights(WeightUpdate(1, tmp_path / "wrong", "model")))
    save_file({"transformer.wte.weight": named["transformer.wte.weight"]}, tmp_path / "wrong")
    with pytest.raises(ModelLoadError, match=r"lack 'transformer\.wpe\.weight'"):
        asyncio.run(engine.load_weights(WeightUpdate(1, tmp_path / "wrong", "model")))
    assert together(engine, [request]) == before
    assert engine.version == 0


def test_bfloat16_stays_near_float32(reference: Reference, others: Others) -> None:
    directory, model = others("granite")
    engine = EmbeddedEngine.from_directory(directory, dtype=torch.bfloat16)
    request = SampleRequest(list(range(10, 25)), SamplingParams(max_tokens=10, seed=1))
    sample = together(engine, [request])[0]
    expected = reference(model, request.prompt_ids, sample.ids)
    assert (expected - torch.tensor(sample.logprobs)).abs().max().item() < 0.3
