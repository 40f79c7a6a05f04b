"""Adapters of a served model: named, loaded, unloaded, refused. The model is whet/tiny, the adapters are PEFT's."""

import asyncio
import json
import shutil

import httpx
import pytest

pytest.importorskip("peft")

import torch
from peft import LoraConfig, get_peft_model
from transformers import AutoModelForCausalLM

from whet.errors import ConfigError
from whet.gateway.adapters import Adapters, check_adapter, read_adapters
from whet.gateway.app import Gateway
from whet.inference.loading import load_policy
from whet.models.tiny import path as tiny


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Two adapters of whet/tiny, `one` and `two`."""
    folder = tmp_path_factory.mktemp("adapters")
    for rank, name in enumerate(("one", "two"), start=3):
        torch.manual_seed(rank)
        model = AutoModelForCausalLM.from_pretrained(tiny())
        config = LoraConfig(r=rank, target_modules="all-linear", task_type="CAUSAL_LM", init_lora_weights=False)
        get_peft_model(model, config).save_pretrained(folder / name)
    return folder


@pytest.fixture(scope="module")
def policy():
    return load_policy("whet/tiny")


@pytest.fixture
def said_by(folder):
    """What a model that has an adapter merged into it says, by the adapter's name."""

    def say(name):
        merged = Served(load_policy(str(folder / name)))
        return asyncio.run(merged.ask("base"))

    return say


class Served:
    """A gateway for `base`, without adapters at first."""

    def __init__(self, policy, folder=None, api_key=None):
        self.engine = policy.engine
        for name in self.engine.adapters:
            asyncio.run(self.engine.unload_adapter(name))
        self.gateway = Gateway({"base": policy.client}, api_key=api_key)
        self.adapters = self.gateway.adapters = Adapters(self.gateway.models, "base", policy, folder)

    async def post(self, path, body, headers=None):
        transport = httpx.ASGITransport(app=self.gateway.app)
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
            return await client.post(path, json=body, headers=headers)

    async def ask(self, model, tokens=24):
        messages = [{"role": "user", "content": "Reverse the text: abc"}]
        body = {"model": model, "messages": messages, "temperature": 0, "max_tokens": tokens}
        answer = (await self.post("/v1/chat/completions", body)).json()
        return answer["choices"][0]["message"]["content"] if "choices" in answer else answer["error"]["code"]


def test_each_adapter_is_a_model_of_its_own_on_one_engine(policy, folder, said_by):
    served = Served(policy)
    before = asyncio.run(served.ask("base"))

    async def run():
        for name in ("one", "two"):
            await served.adapters.load(name, folder / name)
        return await asyncio.gather(*(served.ask(model) for model in ("base", "base:one", "base:two", "base:other")))

    answers = asyncio.run(run())
    assert answers == [before, said_by("one"), said_by("two"), "model_not_found"]
    assert len(set(answers)) == 4
    assert served.engine.adapters == {"one": 0, "two": 0}


def test_requests_load_and_unload_adapters_of_the_folder(policy, folder, said_by):
    served = Served(policy, folder)

    async def run():
        loaded = await served.post("/v1/load_lora_adapter", {"lora_name": "mine", "lora_path": "one"})
        said = await served.ask("base:mine")
        await served.post("/v1/unload_lora_adapter", {"lora_name": "mine"})
        return loaded.json(), said, await served.ask("base:mine"), served.engine.adapters

    assert asyncio.run(run()) == ({"status": "ok", "model": "base:mine"}, said_by("one"), "model_not_found", {})


@pytest.mark.parametrize("path", ["../elsewhere", "/etc", "one/../../elsewhere"])
def test_a_request_reaches_no_other_folder(policy, folder, path):
    served = Served(policy, folder)
    answer = asyncio.run(served.post("/v1/load_lora_adapter", {"lora_name": "mine", "lora_path": path}))
    assert (answer.status_code, served.engine.adapters) == (403, {})


def test_requests_load_none_where_no_folder_was_named_and_none_without_the_key(policy, folder):
    body = {"lora_name": "mine", "lora_path": "one"}
    closed = asyncio.run(Served(policy).post("/v1/load_lora_adapter", body))
    keyed = asyncio.run(Served(policy, folder, api_key="sesame").post("/v1/load_lora_adapter", body))
    assert (closed.status_code, keyed.status_code) == (403, 401)


@pytest.mark.parametrize(
    ("path", "body", "words"),
    [
        ("/v1/load_lora_adapter", {"lora_name": "mine"}, "lora_path"),
        ("/v1/load_lora_adapter", {"lora_name": "a:b", "lora_path": "one"}, "without a colon"),
        ("/v1/load_lora_adapter", {"lora_name": "mine", "lora_path": "three"}, "not the directory of an adapter"),
        ("/v1/load_lora_adapter", {"lora_name": "mine", "lora_path": "torn"}, "use_dora"),
        ("/v1/unload_lora_adapter", {"lora_name": "other"}, "no adapter 'other' here; there are: none"),
    ],
)
def test_a_mistake_is_a_bad_request_in_words_and_takes_no_name(policy, folder, tmp_path, path, body, words):
    shutil.copytree(folder, tmp_path / "adapters")
    shutil.copytree(folder / "one", tmp_path / "adapters" / "torn")
    config = json.loads((folder / "one" / "adapter_config.json").read_text())
    (tmp_path / "adapters" / "torn" / "adapter_config.json").write_text(json.dumps({**config, "use_dora": True}))
    served = Served(policy, tmp_path / "adapters")

    async def run():
        return await served.post(path, body), await served.adapters.load("mine", folder / "one")

    answer, _ = asyncio.run(run())
    assert answer.status_code == 400
    assert words in answer.json()["error"]["message"]


def test_of_two_that_want_a_name_at_once_one_gets_it(policy, folder):
    served = Served(policy)

    async def run():
        loads = [served.adapters.load("mine", folder / name) for name in ("one", "two")]
        return await asyncio.gather(*loads, return_exceptions=True)

    first, second = asyncio.run(run())
    assert first is None
    assert isinstance(second, ConfigError)
    assert "served already" in str(second)


def test_an_adapter_that_is_unloaded_answers_what_it_was_asked_first(policy, folder):
    served = Served(policy)

    async def run():
        await served.adapters.load("mine", folder / "one")
        whole = await served.ask("base:mine", 60)
        steps = served.engine.stats.decode_steps
        asking = asyncio.ensure_future(served.ask("base:mine", 60))
        while served.engine.stats.decode_steps < steps + 5:
            await asyncio.sleep(0)
        await served.adapters.unload("mine")
        assert not asking.done()
        return whole, await asking, await served.ask("base:mine")

    whole, late, after = asyncio.run(run())
    assert late == whole
    assert after == "model_not_found"


def test_adapters_on_the_command_line():
    assert {name: str(path) for name, path in read_adapters(["a=x/y", "b=z"]).items()} == {"a": "x/y", "b": "z"}
    for wrong in (["a"], ["=x"], ["a="], ["a=x", "a=y"]):
        with pytest.raises(ConfigError, match="--adapter"):
            read_adapters(wrong)


def test_an_adapter_of_another_model_is_refused(tmp_path, folder):
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(ConfigError, match=rf"is an adapter of .*, and {tmp_path} is served"):
        check_adapter(folder / "one", tmp_path)
    with pytest.raises(ConfigError, match=r"not the directory of an adapter"):
        check_adapter(tmp_path, tmp_path)
