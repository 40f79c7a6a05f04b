"""`/inference/v1/generate`: token ids in and out; driven by `renderers`, which trainers of verifiers 0.4 send with."""

import asyncio
import json
import os

import httpx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

pytest.importorskip("starlette")

from whet import ScriptedClient
from whet.gateway.app import GENERATE, Gateway
from whet.inference.loading import load_policy

pytestmark = [pytest.mark.timeout(0)] if "WHET_FUZZ_EXAMPLES" in os.environ else []
EXAMPLES = int(os.environ.get("WHET_FUZZ_EXAMPLES", "30"))


@pytest.fixture(scope="module")
def runner():
    with asyncio.Runner() as runner:
        yield runner


@pytest.fixture(scope="module")
def policy():
    return load_policy("whet/tiny", threads=1)


@pytest.fixture(scope="module")
def web(policy):
    gateway = Gateway({"tiny": policy.client, "scripted": ScriptedClient(["x"])})
    transport = httpx.ASGITransport(gateway.app, raise_app_exceptions=False)
    return httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1")


def request(policy, **changes):
    prompt = policy.renderer.render([{"role": "user", "content": "Reverse the text: abc"}], None)
    body = {"model": "tiny", "token_ids": prompt, "sampling_params": {"max_tokens": 40, "temperature": 0}}
    return {**body, **changes}


def test_ids_and_logprobs_are_what_the_engine_samples(runner, policy, web):
    answer = runner.run(web.post(GENERATE, json=request(policy)))
    (choice,) = answer.json()["choices"]
    chat = [{"role": "user", "content": "Reverse the text: abc"}]
    args = {"max_tokens": 40, "temperature": 0}
    tokens = runner.run(policy.client.get_response(chat, "tiny", args)).message.tokens
    assert choice["token_ids"] == tokens.completion_ids
    assert [token["logprob"] for token in choice["logprobs"]["content"]] == pytest.approx(tokens.completion_logprobs)
    assert choice["finish_reason"] == "stop"


def test_the_client_of_verifiers_reads_the_answer(runner, policy, web):
    openai, client = pytest.importorskip("openai"), pytest.importorskip("renderers.client")
    from renderers import create_renderer

    sdk = openai.AsyncOpenAI(base_url="http://127.0.0.1/v1", api_key="none", http_client=web)
    renderer = create_renderer(policy.tokenizer)
    messages = [{"role": "user", "content": "Reverse the text: abc"}]
    sampling = {"max_tokens": 40, "temperature": 0.0}
    answer = runner.run(
        client.generate(client=sdk, renderer=renderer, messages=messages, model="tiny", sampling_params=sampling)
    )
    sample = runner.run(web.post(GENERATE, json=request(policy, token_ids=answer["prompt_ids"]))).json()["choices"][0]
    assert answer["completion_ids"] == sample["token_ids"]
    assert len(answer["completion_logprobs"]) == len(sample["token_ids"])
    assert answer["finish_reason"] == "stop"


def test_choices_are_drawn_each_and_a_length_is_kept(runner, policy, web):
    params = {"max_tokens": 2, "n": 3, "seed": 1}
    choices = runner.run(web.post(GENERATE, json=request(policy, sampling_params=params))).json()["choices"]
    assert [(choice["index"], len(choice["token_ids"])) for choice in choices] == [(0, 2), (1, 2), (2, 2)]
    assert {choice["finish_reason"] for choice in choices} == {"length"}


@pytest.mark.parametrize(
    ("changes", "status", "words"),
    [
        ({"token_ids": []}, 400, "token_ids"),
        ({"token_ids": [-1]}, 400, "token_ids.0"),
        ({"token_ids": ["1"]}, 400, "token_ids.0"),
        ({"token_ids": [2**31 - 1]}, 400, "outside the vocabulary"),
        ({"token_ids": [1] * 90_000}, 400, "prompt is too long"),
        ({"stream": True}, 400, "stream is not possible here"),
        ({"features": {"a": 1}}, 400, "features is not possible here"),
        ({"model": "nobody"}, 404, "there is no model"),
        ({"model": "scripted"}, 400, "no engine here that takes token ids"),
        ({"sampling_params": 3}, 400, "sampling_params"),
        ({"sampling_params": {"max_tokens": 0}}, 400, "max_tokens"),
        ({"sampling_params": {"presence_penalty": 1.0}}, 400, "sampling_params.presence_penalty is not possible here"),
        ({"sampling_params": {"logprobs": 5}}, 400, "logprobs"),
        ({"sampling_params": {"stop_token_ids": [1] * 5000}}, 400, "stop_token_ids"),
    ],
)
def test_bad_input_is_refused(runner, policy, web, changes, status, words):
    answer = runner.run(web.post(GENERATE, json=request(policy, **changes)))
    assert (answer.status_code, words in answer.json()["error"]["message"]) == (status, True)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=12,
)
PARAMS = "n temperature top_p top_k min_p stop stop_token_ids seed logprobs presence_penalty logit_bias min_tokens"
FIELDS = "model token_ids sampling_params stream features content_parts cache_salt priority"
IDS = st.lists(st.integers(-2, 2000) | JSON, max_size=6)


@settings(max_examples=EXAMPLES, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    params=st.dictionaries(st.sampled_from(PARAMS.split()), JSON | st.integers(-2, 9) | IDS, max_size=3),
    changes=st.dictionaries(st.sampled_from(FIELDS.split()), JSON | IDS, max_size=1),
    ids=st.lists(st.integers(0, 200), min_size=1, max_size=4) | IDS,
    whole=st.none() | JSON,
)
def test_whatever_is_sent_is_answered_or_refused(runner, web, params, changes, ids, whole):
    body = {"model": "tiny", "token_ids": ids, "sampling_params": {"max_tokens": 1, **params}, **changes}
    payload = json.dumps(body if whole is None else whole).encode()
    answer = runner.run(web.post(GENERATE, content=payload, headers={"content-type": "application/json"}))
    assert answer.status_code in (200, 400, 404, 413)
    if answer.status_code != 200:
        assert answer.json()["error"]["message"]
