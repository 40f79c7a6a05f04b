"""Training that samples from real vLLM servers, on a CPU. `make vllm` sets them up.

1. Every sampled token is trained with the logprob that vLLM gave it, and that agrees with the learner's.
2. An adapter is trained too, while rollouts go on, and each token knows its version.
3. A server that is killed is started again with the newest weights, and the run goes on: no group twice, none lost.
4. A run that began with the embedded engine continues with vLLM, and the other way round.
5. Nothing of a server outlives its run, however that ends.
6. A server that another run used samples the first token with this run's weights, under an adapter too.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from whet.inference.model_names import resolve_model
from whet.inference.protocol import WeightUpdate
from whet.inference.vllm.engine import VllmEngine
from whet.inference.vllm.http_connection import HttpPool
from whet.inference.vllm.members import headers
from whet.rl.storage.records import Ledger
from whet.system.files import read_lines

pytestmark = [pytest.mark.parts, pytest.mark.timeout(900)]
CONFIG = """
name = "run"
model = "whet/tiny"
max_steps = 3
batch_size = 16
rollouts_per_example = 4
learning_rate = 3e-4
[sampling]
max_tokens = 24
[[env]]
id = "reverse-text"
[[env]]
id = "calculator"
weight = 0.5
[eval]
num_examples = 2
before = false
after = false
[checkpointing]
save_every_n_steps = 1
[inference]
engine = "vllm"
[inference.server_args]
max_num_seqs = 64
kv_cache_memory_bytes = "64M"
[deployment]
threads = 1
"""
Start = Callable[..., Any]


@pytest.fixture
def start(warm: Any, vllm_servers: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Start:
    """Starts a run in this test's directory, in a process of its own."""
    monkeypatch.setenv("WHET_VLLM_PYTHON", str(vllm_servers.python()))
    for name, value in vllm_servers.ENVIRONMENT.items():
        monkeypatch.setenv(name, value)
    config = tmp_path / "config.toml"
    config.write_text(CONFIG)
    return lambda *arguments: warm.start("train", "run", config, "--runs_directory", tmp_path / "runs", *arguments)


def finished(process: Any, directory: Path) -> list[dict[str, Any]]:
    output = process.stdout.read()
    assert process.wait() == 0, output + _server_log(directory)
    return list(read_lines(directory / "metrics.jsonl"))


def _server_log(directory: Path) -> str:
    return "".join(path.read_text()[-2000:] for path in directory.glob("logs/vllm-*.log"))


def trained_once(directory: Path, steps: int) -> None:
    groups = Counter(group for trained in Ledger(directory / "ledger.jsonl").steps.values() for group in trained)
    assert len(groups) == steps * 4
    assert set(groups.values()) == {1}


def servers_of(run: int) -> list[int]:
    """The API servers that a process started, found by their guards."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = path.read_bytes().split(b"\0")
        except OSError:
            continue
        if b"-I" in words and any(word.endswith(b"guard.py") for word in words) and str(run).encode() in words:
            guard = int(path.parent.name)
            found += [int(child) for child in Path(f"/proc/{guard}/task/{guard}/children").read_text().split()]
    return found


def wait_for(what: Callable[[], Any], seconds: float = 300) -> Any:
    deadline = time.monotonic() + seconds
    while not (found := what()):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    return found


@pytest.mark.long
def test_a_synchronous_run_learns_from_what_two_processes_of_vllm_sampled(start: Start, tmp_path: Path) -> None:
    directory = tmp_path / "runs" / "run"
    split = ("--inference.device", "cpu", "--inference.tensor_parallel_size", "2")
    metrics = finished(start(*split), directory)
    assert [entry["step"] for entry in metrics] == [1, 2, 3]
    assert all(entry["policy/kl"] < 1e-6 for entry in metrics)  # each rank computes with the newest weights
    assert all(entry["staleness/max"] == 0 for entry in metrics)
    assert all(entry["engine/healthy"] == 1 and entry["engine/restarts"] == 0 for entry in metrics)
    trained_once(directory, 3)


def test_an_adapter_is_trained_while_rollouts_go_on(start: Start, tmp_path: Path) -> None:
    directory = tmp_path / "runs" / "run"
    metrics = finished(start("--lora.rank", "4", "--max_async_level", "1", "--learning_rate", "1e-3"), directory)
    assert max(entry["staleness/max"] for entry in metrics) >= 1
    assert all(entry["policy/kl"] < 0.1 for entry in metrics)
    trained_once(directory, 3)
    adapter = json.loads((directory / "adapters" / "step_3" / "adapter_config.json").read_text())
    assert adapter["r"] == 4


def test_a_killed_server_is_started_again_and_the_run_goes_on(start: Start, tmp_path: Path) -> None:
    directory = tmp_path / "runs" / "run"
    process = start("--max_async_level", "1", "--max_steps", "6")
    wait_for(lambda: (directory / "checkpoints" / "step_2").is_dir())
    (server,) = servers_of(process.pid)
    os.kill(server, signal.SIGKILL)
    metrics = finished(process, directory)
    assert [entry["step"] for entry in metrics] == [1, 2, 3, 4, 5, 6]
    assert metrics[-1]["engine/restarts"] == 1
    assert all(entry["policy/kl"] < 0.1 for entry in metrics)
    trained_once(directory, 6)


@pytest.mark.long
def test_a_run_resumes_with_the_other_engine(start: Start, tmp_path: Path) -> None:
    directory, config = tmp_path / "runs" / "run", tmp_path / "config.toml"
    embedded = CONFIG[: CONFIG.index("[inference]")] + CONFIG[CONFIG.index("[deployment]") :]
    config.write_text(embedded)
    finished(start("--max_steps", "2"), directory)
    config.write_text(CONFIG)
    finished(start("--max_steps", "4", "--resume"), directory)
    config.write_text(embedded)
    metrics = finished(start("--max_steps", "6", "--resume"), directory)
    assert [entry["step"] for entry in metrics] == [1, 2, 3, 4, 5, 6]
    assert ["engine/healthy" in entry for entry in metrics] == [False, False, True, True, False, False]
    assert all(entry["policy/kl"] < 1e-6 for entry in metrics)
    trained_once(directory, 6)


@pytest.fixture
def used_server(vllm_server: Any, vllm_servers: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The address of a server that has the weights of another run."""
    monkeypatch.setenv("VLLM_API_KEY", vllm_server.key)
    own, other = resolve_model("whet/tiny") / "model.safetensors", tmp_path / "other.safetensors"
    draw = torch.Generator().manual_seed(0)
    noisy = {name: t.float() * (1 + torch.randn(t.shape, generator=draw)) for name, t in load_file(own).items()}
    save_file(noisy, other, metadata={"format": "pt"})

    async def load(path: Path) -> None:
        engine = VllmEngine(HttpPool(vllm_server.socket, headers(vllm_server.key)), max_context=512)
        await engine.load_weights(WeightUpdate(0, path))
        await engine.close()

    async def serve(address: list[str], there: threading.Event, done: threading.Event) -> None:
        async with vllm_servers.relay(vllm_server.socket) as url:
            address.append(url)
            there.set()
            await asyncio.to_thread(done.wait)

    asyncio.run(load(other))
    address, there, done = list[str](), threading.Event(), threading.Event()
    thread = threading.Thread(target=lambda: asyncio.run(serve(address, there, done)))
    thread.start()
    there.wait()
    yield address[0]
    done.set()
    thread.join()
    asyncio.run(load(own))


@pytest.mark.parametrize("lora", [(), ("--lora.rank", "4")])
def test_a_server_that_another_run_used_has_this_runs_weights_from_the_first_token(
    start: Start, used_server: str, tmp_path: Path, lora: tuple[str, ...]
) -> None:
    (tmp_path / "config.toml").write_text(
        CONFIG.replace("before = false", "before = true").partition("[inference]")[0]
        + f'[inference]\nbase_url = "{used_server}"\n[deployment]\nthreads = 1\n'
    )
    directory = tmp_path / "runs" / "run"
    metrics = finished(start("--max_steps", "1", *lora), directory)
    assert metrics[0]["policy/kl"] < 1e-6
    (tmp_path / "config.toml").write_text(CONFIG.partition("[inference]")[0].replace("before = false", "before = true"))
    finished(start("--max_steps", "1", "--name", "embedded", *lora), tmp_path / "runs" / "embedded")
    greedy = [
        [row["reward"] for row in read_lines(tmp_path / "runs" / name / "evals.jsonl") if row["sampling"] == "greedy"]
        for name in ("run", "embedded")
    ]
    assert greedy[0] == pytest.approx(greedy[1], abs=0.05)


@pytest.mark.long
def test_a_killed_run_leaves_no_server_and_continues(start: Start, tmp_path: Path) -> None:
    directory = tmp_path / "runs" / "run"
    process = start()
    wait_for(lambda: (directory / "checkpoints" / "step_1").is_dir())
    (server,) = servers_of(process.pid)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    wait_for(lambda: not Path(f"/proc/{server}").exists())
    metrics = finished(start("--resume"), directory)
    assert [entry["step"] for entry in metrics] == [1, 2, 3]
    trained_once(directory, 3)
