"""An access of one's own: which models a key may use, and what is counted for it."""

import anthropic
import openai
import pytest

from whet.gateway.app import Gateway
from whet.gateway.wire import RequestError

HI = [{"role": "user", "content": "hi"}]


class Visitor:
    def __init__(self, name, models, counted):
        self.name, self.own, self.counted = name, models, counted

    async def models(self):
        return list(self.own)

    def find(self, model):
        return self.own.get(model)

    def answered(self, model, responses):
        self.counted.append((self.name, model, len(responses)))


class ByKey:
    """A key is the name of a visitor; `counted` has what was answered."""

    def __init__(self, models):
        self.models, self.counted = models, []

    async def visitor(self, key):
        if key not in self.models:
            raise RequestError("who are you?", status=401)
        return Visitor(key, self.models[key], self.counted)


@pytest.fixture
def access(model):
    return ByKey({"ann": {"scripted": model, "other": model}, "bob": {"other": model}})


@pytest.fixture
def gateway(access):
    return Gateway(access=access)


def test_each_key_has_models_of_its_own(address):
    def models(key):
        with openai.OpenAI(base_url=f"{address}/v1", api_key=key, max_retries=0) as client:
            return [one.id for one in client.models.list()]

    assert (models("ann"), models("bob")) == (["scripted", "other"], ["other"])
    with pytest.raises(openai.AuthenticationError):
        models("eve")
    with anthropic.Anthropic(base_url=address, api_key="bob", max_retries=0) as claude:
        with pytest.raises(anthropic.NotFoundError):
            claude.messages.create(model="scripted", max_tokens=9, messages=HI)
        assert claude.messages.create(model="other", max_tokens=9, messages=HI).content[0].text == "hello"


def test_what_was_answered_is_counted_once_streamed_or_not(address, access, model):
    model.answers = ["a", "b", "c", "d"]
    with openai.OpenAI(base_url=f"{address}/v1", api_key="ann", max_retries=0) as client:
        create = client.chat.completions.create
        create(model="scripted", messages=HI)
        create(model="scripted", messages=HI, n=2)
        assert list(create(model="other", messages=HI, stream=True))
        for wrong in ({"model": "none"}, {"model": "scripted", "temperature": -1}):
            with pytest.raises(openai.APIStatusError):
                create(messages=HI, **wrong)
    assert access.counted == [("ann", "scripted", 1), ("ann", "scripted", 2), ("ann", "other", 1)]
