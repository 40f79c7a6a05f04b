"""Keys, failures, clients that leave, figures: what the gateway does apart from answering."""

import asyncio

import httpx
import pytest

from whet import ScriptedClient
from whet.errors import ConfigError, EndpointDownError, EndpointError, ModelError, OverlongPromptError
from whet.gateway.app import Gateway

JSON = [(b"content-type", b"application/json")]
BODY = {"model": "scripted", "messages": [{"role": "user", "content": "hi"}]}


def post(gateway, path="/v1/chat/completions", body=BODY, headers=None):
    async def run():
        transport = httpx.ASGITransport(app=gateway.app)
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
            return await client.post(path, json=body, headers=headers)

    return asyncio.run(run())


def get(gateway, path):
    async def run():
        transport = httpx.ASGITransport(app=gateway.app)
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
            return await client.get(path)

    return asyncio.run(run())


@pytest.mark.parametrize("headers", [{"Authorization": "Bearer sesame"}, {"x-api-key": "sesame"}])
def test_with_a_key_only_requests_that_carry_it_are_answered(model, headers):
    gateway = Gateway({"scripted": model}, api_key="sesame")
    assert post(gateway, headers=headers).status_code == 200
    assert post(gateway).status_code == 401
    assert post(gateway, headers={"Authorization": "Bearer other"}).status_code == 401
    assert len(model.asked) == 1


@pytest.mark.parametrize(
    ("failure", "status", "code"),
    [
        (OverlongPromptError("9 tokens, and the context holds 8"), 400, "context_length_exceeded"),
        (ConfigError("sampling argument 'top_k' ..."), 400, None),
        (ModelError("no answer"), 502, None),
        (EndpointError("no key"), 503, None),
        (EndpointDownError("no route"), 503, None),
        (ZeroDivisionError("a mistake of ours"), 502, None),
    ],
)
def test_what_fails_behind_the_gateway_has_a_status_that_says_whose_fault_it_is(failure, status, code):
    gateway = Gateway({"scripted": ScriptedClient([failure])})
    gateway.models["scripted"].get_response = _raising(failure)
    answer = post(gateway)
    expected = 500 if isinstance(failure, ZeroDivisionError) else status
    assert answer.status_code == expected
    assert answer.json()["error"]["code"] == code


def _raising(failure):
    async def get_response(*args, **kwargs):
        raise failure

    return get_response


def test_a_mistake_of_the_gateway_does_not_show_its_insides():
    gateway = Gateway({"scripted": ScriptedClient(["x"])})
    gateway.models["scripted"].get_response = _raising(ZeroDivisionError("a secret path"))
    assert "secret" not in post(gateway).text


def test_a_body_that_is_too_long_is_refused(gateway, monkeypatch):
    monkeypatch.setattr("whet.gateway.bodies.MAX_BODY_BYTES", 10)
    assert post(gateway).status_code == 413


def test_a_path_that_is_none_is_an_error_of_the_interface(gateway):
    assert post(gateway, "/v1/other").json()["error"]["type"] == "not_found_error"
    assert post(gateway, "/other/messages").json()["type"] == "error"
    assert get(gateway, "/v1/messages").status_code == 405


def test_the_figures_count_requests_and_tokens(gateway):
    post(gateway)
    post(gateway, body={})
    text = get(gateway, "/metrics").text
    assert 'whet_requests_total{interface="/v1/chat/completions",status="200"} 1.0' in text
    assert 'whet_requests_total{interface="/v1/chat/completions",status="400"} 1.0' in text
    assert "whet_requests_in_flight 0.0" in text


def test_health_says_no_more_than_that_it_is_well(gateway):
    assert get(gateway, "/health").json() == {"status": "ok"}


def test_with_a_key_the_models_are_listed_for_who_has_it(model):
    assert get(Gateway({"scripted": model}, api_key="sesame"), "/v1/models").status_code == 401


def test_a_request_whose_client_has_gone_is_cancelled():
    begun, ended = asyncio.Event(), []

    async def never(prompt):
        begun.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            ended.append("cancelled")
            raise

    async def run():
        gateway = Gateway({"scripted": ScriptedClient(never)})
        payload = httpx.Request("POST", "http://x", json=BODY).content
        events = asyncio.Queue()
        events.put_nowait({"type": "http.request", "body": payload, "more_body": False})
        scope = {
            "type": "http", "method": "POST", "path": "/v1/chat/completions", "raw_path": b"", "root_path": "",
            "scheme": "http", "query_string": b"", "headers": JSON, "http_version": "1.1", "asgi": {"version": "3.0"},
            "client": None, "server": None,
        }  # fmt: skip

        async def send(message):
            pass

        answering = asyncio.ensure_future(gateway.app(scope, events.get, send))
        await asyncio.wait_for(begun.wait(), 60)
        events.put_nowait({"type": "http.disconnect"})
        await asyncio.wait_for(answering, 60)

    asyncio.run(run())
    assert ended == ["cancelled"]
