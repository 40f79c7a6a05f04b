"""Devices that a config names: chosen where they are, refused in one line where they are not, without torch."""

import asyncio
import subprocess
import sys

import pytest

from whet.errors import ConfigError
from whet.inference.devices import (
    ALLOCATOR,
    EXPANDABLE,
    check_device,
    choose_device,
    expand_segments,
    without_expanding,
)


@pytest.mark.parametrize(
    ("here", "chosen"),
    [
        ({}, "cuda"),
        ({"apple": True}, "cuda"),
        ({"driver": False, "apple": True}, "mps"),
        ({"driver": False}, "cpu"),
        ({"built": None}, "cpu"),
        ({"count": 0}, "cpu"),
    ],
)
def test_auto_is_the_fastest_device_that_is_there(machine, here, chosen):
    machine(**here)
    assert choose_device() == choose_device("auto") == chosen


@pytest.mark.parametrize(
    ("here", "says"),
    [
        ({"built": None}, "built without CUDA"),
        ({"driver": False}, "no CUDA driver"),
        ({"count": 0}, "no CUDA device"),
        ({"count": 1}, "there is 1 CUDA device here, counted from 0"),
    ],
)
def test_a_device_that_is_missing_is_refused_with_the_reason_and_what_to_do(machine, here, says):
    machine(**here)
    with pytest.raises(ConfigError, match=rf'^\[learner\] device = "cuda:1": .*{says}.*"auto" or "cpu"') as caught:
        check_device("cuda:1", "[learner] device")
    assert "\n" not in str(caught.value)


def test_the_last_cuda_device_of_two_is_there(machine):
    machine(count=2)
    assert choose_device("cuda:1") == "cuda:1"
    with pytest.raises(ConfigError, match="there are 2 CUDA devices"):
        choose_device("cuda:2")


def test_mps_is_refused_on_other_machines_and_by_a_torch_that_lacks_operations_of_it(machine, monkeypatch):
    machine(driver=False)
    with pytest.raises(ConfigError, match="mps is for Macs"):
        choose_device("mps")
    machine(driver=False, apple=True)
    assert choose_device("mps") == "mps"

    def missing(*_):
        raise NotImplementedError("the operator 'aten::searchsorted' is not implemented for MPS\nmore lines")

    import torch

    monkeypatch.setattr(torch, "searchsorted", missing)
    with pytest.raises(ConfigError, match=r"does not compute all of it on MPS \(the operator .* for MPS\)\. Set it"):
        choose_device("mps")


def test_how_torch_was_built_is_read_as_torch_says_it(machine, monkeypatch):
    import torch

    spec = torch.__spec__
    machine()
    monkeypatch.setattr(torch, "__spec__", spec)
    assert choose_device("auto") == ("cuda" if torch.version.cuda or torch.version.hip else "cpu")


@pytest.mark.parametrize("name", ["gpu", "cuda:", "cuda:x", "cuda:0:1", "", "cpu\n"])
def test_a_name_that_is_no_device_is_refused(name):
    with pytest.raises(ConfigError, match="no device"):
        check_device(name, "[inference] device")


def test_without_a_driver_no_check_imports_torch():
    code = (
        "import ctypes, sys\n"
        "def none(*_): raise OSError('no library')\n"
        "ctypes.CDLL = none\n"
        "from whet.inference.devices import check_device, choose_device\n"
        "choose_device()\n"
        "try: check_device('cuda:0', '[learner] device')\n"
        "except Exception as error: print(type(error).__name__)\n"
        "print('torch' in sys.modules)"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout == "ConfigError\nFalse\n" or sys.platform == "darwin"


@pytest.mark.parametrize("kind", ["qwen3", "qwen3-moe"])
def test_sampled_logprobs_are_those_of_transformers(kind, device, checkpoints, reference):
    from whet.inference.embedded import EmbeddedEngine
    from whet.inference.limits import EngineLimits
    from whet.inference.protocol import SampleRequest, SamplingParams

    directory, model = checkpoints(kind)
    engine = EmbeddedEngine.from_directory(directory, device=device, limits=EngineLimits(kv_bytes=1 << 24))

    async def turns():
        for prompt in ([5, 6, 7], [5, 6, 7, 9, 8, 9, 3, 2]):
            params = [SamplingParams(max_tokens=6, temperature=0.7, seed=seed) for seed in range(3)]
            requests = [SampleRequest(prompt_ids=prompt, params=one, group_key="g") for one in params]
            for sample in await asyncio.gather(*map(engine.sample, requests)):
                yield prompt, sample
        await engine.close()

    async def differences():
        return [
            abs(reference(model, prompt, sample.ids, 0.7) - torch.tensor(sample.logprobs)).max().item()
            async for prompt, sample in turns()
        ]

    torch = pytest.importorskip("torch")
    found = asyncio.run(differences())
    assert len(found) == 6
    assert max(found) < (1e-4 if device == "cpu" else 1e-3)


@pytest.mark.parametrize("kind", ["qwen3", "qwen3-moe"])
def test_every_tensor_of_the_engine_is_made_on_its_device(kind, checkpoints, stand_in_device, monkeypatch):
    functional = pytest.importorskip("torch.nn.functional")
    # torch's grouped product of meta tensors takes bfloat16 alone
    monkeypatch.setattr(functional, "grouped_mm", lambda x, stack, offs: x @ stack[0] + 0 * offs[-1])
    from whet.inference.embedded import EmbeddedEngine
    from whet.inference.limits import EngineLimits
    from whet.inference.protocol import SampleRequest, SamplingParams

    ways = [
        SamplingParams(max_tokens=3, temperature=0.7),
        SamplingParams(max_tokens=3, temperature=0.0),
        SamplingParams(max_tokens=3, temperature=1.0, top_p=0.9, top_k=5, min_p=0.01),
    ]

    async def turns(engine):
        for prompt in ([5, 6, 7], [5, 6, 7, 0, 8, 9]):  # the second continues what was drawn: it reads the cache
            requests = [
                SampleRequest(prompt_ids=prompt, params=way, group_key="g", rollout_key=str(number))
                for number, way in enumerate(ways)
            ]
            samples = await asyncio.gather(*map(engine.sample, requests))
            assert all(sample.ids for sample in samples)
        await engine.close()

    directory, _ = checkpoints(kind)
    with stand_in_device():
        engine = EmbeddedEngine.from_directory(
            directory, device="meta", record_experts=True, record_kept=True, limits=EngineLimits(kv_bytes=1 << 24)
        )
        asyncio.run(turns(engine))


def test_segments_expand_on_cuda_unless_the_user_has_set_the_allocator() -> None:
    environ: dict[str, str] = {}
    expand_segments("cpu", environ)
    assert environ == {}
    expand_segments("cuda:1", environ)
    assert environ == {ALLOCATOR: EXPANDABLE}
    assert without_expanding({**environ, "HOME": "/"}) == {"HOME": "/"}  # vLLM's sleep mode refuses it
    for name in (ALLOCATOR, "PYTORCH_CUDA_ALLOC_CONF"):
        chosen = {name: "max_split_size_mb:512"}
        expand_segments("cuda", chosen)
        assert chosen == without_expanding(chosen) == {name: "max_split_size_mb:512"}
