"""What callers rely on: reproducibility, cancelling, new weights, limits, failures."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from whet.errors import ModelError, ModelLoadError, OverlongPromptError, RequestRefusedError
from whet.inference.architecture import read_architecture
from whet.inference.decoding.decoder import Decoder
from whet.inference.embedded import EmbeddedEngine
from whet.inference.limits import EngineLimits
from whet.inference.protocol import Sample, SampleRequest, SamplingParams, VersionRun, WeightUpdate
from whet.inference.weights.model_weights import packed_tensors
from whet.inference.weights.packed_file import take_unread, write_packed
from whet.inference.weights.safetensors_files import read_safetensors

Checkpoints = Callable[[str], tuple[Path, Any]]
Reference = Callable[..., torch.Tensor]
Build = Callable[..., Any]


@pytest.fixture
def engine(checkpoints: Checkpoints) -> EmbeddedEngine:
    return EmbeddedEngine.from_directory(
        checkpoints("qwen3")[0], limits=EngineLimits(max_rows=8), seed=0, decode_text=str
    )


def request(seed: int | None = 0, max_tokens: int = 12, prompt: list[int] | None = None, **keys: Any) -> SampleRequest:
    return SampleRequest(prompt or [1, 2, 3, 4, 5], SamplingParams(max_tokens=max_tokens, seed=seed), **keys)


def save_weights(model: Any, path: Path) -> None:
    save_file({name: tensor for name, tensor in model.state_dict().items() if name != "lm_head.weight"}, path)


async def together(engine: EmbeddedEngine, requests: list[SampleRequest]) -> list[Sample]:
    return await asyncio.gather(*(engine.sample(each) for each in requests))


async def rollouts(engine: EmbeddedEngine) -> list[Sample]:
    samples: list[Sample] = []

    async def rollout(number: int) -> None:
        rng = random.Random(number)
        prompt = [rng.randrange(512) for _ in range(rng.randrange(3, 30))]
        for turn in range(3):
            seed = 100 * number + turn
            sample = await engine.sample(request(seed, rng.randrange(1, 20), prompt, rollout_key=str(number)))
            samples.append(sample)
            prompt = prompt + sample.ids + [number]
        await engine.release(str(number))

    await asyncio.gather(*(rollout(number) for number in range(20)))
    return samples


def test_the_same_requests_in_the_same_order_give_the_same_bits(checkpoints: Checkpoints) -> None:
    directory, _ = checkpoints("qwen3")
    runs = [
        asyncio.run(rollouts(EmbeddedEngine.from_directory(directory, limits=EngineLimits(max_rows=8))))
        for _ in range(2)
    ]
    assert runs[0] == runs[1]


def test_what_was_asked_before_does_not_change_a_bit(checkpoints: Checkpoints, engine: EmbeddedEngine) -> None:
    asked = [request(seed, 60) for seed in range(5)]
    fresh = EmbeddedEngine.from_directory(checkpoints("qwen3")[0], limits=EngineLimits(max_rows=8))
    asyncio.run(together(engine, [request(seed, 300, list(range(80))) for seed in range(8)]))
    assert asyncio.run(together(engine, asked)) == asyncio.run(together(fresh, asked))


def test_draws_do_not_depend_on_what_else_is_in_the_batch(engine: EmbeddedEngine) -> None:
    alone = asyncio.run(together(engine, [request(7)]))[0]
    crowd = asyncio.run(together(engine, [request(seed, 5 + seed) for seed in range(7)] + [request(7)]))[-1]
    assert alone.ids == crowd.ids


def test_requests_without_a_seed_draw_differently(engine: EmbeddedEngine) -> None:
    first, second = asyncio.run(together(engine, [request(None), request(None)]))
    assert first.ids != second.ids


def test_greedy_takes_the_most_probable_token(checkpoints: Checkpoints, engine: EmbeddedEngine) -> None:
    _, model = checkpoints("qwen3")
    greedy = SampleRequest([9, 8, 7], SamplingParams(max_tokens=10, temperature=0.0))
    sample = asyncio.run(engine.sample(greedy))
    with torch.no_grad():
        expected = model(torch.tensor([[9, 8, 7, *sample.ids]])).logits[0, 2:-1].argmax(-1).tolist()
    assert sample.ids == expected


def test_an_engine_outlives_its_event_loop(engine: EmbeddedEngine) -> None:
    assert asyncio.run(engine.sample(request(1))) == asyncio.run(engine.sample(request(1)))


def test_cancelling_frees_the_slot(engine: EmbeddedEngine) -> None:
    async def run() -> list[Sample]:
        stuck = [asyncio.create_task(engine.sample(request(seed, 400))) for seed in range(20)]
        for _ in range(30):
            await asyncio.sleep(0)
        for task in stuck:
            task.cancel()
        await asyncio.gather(*stuck, return_exceptions=True)
        return await together(engine, [request(3), request(4)])

    samples = asyncio.run(run())
    assert [len(sample.ids) for sample in samples] == [12, 12]
    assert engine.stats.decode_steps < 400


def test_new_weights_are_taken_in_mid_flight(
    reference: Reference, build_model: Build, checkpoints: Checkpoints, engine: EmbeddedEngine, tmp_path: Path
) -> None:
    _, old_model = checkpoints("qwen3")
    new_model = build_model("qwen3", seed=5)
    save_weights(new_model, tmp_path / "w")

    async def run() -> tuple[Sample, Sample]:
        early = asyncio.create_task(engine.sample(request(1, 400)))
        while engine.stats.decode_steps < 15:
            await asyncio.sleep(0)
        await engine.load_weights(WeightUpdate(version=3, path=tmp_path / "w"))
        return await early, await engine.sample(request(2, 10))

    early, late = asyncio.run(run())
    assert engine.version == 3
    (first, count), (second, rest) = early.versions
    assert (first, second, count + rest) == (0, 3, 400)
    old = reference(old_model, [1, 2, 3, 4, 5], early.ids)
    torch.testing.assert_close(old[:count], torch.tensor(early.logprobs[:count]), atol=5e-5, rtol=0)
    assert (old[count:] - torch.tensor(early.logprobs[count:])).abs().max() > 0.1
    assert late.versions == [VersionRun(3, 10)]
    new = reference(new_model, [1, 2, 3, 4, 5], late.ids)
    torch.testing.assert_close(new, torch.tensor(late.logprobs), atol=5e-5, rtol=0)


def test_a_turn_after_new_weights_recomputes_its_whole_prompt(
    reference: Reference, build_model: Build, engine: EmbeddedEngine, tmp_path: Path
) -> None:
    model = build_model("qwen3", seed=6)
    save_weights(model, tmp_path / "w")

    async def run() -> tuple[list[int], Sample]:
        first = await engine.sample(request(1, rollout_key="r"))
        await engine.load_weights(WeightUpdate(version=1, path=tmp_path / "w"))
        prompt = [1, 2, 3, 4, 5, *first.ids, 6]
        return prompt, await engine.sample(request(2, prompt=prompt, rollout_key="r"))

    prompt, second = asyncio.run(run())
    assert engine.stats.reused_tokens == 0
    expected = reference(model, prompt, second.ids)
    torch.testing.assert_close(expected, torch.tensor(second.logprobs), atol=5e-5, rtol=0)


def test_packed_weights_mid_flight_draw_same_bits_as_checkpoint(
    build_model: Build, checkpoints: Checkpoints, tmp_path: Path
) -> None:
    directory, _ = checkpoints("qwen3")
    arch, model = read_architecture(directory), build_model("qwen3", seed=5)
    save_weights(model, tmp_path / "w")
    named = read_safetensors([tmp_path / "w"])
    write_packed(tmp_path / "p", packed_tensors(named, arch, dtype=torch.float32, device=torch.device("cpu")))

    async def run(update: WeightUpdate) -> tuple[Sample, Sample]:
        engine = EmbeddedEngine.from_directory(directory, seed=0)
        early = asyncio.create_task(engine.sample(request(1, 400)))
        while engine.stats.decode_steps < 15:
            await asyncio.sleep(0)
        await engine.load_weights(update)
        update.path.unlink()
        return await early, await engine.sample(request(2, 10))

    packed = asyncio.run(run(WeightUpdate(version=3, path=tmp_path / "p", kind="packed")))
    plain = asyncio.run(run(WeightUpdate(version=3, path=tmp_path / "w")))
    assert [version for version, _ in packed[0].versions] == [0, 3]
    assert packed[0].logprobs[:15] == plain[0].logprobs[:15]
    assert packed[1] == plain[1]


def test_packed_weights_that_were_replaced_leave_their_file_to_the_learner(
    checkpoints: Checkpoints, tmp_path: Path
) -> None:
    directory, _ = checkpoints("qwen3")
    arch, named = read_architecture(directory), read_safetensors([directory / "model.safetensors"])
    one, other, aside = tmp_path / "one", tmp_path / "other", tmp_path / "aside"
    for path in (one, other):
        write_packed(path, packed_tensors(named, arch, dtype=torch.float32, device=torch.device("cpu")))

    async def run(busy: bool) -> None:
        engine = EmbeddedEngine.from_directory(directory, seed=0)
        running = asyncio.create_task(engine.sample(request(1, 400))) if busy else None
        while busy and not engine.stats.decode_steps:
            await asyncio.sleep(0)
        for version, path in enumerate((one, other, one, directory / "model.safetensors"), start=1):
            await engine.load_weights(WeightUpdate(version, path, "packed" if path.parent == tmp_path else "model"))
            for file in (one, other):
                assert take_unread(file, aside) == (file != path)
                if file != path:
                    aside.rename(file)
        if running is not None:
            running.cancel()

    asyncio.run(run(busy=False))
    asyncio.run(run(busy=True))


def test_torn_or_foreign_weights_change_nothing(engine: EmbeddedEngine, tmp_path: Path) -> None:
    save_file({"model.norm.weight": torch.ones(3)}, tmp_path / "foreign")
    (tmp_path / "torn").write_bytes(b"\x10\x00\x00\x00\x00\x00\x00\x00{")
    before = asyncio.run(engine.sample(request(1)))
    for name in ("foreign", "torn", "missing"):
        with pytest.raises(ModelLoadError):
            asyncio.run(engine.load_weights(WeightUpdate(version=1, path=tmp_path / name)))
        with pytest.raises(ModelLoadError):
            asyncio.run(engine.load_weights(WeightUpdate(version=1, path=tmp_path / name, kind="packed")))
    assert engine.version == 0
    assert asyncio.run(engine.sample(request(1))) == before


def test_more_requests_than_memory_wait_their_turn(reference: Reference, checkpoints: Checkpoints) -> None:
    directory, model = checkpoints("qwen3")
    two_rows = 2 * 64 * 4 * 2 * 3 * 2 * 32  # slots x columns x float32 x (keys, values) x layers x heads x head_dim
    engine = EmbeddedEngine.from_directory(directory, limits=EngineLimits(kv_bytes=two_rows))
    requests = [request(seed, 30, rollout_key=str(seed)) for seed in range(7)]
    samples = asyncio.run(together(engine, requests))
    assert engine.stats.decode_steps >= 4 * 30
    for each, sample in zip(requests, samples, strict=True):
        expected = reference(model, each.prompt_ids, sample.ids)
        torch.testing.assert_close(expected, torch.tensor(sample.logprobs), atol=5e-5, rtol=0)


def test_what_can_never_fit_is_refused_with_what_to_change(checkpoints: Checkpoints, engine: EmbeddedEngine) -> None:
    with pytest.raises(OverlongPromptError, match="context of 512"):
        asyncio.run(engine.sample(request(1, 600)))
    small = EmbeddedEngine.from_directory(checkpoints("qwen3")[0], limits=EngineLimits(kv_bytes=100_000))
    with pytest.raises(ModelError, match="kv_bytes"):
        asyncio.run(small.sample(request(1, 200)))


@pytest.mark.parametrize("prompt", [[512], [-1], [1, 2, 9999]])
def test_ids_outside_the_vocabulary_fail_their_own_request_only(engine: EmbeddedEngine, prompt: list[int]) -> None:
    async def run() -> list[Any]:
        return await asyncio.gather(
            engine.sample(request(1)), engine.sample(request(1, prompt=prompt)), return_exceptions=True
        )

    good, bad = asyncio.run(run())
    assert isinstance(good, Sample)
    assert isinstance(bad, ModelError)


def test_a_failure_inside_reaches_every_waiter_and_the_engine_goes_on(
    engine: EmbeddedEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: Any, **__: Any) -> None:
        raise RuntimeError("out of memory")

    async def run() -> list[Any]:
        with monkeypatch.context() as patched:
            patched.setattr(Decoder, "decode", broken)
            waiting = [engine.sample(request(seed)) for seed in range(12)]
            return await asyncio.wait_for(asyncio.gather(*waiting, return_exceptions=True), 30)

    outcomes = asyncio.run(run())
    assert all(isinstance(outcome, ModelError) and "out of memory" in str(outcome) for outcome in outcomes)
    assert len(asyncio.run(engine.sample(request(1))).ids) == 12


def test_weights_that_are_not_finite_fail_the_request(
    build_model: Build, engine: EmbeddedEngine, tmp_path: Path
) -> None:
    model = build_model("qwen3")
    model.model.norm.weight.data[0] = float("nan")
    save_weights(model, tmp_path / "w")

    async def run() -> None:
        await engine.load_weights(WeightUpdate(version=1, path=tmp_path / "w"))
        await engine.sample(request(1))

    with pytest.raises(ModelError, match="not finite"):
        asyncio.run(run())


def test_an_engine_that_was_never_asked_can_be_closed(engine: EmbeddedEngine) -> None:
    asyncio.run(engine.close())


def test_closing_fails_whoever_waits(engine: EmbeddedEngine) -> None:
    async def run() -> list[Any]:
        tasks = [asyncio.create_task(engine.sample(request(seed, 300))) for seed in range(12)]
        for _ in range(20):
            await asyncio.sleep(0)
        await engine.close()
        return await asyncio.wait_for(asyncio.gather(*tasks, return_exceptions=True), 30)

    outcomes = asyncio.run(run())
    assert all(isinstance(outcome, ModelError) for outcome in outcomes)
    with pytest.raises(ModelError, match="closed"):
        asyncio.run(engine.sample(request(1)))


def test_a_stop_string_across_tokens_ends_the_row(checkpoints: Checkpoints) -> None:
    def decode(ids: list[int]) -> str:
        return "".join(f"<{token}>" for token in ids)

    engine = EmbeddedEngine.from_directory(checkpoints("qwen3")[0], decode_text=decode)
    free = asyncio.run(engine.sample(request(1, 20)))
    stop = f"{free.ids[6]}><{free.ids[7]}"
    params = SamplingParams(max_tokens=20, seed=1, stop=(stop,))
    sample = asyncio.run(engine.sample(SampleRequest([1, 2, 3, 4, 5], params)))
    assert sample.ids == free.ids[:8]
    assert sample.finish_reason == "stop"


REFUSED: dict[str, Any] = {
    "top_k beyond int64": {"top_k": 2**63},
    "top_k no number": {"top_k": "3"},
    "top_p nan": {"top_p": float("nan")},
    "min_p above 1": {"min_p": 1.5},
    "temperature infinite": {"temperature": float("inf")},
    "temperature an integer beyond floats": {"temperature": 10**400},
    "max_tokens of thousands of digits": {"max_tokens": 10**5000},
    "seed beyond int64": {"seed": 2**63},
    "stop tokens beyond int64": {"stop_token_ids": (2**63,)},
    "many stop tokens": {"stop_token_ids": tuple(range(100_000))},
    "a stop that is no text": {"stop": ((),)},
    "a long stop": {"stop": ("x" * 100_000,)},
}
ODD: dict[str, Any] = {
    "smallest temperature": {"temperature": 5e-324},
    "small temperature": {"temperature": 1e-39},
    "largest temperature": {"temperature": 1e308},
    "largest top_k": {"top_k": 2**63 - 1},
    "smallest top_k": {"top_k": -(2**63)},
    "nothing within top_p": {"top_p": 0.0},
    "smallest seed": {"seed": -(2**63)},
    "stop tokens that are none": {"stop_token_ids": (-1, 512, 2**63 - 1)},
    "min_p of all": {"min_p": 1.0},
}


@pytest.mark.parametrize("params", REFUSED.values(), ids=REFUSED)
def test_a_request_out_of_range_is_refused_alone(engine: EmbeddedEngine, params: Any) -> None:
    bad = SampleRequest([1, 2, 3], SamplingParams(**{"max_tokens": 5, **params}))
    alone = asyncio.run(together(engine, [request(1)]))

    async def run() -> list[Any]:
        return await asyncio.gather(engine.sample(request(1)), engine.sample(bad), return_exceptions=True)

    sample, error = asyncio.run(run())
    assert isinstance(error, RequestRefusedError | OverlongPromptError)
    assert sample.ids == alone[0].ids


def test_numbers_at_the_ends_of_their_ranges(engine: EmbeddedEngine) -> None:
    odd = [SampleRequest([1, 2, 3], SamplingParams(**{"max_tokens": 5, **params})) for params in ODD.values()]
    alone = asyncio.run(together(engine, [request(1)]))
    samples = asyncio.run(together(engine, [request(1), *odd]))
    assert samples[0].ids == alone[0].ids
    assert [len(sample.ids) for sample in samples[1:]] == [5] * len(odd)


def test_a_temperature_near_zero_is_greedy(engine: EmbeddedEngine) -> None:
    asked = [SampleRequest([9, 8, 7], SamplingParams(max_tokens=10, temperature=t)) for t in (0.0, 1e-39, 9.9e-6, 1e-5)]
    first, *others = asyncio.run(together(engine, asked))
    assert [sample.ids for sample in others] == [first.ids] * 3
    assert [sample.logprobs for sample in others[:2]] == [first.logprobs] * 2


def test_a_stop_watcher_that_fails_ends_its_own_request_only(checkpoints: Checkpoints) -> None:
    def decode(ids: list[int]) -> str:
        raise UnicodeError("half a character")

    engine = EmbeddedEngine.from_directory(checkpoints("qwen3")[0], limits=EngineLimits(max_rows=8), decode_text=decode)
    bad = SampleRequest([1, 2, 3], SamplingParams(max_tokens=5, stop=("x",)))

    async def run() -> list[Any]:
        return await asyncio.gather(engine.sample(request(1)), engine.sample(bad), return_exceptions=True)

    sample, error = asyncio.run(run())
    assert isinstance(error, UnicodeError)
    assert len(sample.ids) == 12
