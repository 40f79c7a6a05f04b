"""Whatever a program sends, the gateway answers with an error of its interface, never with one of its own."""

import asyncio
import json
import os
from collections import Counter

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

pytest.importorskip("starlette")

from whet import ScriptedClient
from whet.gateway.app import INTERFACES, Gateway

pytestmark = [pytest.mark.timeout(0)] if "WHET_FUZZ_EXAMPLES" in os.environ else []
EXAMPLES = int(os.environ.get("WHET_FUZZ_EXAMPLES", "30"))  # of each interface and test
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=12,
)
FIELDS = (
    "model messages role content type text tools tool_calls tool_call_id function name arguments "
    "parameters input prompt system instructions max_tokens max_output_tokens temperature top_p "
    "stop stream n tool_choice response_format image_url source id call_id output summary "
    "tool_use_id input_schema stop_sequences seed logprobs stream_options include_usage"
)
KEYS = st.sampled_from(FIELDS.split())
VALUES = JSON | st.sampled_from(
    ["scripted", "user", "assistant", "tool", "text", "function", "message", "function_call", "tool_result", "image"]
)
NESTED = st.recursive(
    VALUES,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=6),
    max_leaves=16,
)
BODIES = st.dictionaries(KEYS, NESTED, max_size=8).map(lambda body: {"model": "scripted", "max_tokens": 5, **body})
VALID = {
    "model": "scripted",
    "max_tokens": 5,
    "prompt": "x",
    "input": "x",
    "messages": [{"role": "user", "content": [{"type": "text", "text": "x"}]}],
    "tools": [{"type": "function", "name": "f", "function": {"name": "f"}}],
    "stream": True,
    "stream_options": {"include_usage": True},
    "temperature": 1,
}
"""Right for the interfaces of OpenAI; fields that one of them does not have are left alone."""


def right(path):
    """A request that `path` streams an answer to."""
    return {**VALID, "tools": [{"name": "f"}]} if path == "/v1/messages" else VALID


CHANGES = st.dictionaries(st.sampled_from(sorted([*VALID, *FIELDS.split()])), NESTED, min_size=1, max_size=3)
STATUSES: Counter[tuple[str, bool, int]] = Counter()  # by interface, whether it was a stream, and status


GATEWAY = Gateway({"scripted": ScriptedClient(lambda prompt: "hello")})
RUNNER = asyncio.Runner()


@pytest.fixture(scope="module", autouse=True)
def said_how_many(request):
    """A run at scale says what it did."""
    with RUNNER:
        yield
    if "WHET_FUZZ_EXAMPLES" in os.environ:
        manager = request.config.pluginmanager.getplugin("capturemanager")
        with manager.global_and_fixture_disabled():
            print(f"\n{sum(STATUSES.values())} requests")
            for (path, streamed, status), count in sorted(STATUSES.items()):
                print(f"  {path:22} {'stream' if streamed else 'whole':6} {status} {count:8}")


async def post(gateway, path, payload):
    """(status, body) of a request, through the ASGI interface itself."""
    sent, events = [], [{"type": "http.request", "body": payload, "more_body": False}]

    async def receive():
        if events:
            return events.pop(0)
        await asyncio.Event().wait()

    async def send(message):
        sent.append(message)

    scope = {
        "type": "http", "asgi": {"version": "3.0"}, "http_version": "1.1", "method": "POST", "path": path,
        "raw_path": path.encode(), "root_path": "", "scheme": "http", "query_string": b"",
        "headers": [(b"content-type", b"application/json")], "client": ("127.0.0.1", 1), "server": ("127.0.0.1", 80),
    }  # fmt: skip
    await gateway.app(scope, receive, send)
    return sent[0]["status"], b"".join(message.get("body", b"") for message in sent[1:])


LAST = {
    "/v1/chat/completions": b"data: [DONE]",
    "/v1/completions": b"data: [DONE]",
    "/v1/responses": b"event: response.completed",
    "/v1/messages": b"event: message_stop",
}
"""What the end of a stream begins with."""


def check(path, payload):
    status, body = RUNNER.run(post(GATEWAY, path, payload))
    streamed = body.startswith((b"data:", b"event:"))
    STATUSES[path, streamed, status] += 1
    assert status in (200, 400, 401, 404, 413)
    if streamed:
        assert status == 200
        assert body.strip().split(b"\n\n")[-1].startswith(LAST[path])
    elif status != 200:
        error = json.loads(body)["error"]
        assert error["message"]
        assert error["type"]
        assert ("type" in json.loads(body)) == (path == "/v1/messages")
    return status, streamed


@pytest.mark.parametrize("path", INTERFACES)
def test_a_request_that_is_right_is_streamed(path):
    assert check(path, json.dumps(right(path)).encode()) == (200, True)


@pytest.mark.parametrize("path", INTERFACES)
@settings(max_examples=EXAMPLES, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(changes=CHANGES, left_out=st.sets(st.sampled_from(sorted(VALID)), max_size=1))
def test_a_request_that_is_nearly_right_is_answered_or_refused(path, changes, left_out):
    body = {key: value for key, value in {**right(path), **changes}.items() if key not in left_out}
    check(path, json.dumps(body).encode())


@pytest.mark.parametrize("path", INTERFACES)
@settings(max_examples=EXAMPLES, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(body=BODIES | JSON)
def test_any_json_is_answered_or_refused_in_the_interface_s_own_form(path, body):
    check(path, json.dumps(body).encode())


@pytest.mark.parametrize("path", INTERFACES)
@pytest.mark.parametrize(
    "payload",
    [b"", b"{", b"\xff\xfe", b"[" * 100_000, b'{"model": NaN}', b'{"a": ' + b"9" * 10_000 + b"}", b'"\\ud800"'],
    ids=["empty", "torn", "no text", "deep", "NaN", "a long number", "half a character"],
)
def test_what_is_no_json_is_refused(path, payload):
    check(path, payload)


@pytest.mark.parametrize("path", INTERFACES)
@pytest.mark.parametrize("stream", [False, True])
def test_half_a_character_that_the_model_wrote_is_sent_as_json_has_it(path, stream):
    gateway = Gateway({"scripted": ScriptedClient(lambda prompt: "a\ud800b")})
    body = {"model": "scripted", "max_tokens": 5, "prompt": "x", "input": "x", "stream": stream}
    body["messages"] = [{"role": "user", "content": "x"}]
    status, answer = asyncio.run(post(gateway, path, json.dumps(body).encode()))
    assert status == 200
    assert rb"a\ud800b" in answer
