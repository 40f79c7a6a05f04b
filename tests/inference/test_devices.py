"""Devices that a config names: chosen where they are, refused in one line where they are not, without torch."""

import asyncio
import subprocess
import sys

import pytest

from whet.errors import ConfigError
from whet.inference import devices
from whet.inference.devices import check_device, choose_device


def test_without_a_gpu_auto_is_the_cpu(monkeypatch):
    monkeypatch.setattr(devices, "_missing", lambda device: None if device == "cpu" else "not here")
    assert choose_device("auto") == "cpu"


@pytest.mark.parametrize(
    ("here", "chosen"), [(("cuda", "mps", "cpu"), "cuda"), (("mps", "cpu"), "mps"), (("cpu",), "cpu")]
)
def test_auto_is_the_fastest_device_that_is_there(monkeypatch, here, chosen):
    monkeypatch.setattr(devices, "_missing", lambda device: None if device in here else "not here")
    assert choose_device() == chosen


@pytest.mark.parametrize(
    ("built", "driver", "count", "says"),
    [
        (False, True, 1, "built without CUDA"),
        (True, False, 1, "no CUDA driver"),
        (True, True, 0, "no CUDA device"),
        (True, True, 1, "there is 1 CUDA device here, counted from 0"),
    ],
)
def test_a_device_that_is_missing_is_refused_with_the_reason_and_what_to_do(monkeypatch, built, driver, count, says):
    torch = pytest.importorskip("torch")
    monkeypatch.setattr(devices, "_built_for_cuda", lambda: built)
    monkeypatch.setattr(devices, "_has_cuda_driver", lambda: driver)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: count)
    with pytest.raises(ConfigError, match=rf'^\[learner\] device = "cuda:1": .*{says}.*"auto" or "cpu"') as caught:
        check_device("cuda:1", "[learner] device")
    assert "\n" not in str(caught.value)


def test_the_last_cuda_device_of_two_is_there(monkeypatch):
    torch = pytest.importorskip("torch")
    monkeypatch.setattr(devices, "_built_for_cuda", lambda: True)
    monkeypatch.setattr(devices, "_has_cuda_driver", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    assert choose_device("cuda:1") == "cuda:1"
    with pytest.raises(ConfigError, match="there are 2 CUDA devices"):
        choose_device("cuda:2")


def test_how_torch_was_built_is_read_as_torch_says_it():
    torch = pytest.importorskip("torch")
    assert devices._built_for_cuda() == bool(torch.version.cuda or torch.version.hip)


@pytest.mark.parametrize("name", ["gpu", "cuda:", "cuda:x", "cuda:0:1", "", "cpu\n"])
def test_a_name_that_is_no_device_is_refused(name):
    with pytest.raises(ConfigError, match="no device"):
        check_device(name, "[inference] device")


def test_without_a_driver_no_check_imports_torch():
    code = (
        "import sys; from whet.inference import devices; devices._has_cuda_driver = lambda: False\n"
        "devices.choose_device(); devices._cuda_missing(0); print('torch' in sys.modules)"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout == "False\n" or sys.platform == "darwin"


@pytest.mark.parametrize("kind", ["qwen3", "qwen3-moe"])
def test_every_tensor_of_the_engine_is_made_on_its_device(kind, checkpoints, stand_in_device):
    pytest.importorskip("torch")
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
