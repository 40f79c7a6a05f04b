"""Sampling through the SDK: from the base model and from saved weights; logprobs of prompts; wrong requests."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
import tinker
import torch
from tinker import types
from transformers import AutoTokenizer

from whet.inference.loading import load_policy
from whet.inference.model_names import resolve_model
from whet.inference.protocol import SampleRequest, SamplingParams

IDS = [5, 17, 33, 90, 120, 44, 9, 61]


@pytest.fixture(scope="module")
def parts() -> Any:
    from whet.tinker.opening import load_base

    return load_base("whet/tiny")


@pytest.fixture
def sampled(serving: Any, tmp_path: Path, parts: Any) -> Iterator[Any]:
    from whet.tinker.opening import load_engine

    with serving.serving(tmp_path / "data", base_and_bank=parts, sampled=load_engine("whet/tiny")) as served:
        yield served
    for name in list(parts[1].names):
        parts[1].remove(name)


@pytest.fixture
def sdk(sampled: Any) -> Iterator[Any]:
    opened = tinker.ServiceClient(base_url=sampled.url, api_key=sampled.key)
    yield opened
    opened.close("success").result()


def prompt(ids: list[int] = IDS) -> types.ModelInput:
    return types.ModelInput.from_ints(ids)


@pytest.fixture(scope="module")
def model() -> Any:
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(resolve_model("whet/tiny"), dtype=torch.float32)


def logprobs_of(model: Any, ids: list[int]) -> Any:
    with torch.no_grad():
        return model(torch.tensor([ids])).logits[0, :-1].log_softmax(-1).numpy()


def close(found: Any, expected: Any) -> None:
    np.testing.assert_allclose(np.asarray(found, np.float32), expected, atol=1e-5, rtol=0)


def test_the_base_model_is_sampled_as_by_the_engine_itself(sdk: Any) -> None:
    client = sdk.create_sampling_client(base_model="whet/tiny").result()
    params = types.SamplingParams(max_tokens=12, seed=7, temperature=0.8)
    answer = client.sample(prompt(), 3, params).result()
    engine = load_policy("whet/tiny", batch_invariant=True).engine
    first = asyncio.run(engine.sample(SampleRequest(IDS, SamplingParams(max_tokens=12, seed=7, temperature=0.8))))
    assert answer.sequences[0].tokens[:12] == first.ids[: len(answer.sequences[0].tokens)]
    assert answer.sequences[0].logprobs == pytest.approx(first.logprobs[: len(answer.sequences[0].tokens)], abs=0)
    assert len({tuple(sequence.tokens) for sequence in answer.sequences}) == 3
    assert len({sequence.sequence_id for sequence in answer.sequences}) == 3
    again = client.sample(prompt(), 3, params).result()
    assert [s.tokens for s in again.sequences] == [s.tokens for s in answer.sequences]
    assert sdk.get_server_capabilities().supported_models[0].sampleable


def test_logprobs_of_a_prompt_and_what_is_likely_are_the_models(sdk: Any, model: Any) -> None:
    client, expected = sdk.create_sampling_client(base_model="whet/tiny").result(), logprobs_of(model, IDS)
    own = expected[np.arange(len(IDS) - 1), IDS[1:]]
    scored = client.compute_logprobs(prompt()).result()
    assert scored[0] is None
    close(scored[1:], own)
    last = client.compute_logprobs(prompt(), prompt_logprobs_last_n=2).result()
    assert last[:-2] == [None] * 6
    close(last[-2:], own[-2:])
    ids = torch.full((len(IDS) - 1, 3), -1, dtype=torch.int64)
    ids[4, 1], ids[6, 0] = 0, 77
    for targets in (types.TensorData.from_torch(ids), types.TensorData.from_torch_sparse(ids, pad_value=-1)):
        answer = client.sample(
            prompt(),
            2,
            types.SamplingParams(max_tokens=2, seed=1),
            include_prompt_logprobs=True,
            topk_prompt_logprobs=3,
            topk_sample_logprobs=2,
            target_prompt_logprobs=targets,
            prompt_alt_tokens_k=4,
        ).result()
        close(answer.prompt_logprobs[1:], own)
        assert answer.topk_prompt_logprobs[0] is None
        for position, row in enumerate(answer.topk_prompt_logprobs[1:]):
            close([logprob for _, logprob in row], np.sort(expected[position])[::-1][:3])
            close([logprob for _, logprob in row], expected[position][[token for token, _ in row]])
        dense = answer.target_prompt_logprobs.to_torch().to_dense().numpy()
        close(dense, np.where(ids.numpy() < 0, 0, np.take_along_axis(expected, ids.numpy().clip(0), 1)))
        drawn = answer.prompt_alt_tokens.tokens.to_numpy().reshape(-1, 4)
        alike = answer.prompt_alt_tokens.logprobs.to_numpy().reshape(-1, 4)
        close(alike, np.take_along_axis(expected, drawn, 1))
        for sequence in answer.sequences:
            of_drawn = logprobs_of(model, IDS + sequence.tokens)[len(IDS) - 1 :]
            close([[lp for _, lp in row] for row in sequence.topk_logprobs], np.sort(of_drawn, 1)[:, ::-1][:, :2])


def test_ends(sdk: Any) -> None:
    client = sdk.create_sampling_client(base_model="whet/tiny").result()
    greedy = types.SamplingParams(max_tokens=40, temperature=0.0, stop=[])
    whole = client.sample(prompt(), 1, greedy).result().sequences[0]
    assert (len(whole.tokens), whole.stop_reason) == (40, "length")
    ends = whole.tokens[5]
    cut = client.sample(prompt(), 1, types.SamplingParams(max_tokens=40, temperature=0.0, stop=[ends])).result()
    assert cut.sequences[0].stop_reason == "stop"
    assert cut.sequences[0].tokens == whole.tokens[: whole.tokens.index(ends) + 1]
    text = AutoTokenizer.from_pretrained(resolve_model("whet/tiny")).decode(whole.tokens[:8])
    by_text = client.sample(prompt(), 1, types.SamplingParams(max_tokens=40, temperature=0.0, stop=text[-2:])).result()
    assert by_text.sequences[0].stop_reason == "stop"


def test_saved_weights_are_sampled_beside_others_and_the_base(
    sdk: Any, sampled: Any, datum: Callable[..., Any]
) -> None:
    sentence = [5, 17, 33, 90, 120, 44, 9, 61, 5, 17, 33]
    training = types.AdamParams(learning_rate=5e-3)
    clients = [sdk.create_sampling_client(base_model="whet/tiny").result()]
    for rank, unembed in ((4, True), (8, False)):
        trainer = sdk.create_lora_training_client(base_model="whet/tiny", rank=rank, seed=rank, train_unembed=unembed)
        for _ in range(10):
            trainer.forward_backward(
                [datum(sentence[:-1], target_tokens=sentence[1:], weights=[1.0] * 10)], "cross_entropy"
            )
            trainer.optim_step(training).result()
        passed = trainer.forward(
            [datum(sentence[:-1], target_tokens=sentence[1:], weights=[1.0] * 10)], "cross_entropy"
        ).result()
        client = trainer.save_weights_and_get_sampling_client()
        named = trainer.save_weights_for_sampler("mine").result().path
        other = sdk.create_sampling_client(model_path=named).result()
        scored = client.compute_logprobs(prompt(sentence)).result()
        close(scored[1:], passed.loss_fn_outputs[0]["logprobs"].to_numpy())
        assert scored == other.compute_logprobs(prompt(sentence)).result()
        clients.append(client)
    params = types.SamplingParams(max_tokens=10, seed=3)
    futures = [client.sample(prompt(), 2, params) for client in clients for _ in range(3)]
    answers = [[(s.tokens, s.logprobs) for s in future.result().sequences] for future in futures]
    for number, client in enumerate(clients):
        alone = [(s.tokens, s.logprobs) for s in client.sample(prompt(), 2, params).result().sequences]
        assert answers[3 * number : 3 * number + 3] == [alone] * 3  # the same bits
    assert len({repr(answer) for answer in answers}) == 3
    assert clients[1].get_base_model() == "whet/tiny"


def post(sampled: Any, path: str, **body: Any) -> httpx.Response:
    return httpx.post(f"{sampled.url}/api/v1/{path}", json=body, headers={"X-API-Key": sampled.key}, timeout=60)


def test_a_request_that_is_sent_again_is_one_and_what_is_lost_is_sent_again(sdk: Any, sampled: Any) -> None:
    client = sdk.create_sampling_client(base_model="whet/tiny").result()
    body = {
        "sampling_session_id": client._sampling_session_id,
        "seq_id": 999,
        "prompt": {"chunks": [{"type": "encoded_text", "tokens": IDS}]},
        "sampling_params": {"max_tokens": 3},
    }
    one, other = post(sampled, "asample", **body), post(sampled, "asample", **body)
    assert one.json() == other.json()
    assert post(sampled, "asample", **{**body, "num_samples": 2}).status_code == 422
    id = one.json()["request_id"]
    assert post(sampled, "retrieve_future", request_id=id).headers["content-type"] == "application/x-protobuf"
    assert post(sampled, "retrieve_future", request_id=id.replace("999", "998")).status_code == 410
    assert post(sampled, "cancel_future", request_id=id).status_code == 204
    long = post(sampled, "asample", **{**body, "seq_id": 1000, "num_samples": 64, "sampling_params": {"stop": []}})
    assert post(sampled, "cancel_future", request_id=long.json()["request_id"]).status_code == 204
    ended = post(sampled, "retrieve_future", request_id=long.json()["request_id"]).json()
    assert ended == {"error": "the request was cancelled", "category": "user"}
    deadline = time.monotonic() + 20
    while sampled.server.sampling._engine.requests_in_flight and time.monotonic() < deadline:
        time.sleep(0.05)
    assert sampled.server.sampling._engine.requests_in_flight == 0
    answer = post(sampled, "join_sampling_session", sampling_session_id=client._sampling_session_id)
    assert answer.json()["client_counter"] > 0


def test_a_session_that_ended_gets_no_sampling_client(sdk: Any, sampled: Any) -> None:
    client = sdk.create_sampling_client(base_model="whet/tiny").result()
    session = client._sampling_session_id.split(":")[0]
    assert post(sampled, f"sessions/{session}/finish", reason={"type": "success"}).status_code == 204
    body = {"session_id": session, "sampling_session_seq_id": 5, "base_model": "whet/tiny"}
    refused = post(sampled, "create_sampling_session", **body)
    assert (refused.status_code, "has ended" in refused.text) == (422, True)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"num_samples": 0}, "num_samples"),
        ({"prompt": {"chunks": []}}, "it has 0 tokens"),
        ({"prompt": {"chunks": [{"type": "encoded_text", "tokens": [10**6]}]}}, "an id is not in"),
        ({"sampling_session_id": None}, "base_model"),
        ({"sampling_session_id": None, "base_model": "other"}, "this server has 'whet/tiny'"),
        ({"sampling_session_id": None, "model_path": "tinker://x/sampler_weights/none"}, "there is no state"),
        ({"sampling_session_id": "none"}, "there is no sampling session"),
        ({"record_stability_info": True}, "record_stability_info"),
        ({"target_prompt_logprobs": {"data": [1], "dtype": "int64", "shape": [1, 1]}}, r"shape \[7, K\]"),
    ],
)
def test_wrong_requests_are_named(sdk: Any, sampled: Any, change: dict[str, Any], said: str) -> None:
    client = sdk.create_sampling_client(base_model="whet/tiny").result()
    body = {
        "sampling_session_id": client._sampling_session_id,
        "prompt": {"chunks": [{"type": "encoded_text", "tokens": IDS}]},
        "sampling_params": {"max_tokens": 3},
    }
    answer = post(sampled, "asample", **{**body, **change})
    assert answer.status_code in (404, 422)
    with pytest.raises(AssertionError, match=said):
        raise AssertionError(answer.text)


@pytest.mark.parametrize(
    ("params", "more", "said"),
    [
        ({"max_tokens": 0}, {}, "max_tokens"),
        ({"max_tokens": 10**6}, {}, "exceed the context"),
        ({"temperature": -1}, {}, "temperature must be"),
        ({"max_tokens": 1}, {"topk_prompt_logprobs": 500}, "from 0 to 128"),
        ({"max_tokens": 1}, {"include_prompt_logprobs": True, "prompt_logprobs_last_n": 8}, "from 1 to 7"),
    ],
)
def test_what_the_engine_refuses_the_client_is_told(
    sdk: Any, params: dict[str, Any], more: dict[str, Any], said: str
) -> None:
    client = sdk.create_sampling_client(base_model="whet/tiny").result()
    with pytest.raises(tinker.RequestFailedError, match=said):
        client.sample(prompt(), 1, types.SamplingParams(**params), **more).result()


def test_adapters_give_way_to_others(sampled: Any, sdk: Any, serving: Any) -> None:
    trainer = sdk.create_lora_training_client(base_model="whet/tiny", rank=4, seed=0)
    clients = [
        sdk.create_sampling_client(model_path=trainer.save_weights_for_sampler(f"w{n}").result().path) for n in range(3)
    ]
    sampling = sampled.server.sampling
    object.__setattr__(sampling._limits, "adapter_bytes", 1)
    answers = [client.compute_logprobs(prompt()).result() for client in clients * 2]
    assert answers == [answers[0]] * 6
    assert len(sampling._adapters) == 1
    assert len(sampling._engine.adapters) == 1


def test_two_saves_of_one_number_disturb_no_other(sdk: Any, sampled: Any) -> None:
    """Both want to be the sampling session of this number: one is, the other fails, and the log continues."""
    trainers = [sdk.create_lora_training_client(base_model="whet/tiny", rank=2, seed=i).result() for i in range(2)]
    http = httpx.Client(base_url=sampled.url, headers={"X-API-Key": sampled.key}, timeout=60)
    body = {"seq_id": 1, "sampling_session_seq_id": 77}
    sent = [
        http.post("/api/v1/save_weights_for_sampler", json={"model_id": trainer.model_id, **body})
        for trainer in trainers
    ]
    answers = []

    def wanted(response: Any) -> Any:
        return {"request_id": response.json()["request_id"]}

    for response in sent:
        while (answer := http.post("/api/v1/retrieve_future", json=wanted(response)).json()).get("type") == "try_again":
            pass
        answers.append(answer)
    assert sum("sampling_session_id" in answer for answer in answers) == 1
    assert sum("of other weights" in answer.get("error", "") for answer in answers) == 1
    for trainer in trainers:
        assert http.post("/api/v1/unload_model", json={"model_id": trainer.model_id}).status_code == 200
