"""An engine behind a Unix socket gives what the engine itself gives: ids, logprobs, versions, errors, all of it."""

import asyncio
import contextlib
import socket
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from transformers import Qwen3MoeConfig, Qwen3MoeForCausalLM

from whet.errors import EndpointDownError, ModelError, ModelLoadError, OverlongPromptError
from whet.inference.architecture import read_architecture
from whet.inference.embedded import EmbeddedEngine
from whet.inference.protocol import SampleRequest, SamplingParams, VersionRun, WeightUpdate
from whet.inference.remote_engine import EngineServer, RemoteEngine
from whet.inference.requests import SampleLostError
from whet.inference.weights.model_weights import packed_tensors, read_checkpoint
from whet.inference.weights.packed_file import write_packed

PROMPT = [5, 17, 400, 23]
LONG = SampleRequest(PROMPT, SamplingParams(max_tokens=400, seed=2))
Work = Callable[[EmbeddedEngine, RemoteEngine], Awaitable[Any]]


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A mixture of experts of random weights."""
    torch.manual_seed(0)
    config = Qwen3MoeConfig(
        vocab_size=512,
        hidden_size=32,
        intermediate_size=48,
        moe_intermediate_size=24,
        num_experts=4,
        num_experts_per_tok=2,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=16,
        max_position_embeddings=512,
    )
    directory = tmp_path_factory.mktemp("moe")
    Qwen3MoeForCausalLM(config).save_pretrained(directory)
    return directory


@pytest.fixture
def private() -> Iterator[Path]:
    with tempfile.TemporaryDirectory() as directory:  # a Unix socket takes short names only
        yield Path(directory)


@contextlib.asynccontextmanager
async def serving(engine: EmbeddedEngine, path: Path) -> AsyncIterator[RemoteEngine]:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listening:
        listening.bind(str(path))
        listening.listen()
        running = asyncio.create_task(EngineServer(engine, "secret").serve(listening))
        remote = RemoteEngine(path, "secret")
        try:
            yield remote
        finally:
            await remote.close()
            running.cancel()
            await asyncio.wait([running])
            await engine.close()


@pytest.fixture
def served(checkpoint: Path, private: Path) -> Callable[[Work], Any]:
    """Runs `work` with an engine and, of that engine, what its server makes of it."""

    async def run(work: Work) -> Any:
        engine = EmbeddedEngine.from_directory(
            checkpoint, seed=0, record_experts=True, decode_text=lambda ids: "".join(chr(65 + i % 26) for i in ids)
        )
        async with serving(engine, private / "engine.sock") as remote:
            return await work(engine, remote)

    return lambda work: asyncio.run(run(work))


def test_lengths_of_unfinished_answers_are_those_of_the_engine(served: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("whet.inference.remote_engine.LOOK_S", 0.0)

    async def work(engine: EmbeddedEngine, remote: RemoteEngine) -> None:
        assert remote.answer_lengths() == []
        sampling = [asyncio.create_task(remote.sample(replace(LONG, rollout_key=key))) for key in "ab"]
        while not (len(found := remote.answer_lengths()) == 2 and min(found) > 0):
            assert not all(task.done() for task in sampling), "two answers of 400 tokens were never seen"
            await asyncio.sleep(0)
        assert max(found) <= 400
        await asyncio.gather(*sampling)
        assert remote.answer_lengths() == []

    served(work)


@pytest.mark.parametrize(
    "params",
    [
        SamplingParams(max_tokens=12, seed=1),
        SamplingParams(max_tokens=12, temperature=0.0),
        SamplingParams(max_tokens=30, temperature=0.5, top_p=0.9, top_k=20, min_p=0.01, seed=2**62),
        SamplingParams(max_tokens=200, seed=3, stop=("AB", "C"), stop_token_ids=(7, 8)),
    ],
    ids=["plain", "greedy", "cut", "stopped"],
)
def test_a_sample_is_the_same_bit_by_bit_streamed_or_not(served: Any, params: SamplingParams) -> None:
    request = SampleRequest(PROMPT, params)

    async def work(engine: EmbeddedEngine, remote: RemoteEngine) -> None:
        heard: list[int] = []
        here = await engine.sample(request)
        for there in (await remote.sample(request), await remote.sample(request, on_tokens=heard.extend)):
            assert here.experts is not None
            assert there.experts is not None
            assert np.array_equal(here.experts, there.experts)
            assert replace(there, experts=None) == replace(here, experts=None)
        assert heard == here.ids

    served(work)


@pytest.mark.parametrize("kind", ["model", "packed"])
def test_new_weights_reach_requests_that_run_and_their_tokens_say_so(
    served: Any, checkpoint: Path, tmp_path: Path, kind: Any
) -> None:
    path = checkpoint / "model.safetensors"
    if kind == "packed":
        arch, named = read_architecture(checkpoint), read_checkpoint(checkpoint)
        path = tmp_path / "weights.packed"
        write_packed(path, packed_tensors(named, arch, dtype=torch.float32, device=torch.device("cpu")))

    async def work(engine: EmbeddedEngine, remote: RemoteEngine) -> None:
        began = asyncio.Event()
        running = asyncio.create_task(remote.sample(LONG, on_tokens=lambda _: began.set()))
        await began.wait()
        await remote.load_weights(WeightUpdate(7, path, kind))
        assert (remote.version, engine.version) == (7, 7)
        sample = await running
        assert [run.version for run in sample.versions] == [0, 7]
        assert sum(run.count for run in sample.versions) == len(sample.ids)

    served(work)


def test_errors_arrive_as_what_they_are(served: Any, tmp_path: Path) -> None:
    torn = tmp_path / "torn.safetensors"
    torn.write_bytes(b"torn")
    other = tmp_path / "other.safetensors"
    save_file({"a": torch.ones(1)}, other)
    long = SampleRequest(PROMPT, SamplingParams(max_tokens=10_000))

    async def work(engine: EmbeddedEngine, remote: RemoteEngine) -> None:
        with pytest.raises(OverlongPromptError, match="exceed the context of 512"):
            await remote.sample(long)
        with pytest.raises(OverlongPromptError, match="exceed the context of 512"):
            await remote.sample(long, on_tokens=lambda _: None)
        with pytest.raises(ModelError, match="outside the vocabulary"):
            await remote.sample(SampleRequest([600], SamplingParams()))
        with pytest.raises(ModelError, match="no adapter 'mine'"):
            await remote.sample(SampleRequest(PROMPT, SamplingParams(), adapter="mine"))
        with pytest.raises(ModelError, match="it has: none"):
            await remote.unload_adapter("mine")
        for path, reason in ((torn, "torn"), (other, "lack"), (tmp_path / "none", "missing")):
            with pytest.raises(ModelLoadError, match=reason):
                await remote.load_weights(WeightUpdate(1, path))
        assert engine.version == remote.version == 0

    served(work)


@pytest.mark.parametrize("listens", [True, False])
def test_a_request_that_is_given_up_leaves_its_place_in_the_engine(served: Any, listens: bool) -> None:
    async def work(engine: EmbeddedEngine, remote: RemoteEngine) -> None:
        request = replace(LONG, params=SamplingParams(max_tokens=500))
        listening: dict[str, Any] = {"on_tokens": lambda _: None} if listens else {}
        asked = asyncio.create_task(remote.sample(request, **listening))
        while not engine.requests_in_flight:
            await asyncio.sleep(0)
        asked.cancel()
        while engine.requests_in_flight:
            await asyncio.sleep(0)
        assert engine.stats.generated_tokens < 500
        assert len((await remote.sample(LONG)).ids) == 400

    served(work)


def test_what_a_listener_raises_ends_its_request(served: Any) -> None:
    def refuse(ids: list[int]) -> None:
        raise ValueError("enough")

    async def work(engine: EmbeddedEngine, remote: RemoteEngine) -> None:
        with pytest.raises(ValueError, match="enough"):
            await remote.sample(LONG, on_tokens=refuse)

    served(work)


def test_nobody_is_answered_without_the_key(served: Any, private: Path) -> None:
    async def work(engine: EmbeddedEngine, remote: RemoteEngine) -> None:
        stranger = RemoteEngine(private / "engine.sock", "guessed")
        with pytest.raises(EndpointDownError, match="another key"):
            await stranger.sample(LONG)
        with pytest.raises(EndpointDownError, match="another key"):
            await stranger.load_weights(WeightUpdate(1, private / "none"))
        assert engine.stats.requests == 0

    served(work)


@pytest.mark.parametrize(
    "cuts", [{}, {"top_k": 20, "min_p": 0.01}, {"temperature": 0.0}], ids=["plain", "cut", "greedy"]
)
def test_what_arrived_of_an_answer_that_breaks_off_is_the_beginning_of_the_sample(
    checkpoint: Path, private: Path, cuts: dict[str, Any]
) -> None:
    request = SampleRequest(PROMPT, SamplingParams(max_tokens=60, seed=4, **cuts))
    heard: list[int] = []

    async def run() -> None:
        engine = EmbeddedEngine.from_directory(checkpoint, seed=0, record_kept=True)
        whole = await engine.sample(request)
        async with serving(engine, private / "engine.sock") as remote:
            asked = asyncio.create_task(remote.sample(request, on_tokens=heard.extend))
            while len(heard) < 7:
                await asyncio.sleep(0)
            await remote.close()
            with pytest.raises(SampleLostError, match="connection") as lost:
                await asked
        part, count = lost.value.part, len(heard)
        assert part.ids == heard == whole.ids[:count]
        assert part.logprobs == whole.logprobs[:count]
        assert part.versions == [VersionRun(0, count)]
        assert part.kept_mass == (None if whole.kept_mass is None else whole.kept_mass[:count])
        assert (part.kept is None) == (whole.kept is None) == (not cuts)
        if part.kept is not None and whole.kept is not None:
            assert np.array_equal(part.kept.ids, whole.kept.first(count).ids)
            assert np.array_equal(part.kept.counts, whole.kept.first(count).counts)

    asyncio.run(run())


def test_an_engine_that_is_gone_is_named_to_everybody_who_waits(checkpoint: Path, private: Path) -> None:
    async def run() -> None:
        engine = EmbeddedEngine.from_directory(checkpoint, seed=0)
        path = private / "engine.sock"
        async with serving(engine, path) as remote:
            asked = asyncio.create_task(remote.sample(LONG))
            while not engine.requests_in_flight:
                await asyncio.sleep(0)
            await remote.close()
            with pytest.raises(EndpointDownError, match="connection"):
                await asked
        path.unlink()
        with pytest.raises(EndpointDownError, match="No such file"):
            await RemoteEngine(path, "secret").sample(LONG)

    asyncio.run(run())
