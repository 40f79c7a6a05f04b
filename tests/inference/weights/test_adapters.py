"""One engine, one set of base weights, many adapters: each request is answered as `peft` would with its adapter."""

from __future__ import annotations

import asyncio
import gc
import json
import random
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from peft import LoraConfig, get_peft_model
from safetensors.torch import load_file, save_file
from torch.utils._python_dispatch import TorchDispatchMode

from whet.errors import ModelError, ModelLoadError
from whet.inference.decoding.adapter_rows import AdapterRows
from whet.inference.decoding.scheduler import LoadedAdapter
from whet.inference.embedded import EmbeddedEngine
from whet.inference.limits import EngineLimits
from whet.inference.protocol import Sample, SampleRequest, SamplingParams, VersionRun, WeightUpdate
from whet.inference.weights.adapters import Factors, PackedAdapter
from whet.inference.weights.model_weights import packed_tensors, read_checkpoint
from whet.inference.weights.packed_file import write_packed

Checkpoints = Callable[[str], tuple[Path, Any]]
Reference = Callable[..., torch.Tensor]
Build = Callable[..., Any]
TOLERANCE = 5e-5  # of logits whose spread is far larger than a trained model's

ALL = "all-linear"
CONFIGS: dict[str, dict[str, Any]] = {
    "wide": {"r": 8, "lora_alpha": 16, "target_modules": ALL, "lora_dropout": 0.5},
    "thin": {"r": 2, "lora_alpha": 3, "target_modules": ["q_proj", "v_proj"]},
    "stable": {"r": 4, "lora_alpha": 4, "target_modules": ["down_proj", "o_proj", "k_proj"], "use_rslora": True},
    "patterned": {
        "r": 4,
        "lora_alpha": 8,
        "target_modules": ["gate_proj", "up_proj", "q_proj", "k_proj"],
        "rank_pattern": {"layers.1.mlp.up_proj": 6, "q_proj": 3},
        "alpha_pattern": {"layers.0.self_attn.q_proj": 1, "up_proj": 5},
        "layers_to_transform": [0, 1],
    },
    "head": {"r": 3, "lora_alpha": 6, "target_modules": ["lm_head", "gate_proj"]},
}


@pytest.fixture(scope="module")
def adapted(tmp_path_factory: pytest.TempPathFactory, build_model: Build) -> Callable[[str, str], tuple[Path, Any]]:
    """(directory, PEFT model) of an adapter of a kind of model, each made once."""
    made: dict[tuple[str, str], tuple[Path, Any]] = {}

    def get(kind: str, name: str) -> tuple[Path, Any]:
        if (kind, name) not in made:
            torch.manual_seed(len(name))
            model = get_peft_model(build_model(kind), LoraConfig(**CONFIGS[name], init_lora_weights=False)).eval()
            directory = tmp_path_factory.mktemp(name)
            model.save_pretrained(directory)
            made[kind, name] = (directory, model)
        return made[kind, name]

    return get


Adapted = Callable[[str, str], tuple[Path, Any]]


def run(work: Awaitable[Any]) -> Any:
    async def waited() -> Any:
        return await work

    return asyncio.run(waited())


def loaded(engine: EmbeddedEngine, name: str | None, directory: Path, version: int = 0) -> EmbeddedEngine:
    run(engine.load_weights(WeightUpdate(version=version, path=directory, kind="adapter", adapter=name)))
    return engine


def request(adapter: str | None, seed: int = 0, prompt: list[int] | None = None, **given: Any) -> SampleRequest:
    keys = {key: given.pop(key) for key in ("rollout_key", "group_key") if key in given}
    return SampleRequest(
        prompt or [1, 2, 3, 4], SamplingParams(**{"max_tokens": 12, "seed": seed, **given}), adapter=adapter, **keys
    )


async def together(engine: EmbeddedEngine, requests: list[SampleRequest]) -> list[Sample]:
    return await asyncio.gather(*(engine.sample(each) for each in requests))


def check(
    reference: Reference, models: dict[str | None, Any], requests: list[SampleRequest], samples: list[Sample]
) -> None:
    for each, sample in zip(requests, samples, strict=True):
        model, temperature = models[each.adapter], each.params.temperature
        expected = reference(model, each.prompt_ids, sample.ids, temperature or 1.0)
        torch.testing.assert_close(torch.tensor(sample.logprobs), expected, atol=TOLERANCE, rtol=0)
        if temperature == 0:
            with torch.no_grad():
                logits = model(torch.tensor([each.prompt_ids + sample.ids])).logits[0, len(each.prompt_ids) - 1 : -1]
            assert sample.ids == logits.argmax(-1).tolist()


@pytest.mark.parametrize("kind", ["qwen3", "llama"])
def test_mixed_adapter_batch_agrees_with_peft(
    reference: Reference, checkpoints: Checkpoints, adapted: Adapted, kind: str
) -> None:
    directory, base = checkpoints(kind)
    engine = EmbeddedEngine.from_directory(directory, limits=EngineLimits(max_rows=12))
    models: dict[str | None, Any] = {None: base}
    for version, name in enumerate(CONFIGS, start=1):
        path, models[name] = adapted(kind, name)
        loaded(engine, name, path, version)
    rng = random.Random(0)
    requests = [
        request(
            rng.choice([None, *CONFIGS]),
            seed,
            [rng.randrange(512) for _ in range(rng.randrange(1, 60))],
            max_tokens=rng.randrange(1, 30),
            temperature=rng.choice([0.0, 0.7, 1.0]),
        )
        for seed in range(40)
    ]
    samples = run(together(engine, requests))
    check(reference, models, requests, samples)
    versions = {None: 0, **engine.adapters}
    assert versions == {None: 0, "wide": 1, "thin": 2, "stable": 3, "patterned": 4, "head": 5}
    for each, sample in zip(requests, samples, strict=True):
        assert sample.versions == [VersionRun(versions[each.adapter], len(sample.ids))]


def test_an_answer_has_the_same_bits_alone_and_among_other_adapters(checkpoints: Checkpoints, adapted: Adapted) -> None:
    rng = random.Random(3)

    def engine() -> EmbeddedEngine:
        made = EmbeddedEngine.from_directory(checkpoints("qwen3")[0], batch_invariant=True)
        for name in CONFIGS:
            loaded(made, name, adapted("qwen3", name)[0])
        return made

    def answer(sample: Sample) -> tuple[list[int], list[float]]:
        return sample.ids, sample.logprobs

    many = [  # most often some rows of each adapter; few of some, so that both ways of a mixed batch occur
        request(
            rng.choice([None, *CONFIGS, "wide"]),
            seed,
            [rng.randrange(512) for _ in range(rng.randrange(1, 70))],
            max_tokens=rng.randrange(1, 40),
            temperature=rng.choice([0.0, 0.7, 1.0]),
            top_p=rng.choice([1.0, 0.9]),
        )
        for seed in range(36)
    ]
    mixed = run(together(engine(), many))
    alone = [run(engine().sample(each)) for each in many]
    assert list(map(answer, mixed)) == list(map(answer, alone))
    for name in (None, *CONFIGS):
        own = [number for number, each in enumerate(many) if each.adapter == name]
        apart = run(together(engine(), [many[number] for number in own]))
        assert list(map(answer, apart)) == [answer(alone[number]) for number in own]
    # In pairs all groups are of equal size, and are stacked.
    pairs = [replace(many[0], adapter=name, params=replace(many[0].params, seed=s)) for name in CONFIGS for s in (1, 2)]
    assert list(map(answer, run(together(engine(), pairs)))) == [answer(run(engine().sample(each))) for each in pairs]


@pytest.mark.parametrize(
    ("name", "kind"), [*((name, "qwen2") for name in CONFIGS), ("head", "qwen3"), ("head", "llama")]
)
def test_merged_and_separate_adapter_agree(
    reference: Reference, checkpoints: Checkpoints, adapted: Adapted, name: str, kind: str
) -> None:
    directory, _ = checkpoints(kind)
    path, model = adapted(kind, name)
    merged = loaded(EmbeddedEngine.from_directory(directory), None, path, 3)
    beside = loaded(EmbeddedEngine.from_directory(directory), "mine", path)
    one, other = run(merged.sample(request(None, 5))), run(beside.sample(request("mine", 5)))
    assert one.ids == other.ids
    torch.testing.assert_close(torch.tensor(one.logprobs), torch.tensor(other.logprobs), atol=TOLERANCE, rtol=0)
    check(reference, {None: model}, [request(None, 5)], [one])
    assert (merged.version, merged.adapters, beside.adapters) == (3, {}, {"mine": 0})


def test_a_policy_that_is_merged_again_leaves_the_base_as_it_was(
    reference: Reference, checkpoints: Checkpoints, adapted: Adapted
) -> None:
    engine = EmbeddedEngine.from_directory(checkpoints("qwen3")[0])
    for version, name in enumerate(("wide", "thin"), start=1):
        path, model = adapted("qwen3", name)
        loaded(engine, None, path, version)
        check(reference, {None: model}, [request(None)], [run(engine.sample(request(None)))])
    assert engine.version == 2


def test_equal_prompts_of_one_group_share_nothing_across_adapters(
    reference: Reference, checkpoints: Checkpoints, adapted: Adapted
) -> None:
    directory, base = checkpoints("qwen3")
    engine, models = EmbeddedEngine.from_directory(directory), {None: base}
    for name in ("wide", "thin"):
        path, models[name] = adapted("qwen3", name)
        loaded(engine, name, path)
    prompt = list(range(20, 60))
    requests = [request(name, seed, prompt, group_key="g") for seed in range(3) for name in models]
    check(reference, models, requests, run(together(engine, requests)))
    assert engine.stats.prefill_tokens == 3 * (len(prompt) - 1)
    assert engine.stats.reused_tokens == 6 * (len(prompt) - 1)


def test_turns_of_one_rollout_go_on_from_their_own_adapter_s_turns_only(
    reference: Reference, checkpoints: Checkpoints, adapted: Adapted
) -> None:
    directory, _ = checkpoints("qwen3")
    engine, models = EmbeddedEngine.from_directory(directory), {}
    for name in ("wide", "thin"):
        path, models[name] = adapted("qwen3", name)
        loaded(engine, name, path)

    async def rollout() -> tuple[list[SampleRequest], list[Sample]]:
        asked, samples, prompt = [], [], list(range(20, 50))
        for turn in range(3):
            for name in ("wide", "thin"):
                asked.append(request(name, turn, prompt, rollout_key="r"))
                samples.append(await engine.sample(asked[-1]))
            prompt = [*prompt, *samples[-2].ids, 7]
        return asked, samples

    asked, samples = run(rollout())
    check(reference, models, asked, samples)
    assert 4 * 29 < engine.stats.reused_tokens < sum(len(each.prompt_ids) for each in asked[2:])


def test_a_long_prompt_is_computed_in_pieces_for_each_adapter(
    reference: Reference, checkpoints: Checkpoints, adapted: Adapted, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("whet.inference.decoding.decoder._SCORES_PER_CHUNK", 20_000)
    directory, base = checkpoints("qwen3")
    engine, models = EmbeddedEngine.from_directory(directory), {None: base}
    for name in ("wide", "thin"):
        path, models[name] = adapted("qwen3", name)
        loaded(engine, name, path)
    rng = random.Random(3)
    requests = [request(name, 1, [rng.randrange(512) for _ in range(200)], max_tokens=4) for name in models]
    check(reference, models, requests, run(together(engine, requests)))


def test_an_adapter_is_replaced_under_its_requests_and_nobody_else_s(
    reference: Reference, checkpoints: Checkpoints, adapted: Adapted
) -> None:
    directory, base = checkpoints("qwen3")
    old_path, old = adapted("qwen3", "wide")
    new_path, new = adapted("qwen3", "thin")
    engine = loaded(loaded(EmbeddedEngine.from_directory(directory), "mine", old_path, 1), "still", old_path, 5)

    async def attempt() -> tuple[list[Sample], Sample]:
        running = asyncio.ensure_future(
            together(engine, [request(name, 1, max_tokens=200) for name in ("mine", "still", None)])
        )
        while engine.stats.decode_steps < 5:
            await asyncio.sleep(0)
        await engine.load_weights(WeightUpdate(version=2, path=new_path, kind="adapter", adapter="mine"))
        late = await engine.sample(request("mine", 2))
        return await running, late

    (mine, still, of_base), late = run(attempt())
    (first, count), (second, rest) = mine.versions
    assert (first, second, count + rest) == (1, 2, 200)
    before = reference(old, [1, 2, 3, 4], mine.ids)
    torch.testing.assert_close(before[:count], torch.tensor(mine.logprobs[:count]), atol=TOLERANCE, rtol=0)
    assert (before[count:] - torch.tensor(mine.logprobs[count:])).abs().max() > 0.1
    assert (still.versions, of_base.versions, late.versions) == ([(5, 200)], [(0, 200)], [(2, 12)])
    models = {"still": old, None: base, "mine": new}
    asked = [request("still", 1), request(None, 1), request("mine", 2)]
    check(reference, models, asked, [still, of_base, late])
    assert engine.stats.reused_tokens == 0


def test_replaced_adapter_recomputes_whole_prompt(
    reference: Reference, checkpoints: Checkpoints, adapted: Adapted
) -> None:
    engine = loaded(EmbeddedEngine.from_directory(checkpoints("qwen3")[0]), "mine", adapted("qwen3", "wide")[0])
    path, model = adapted("qwen3", "thin")

    async def turns() -> tuple[list[SampleRequest], list[Sample]]:
        first = await engine.sample(request("mine", rollout_key="r", group_key="g"))
        await engine.load_weights(WeightUpdate(version=0, path=path, kind="adapter", adapter="mine"))
        asked = [
            request("mine", 1, rollout_key="s", group_key="g"),
            request("mine", 2, [1, 2, 3, 4, *first.ids, 7], rollout_key="r"),
        ]
        return asked, [await engine.sample(each) for each in asked]

    check(reference, {"mine": model}, *run(turns()))
    assert engine.stats.reused_tokens == 0


def adapters_in_memory() -> list[str]:
    gc.collect()
    return [found.name for found in gc.get_objects() if isinstance(found, LoadedAdapter)]


def test_unloaded_adapter_finishes_requests_in_progress(
    reference: Reference, checkpoints: Checkpoints, adapted: Adapted
) -> None:
    path, model = adapted("qwen3", "wide")
    engine = loaded(
        EmbeddedEngine.from_directory(checkpoints("qwen3")[0], limits=EngineLimits(max_rows=2)), "mine", path
    )
    assert adapters_in_memory() == ["mine"]
    asked = [request("mine", seed, max_tokens=40, rollout_key=str(seed)) for seed in range(4)]

    async def attempt() -> list[Sample]:
        running = asyncio.ensure_future(together(engine, asked))
        while engine.stats.decode_steps < 5:  # two of them run, and two wait
            await asyncio.sleep(0)
        await engine.unload_adapter("mine")
        with pytest.raises(ModelError, match="no adapter 'mine'; it has: none"):
            await engine.sample(request("mine"))
        return await running

    samples = run(attempt())
    check(reference, {"mine": model}, asked, samples)
    assert adapters_in_memory() == []


def test_an_unknown_adapter_is_an_error_that_names_those_there_are(checkpoints: Checkpoints, adapted: Adapted) -> None:
    engine = EmbeddedEngine.from_directory(checkpoints("qwen3")[0])
    for name in ("one", "two"):
        loaded(engine, name, adapted("qwen3", "thin")[0])
    for work in (engine.sample(request("three")), engine.unload_adapter("three")):
        with pytest.raises(ModelError, match="no adapter 'three'; it has: one, two"):
            run(work)


def test_base_is_fixed_while_adapters_are_loaded(checkpoints: Checkpoints, adapted: Adapted) -> None:
    directory, _ = checkpoints("qwen3")
    path, _ = adapted("qwen3", "thin")
    engine = loaded(EmbeddedEngine.from_directory(directory), "mine", path)
    for update in (
        WeightUpdate(version=1, path=directory / "model.safetensors"),
        WeightUpdate(version=1, path=path, kind="adapter"),
    ):
        with pytest.raises(ModelLoadError, match=r"cannot change under its adapters \(mine\); unload them first"):
            run(engine.load_weights(update))
    run(engine.unload_adapter("mine"))
    loaded(engine, None, path, 1)
    with pytest.raises(ModelLoadError, match="'mine' cannot be served with weights that have an adapter merged"):
        loaded(engine, "mine", path)


def test_packed_weights_take_no_adapter_until_a_whole_model_comes(
    checkpoints: Checkpoints, adapted: Adapted, tmp_path: Path
) -> None:
    directory, _ = checkpoints("qwen3")
    path, _ = adapted("qwen3", "thin")
    engine = EmbeddedEngine.from_directory(directory)
    tensors = packed_tensors(read_checkpoint(directory), engine.arch, dtype=engine.dtype, device=engine.device)
    write_packed(tmp_path / "w", tensors)
    run(engine.load_weights(WeightUpdate(version=1, path=tmp_path / "w", kind="packed")))
    for name in ("mine", None):
        with pytest.raises(ModelLoadError, match="came packed or were freed, and an adapter cannot be put onto those"):
            loaded(engine, name, path)
    run(engine.load_weights(WeightUpdate(version=2, path=directory / "model.safetensors")))
    assert loaded(engine, "mine", path).adapters == {"mine": 0}


class Counting(TorchDispatchMode):
    """How often each operation was called."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: dict[str, int] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.calls[str(func)] = self.calls.get(str(func), 0) + 1
        return func(*args, **(kwargs or {}))


def test_requests_without_adapter_cost_no_extra_operation(checkpoints: Checkpoints, adapted: Adapted) -> None:
    directory, _ = checkpoints("qwen3")
    calls = []
    for names in ((), ("thin", "wide")):
        engine = EmbeddedEngine.from_directory(directory)
        for name in names:
            loaded(engine, name, adapted("qwen3", name)[0])
        with Counting() as counting:
            run(together(engine, [request(None, seed) for seed in range(3)]))
        calls.append(counting.calls)
    assert calls[0] == calls[1]
    assert calls[0]["aten.mm.default"] > 0


@pytest.mark.parametrize(
    ("setting", "said"),
    [
        ({"use_dora": True}, "use_dora"),
        ({"bias": "lora_only"}, "bias"),
        ({"modules_to_save": ["lm_head"]}, "modules_to_save"),
        ({"trainable_token_indices": [3]}, "trainable_token_indices"),
        ({"peft_type": "IA3"}, "IA3"),
        ({"init_lora_weights": "pissa"}, "'pissa', which changes the base model"),
        ({"lora_alpha": "much"}, "alpha of 'model.layers.0.self_attn.q_proj' cannot be read"),
        ({"alpha_pattern": {"(": 3}}, "cannot be read"),
    ],
)
@pytest.mark.parametrize("name", [None, "mine"])
def test_an_adapter_that_is_more_than_plain_lora_is_refused_in_one_line(
    checkpoints: Checkpoints, adapted: Adapted, tmp_path: Path, setting: dict[str, Any], said: str, name: str | None
) -> None:
    path, _ = adapted("qwen3", "thin")
    config = json.loads((path / "adapter_config.json").read_text())
    (tmp_path / "adapter_config.json").write_text(json.dumps({**config, **setting}))
    (tmp_path / "adapter_model.safetensors").write_bytes((path / "adapter_model.safetensors").read_bytes())
    engine = EmbeddedEngine.from_directory(checkpoints("qwen3")[0])
    with pytest.raises(ModelLoadError, match=said) as caught:
        loaded(engine, name, tmp_path)
    assert "\n" not in str(caught.value)
    assert (engine.adapters, engine.version) == ({}, 0)


ANY = "base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight"


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda tensors: tensors.pop(ANY.replace("lora_A", "lora_B")), "lora_A matrix and no lora_B"),
        (lambda tensors: tensors.update({ANY: torch.zeros(2, 7)}), "another shape than"),
        (lambda tensors: tensors.update({ANY: torch.zeros(5, 64)}), "do not fit together"),
        (lambda tensors: tensors[ANY].fill_(float("nan")), "not finite"),
        (lambda tensors: tensors.update({"embed.lora_embedding_A": torch.zeros(2)}), "not a LoRA matrix"),
        (
            lambda tensors: tensors.update(
                {name.replace("layers.0", "layers.9"): t.clone() for name, t in [*tensors.items()]}
            ),
            "layers.9",
        ),
        (lambda tensors: tensors.clear(), "no LoRA matrices"),
    ],
)
@pytest.mark.parametrize("name", [None, "mine"])
def test_matrices_that_do_not_fit_the_base_are_refused(
    checkpoints: Checkpoints,
    adapted: Adapted,
    tmp_path: Path,
    change: Callable[[Any], Any],
    said: str,
    name: str | None,
) -> None:
    path, _ = adapted("qwen3", "thin")
    (tmp_path / "adapter_config.json").write_bytes((path / "adapter_config.json").read_bytes())
    tensors = load_file(path / "adapter_model.safetensors")
    change(tensors)
    save_file(tensors, tmp_path / "adapter_model.safetensors")
    engine = EmbeddedEngine.from_directory(checkpoints("qwen3")[0])
    with pytest.raises(ModelLoadError, match=said):
        loaded(engine, name, tmp_path)


def test_adapter_of_expert_layer_is_refused(
    reference: Reference, checkpoints: Checkpoints, adapted: Adapted, tmp_path: Path
) -> None:
    directory, base = checkpoints("qwen3-moe")
    path, model = adapted("qwen3-moe", "thin")
    engine = loaded(EmbeddedEngine.from_directory(directory), "mine", path)
    asked = [request(name, seed) for seed in range(2) for name in ("mine", None)]
    check(reference, {"mine": model, None: base}, asked, run(together(engine, asked)))
    (tmp_path / "adapter_config.json").write_bytes((path / "adapter_config.json").read_bytes())
    of_experts = {f"base_model.model.model.layers.0.mlp.up_proj.lora_{part}.weight": torch.zeros(2, 2) for part in "AB"}
    save_file(of_experts, tmp_path / "adapter_model.safetensors")
    with pytest.raises(ModelLoadError, match=r"at the dense projections .*; this one has 'model.layers.0.mlp.up_proj'"):
        loaded(engine, "other", tmp_path)


def test_a_directory_without_an_adapter_is_named(checkpoints: Checkpoints, tmp_path: Path) -> None:
    engine = EmbeddedEngine.from_directory(checkpoints("qwen3")[0])
    for name in (None, "mine"):
        with pytest.raises(ModelLoadError, match=f"{tmp_path / 'none'} is not an adapter directory"):
            loaded(engine, name, tmp_path / "none")


@settings(max_examples=40, deadline=None)
@given(st.lists(st.integers(0, 4), min_size=1, max_size=24), st.integers(1, 3), st.booleans())
@example([1, 2, 3], 1, True)  # the stack that is there has one more
def test_whatever_the_batch_each_row_gets_what_its_own_adapter_makes_of_it(
    owners: list[int], length: int, many_steps: bool
) -> None:
    generator = torch.Generator().manual_seed(len(owners))

    def random(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator)

    def factors(rank: int) -> Factors | None:
        return Factors(random(6, rank), random(rank, 5)) if rank else None

    adapters = [PackedAdapter([(factors(rank), None)]) for rank in (2, 3, 0, 1)]
    packed = [adapters[owner] if owner < 4 else None for owner in owners]
    rows = AdapterRows.of(packed, torch.device("cpu"))
    y, x = random(len(owners) * length, 5), random(len(owners) * length, 6)
    expected = y.clone()
    for row, adapter in enumerate(packed):
        own = adapter and adapter.layers[0][0]
        if own:
            tokens = slice(row * length, (row + 1) * length)
            expected[tokens] += x[tokens] @ own.down @ own.up
    assert (rows is None) == all(adapter is None for adapter in packed)
    if rows is not None:
        rows = rows.over(length)
        earlier = AdapterRows.of(adapters, torch.device("cpu"))
        assert earlier is not None
        rows = rows.for_many_steps(earlier.for_many_steps(None)) if many_steps else rows
        rows.add(y, x, 0, 1)
        rows.add(y, x, 0, 0)
    torch.testing.assert_close(y, expected)
    without = [
        i for row, adapter in enumerate(packed) if adapter is None for i in range(row * length, (row + 1) * length)
    ]
    assert torch.equal(y[without], expected[without])
