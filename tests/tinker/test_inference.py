"""Saved weights through the clients of OpenAI and Anthropic, with the training API's keys."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import anthropic
import httpx
import openai
import pytest
import tinker
from tinker import types

HELLO: Any = [{"role": "user", "content": "hello"}]
SENTENCE = [5, 17, 33, 90, 120, 44, 9, 61, 5, 17, 33]


@pytest.fixture
def sampled(serving: Any, tmp_path: Path) -> Iterator[Any]:
    from whet.tinker.opening import load_engine

    with serving.serving(tmp_path / "data", sampled=load_engine("whet/tiny")) as served:
        yield served


@pytest.fixture
def saved(sampled: Any, datum: Callable[..., Any]) -> Iterator[str]:
    """The path of weights that have learned a sentence."""
    client = tinker.ServiceClient(base_url=sampled.url, api_key=sampled.key)
    trainer = client.create_lora_training_client(base_model="whet/tiny", rank=8, seed=0).result()
    for _ in range(15):
        trainer.forward_backward(
            [datum(SENTENCE[:-1], target_tokens=SENTENCE[1:], weights=[1.0] * 10)], "cross_entropy"
        )
        trainer.optim_step(types.AdamParams(learning_rate=1e-2))
    yield trainer.save_weights_for_sampler("mine").result().path
    client.close("success").result()


@pytest.fixture
def eve(sampled: Any) -> str:
    """The key of another user."""
    from whet.hub.domain.accounts import DAY_S, add_account, issue
    from whet.hub.policy import Scope

    with sampled.server.hub.database.write() as session:
        now = sampled.server.hub.clock()
        token = issue(session, add_account(session, "eve", "user", "", now), "one", Scope.PUSH, DAY_S, now)[1]
    return f"tml-{token}"


def openai_client(served: Any, key: str | None = None) -> Any:
    return openai.OpenAI(base_url=f"{served.url}/oai/api/v1", api_key=key or served.key, max_retries=0)


def test_openai_client_samples_saved_weights_and_the_base(sampled: Any, saved: str) -> None:
    client = openai_client(sampled)
    prompt: Any = SENTENCE[:4]
    tokenizer = sampled.server.sampling.policy.renderer
    learned = client.completions.create(model=saved, prompt=tokenizer.decode(prompt), max_tokens=6, temperature=0)
    base = client.completions.create(model="whet/tiny", prompt=tokenizer.decode(prompt), max_tokens=6, temperature=0)
    assert learned.choices[0].text != base.choices[0].text
    with_base = client.completions.create(
        model=f"whet/tiny;{saved}", prompt=tokenizer.decode(prompt), max_tokens=6, temperature=0
    )
    assert with_base.choices[0].text == learned.choices[0].text
    whole = client.chat.completions.create(model=saved, messages=HELLO, max_tokens=8, seed=3)
    stream = client.chat.completions.create(model=saved, messages=HELLO, max_tokens=8, seed=3, stream=True)
    assert "".join(chunk.choices[0].delta.content or "" for chunk in stream) == whole.choices[0].message.content
    assert whole.usage.completion_tokens == 8
    assert [model.id for model in client.models.list()] == ["whet/tiny", saved]


def test_anthropic_client_samples_the_same(sampled: Any, saved: str) -> None:
    client = anthropic.Anthropic(base_url=f"{sampled.url}/anthropic/api", api_key=sampled.key, max_retries=0)
    answer = client.messages.create(model=saved, messages=HELLO, max_tokens=8, extra_body={"temperature": 0})
    chat = openai_client(sampled).chat.completions.create(model=saved, messages=HELLO, max_tokens=8, temperature=0)
    assert answer.content[0].text == chat.choices[0].message.content


def test_keys_and_models_of_others_are_refused(sampled: Any, saved: str, eve: str) -> None:
    with pytest.raises(openai.AuthenticationError, match="not known"):
        openai_client(sampled, "tml-wrong").chat.completions.create(model=saved, messages=HELLO)
    other = openai_client(sampled, eve)
    with pytest.raises(openai.NotFoundError, match="there is no state"):
        other.chat.completions.create(model=saved, messages=HELLO, max_tokens=4)
    assert [model.id for model in other.models.list()] == ["whet/tiny"]
    with pytest.raises(openai.NotFoundError, match=f"there are: whet/tiny, {saved}"):
        openai_client(sampled).chat.completions.create(model="other/model", messages=HELLO)
    answer = httpx.get(f"{sampled.url}/oai/api/metrics", headers={"authorization": f"Bearer {sampled.key}"})
    assert answer.status_code == 404


def test_a_client_that_leaves_ends_its_answer(sampled: Any) -> None:
    with openai_client(sampled).chat.completions.create(
        model="whet/tiny", messages=HELLO, max_tokens=400, extra_body={"ignore_eos": True}, stream=True
    ) as stream:
        next(iter(stream))
    engine = sampled.server.sampling.policy.engine
    while engine.requests_in_flight:
        assert httpx.get(f"{sampled.url}/oai/api/health").status_code == 200
    assert not +sampled.server.sampling._waiting
