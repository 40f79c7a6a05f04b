# ruff: noqa: E501  the wordings of servers are long
"""Behaviours of servers and providers that their documentation and issue trackers report, from a scripted server.

No rollout is lost to a field that an endpoint refuses, what a model did is an answer, and every error says what to do.
"""

import asyncio
import json
import logging
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread

import pytest

import whet
from whet.errors import ContentFilterError, EndpointDownError, EndpointError, ModelError
from whet.types import AssistantMessage, SystemMessage, Tool, ToolCall, ToolMessage, UserMessage

pytest.importorskip("openai")

FINE = {"role": "assistant", "content": "fine"}
IMAGE = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AA=="}}
CALL = ToolCall(id="call_1", name="look", arguments='{"at": 1}')
TOOL = Tool(
    "look", "Look.", {"type": "object", "properties": {"at": {"type": "integer"}}, "required": ["at"]}, strict=True
)


def completion(message=FINE, finish_reason="stop", **fields):
    return {
        "id": "c", "object": "chat.completion", "created": 5, "model": "m",
        "choices": [{"index": 0, "message": message, "finish_reason": finish_reason}],
        "usage": {"prompt_tokens": 100, "completion_tokens": 3, "total_tokens": 103}, **fields,
    }  # fmt: skip


class Provider:
    """Answers each request with what `behave(body)` returns: (status, body) or (status, body, headers)."""

    def __init__(self, behave):
        provider = self
        self.requests = []

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self):
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                provider.requests.append(body)
                status, answer, *headers = behave(body)
                payload = answer if isinstance(answer, bytes) else json.dumps(answer).encode()
                self.send_response(status)
                given = {"Content-Type": "application/json", **(headers[0] if headers else {})}
                for name, value in {**given, "Content-Length": str(len(payload))}.items():
                    self.send_header(name, value)
                self.end_headers()
                self.wfile.write(payload)

            def log_message(self, *args):
                pass

        self.http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.http.server_port}/v1"
        Thread(target=self.http.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()


@pytest.fixture
def provide():
    opened = []

    def open_one(behave):
        opened.append(Provider(behave))
        return opened[-1]

    yield open_one
    for provider in opened:
        provider.http.shutdown()
        provider.http.server_close()


def ask(provider, messages=None, sampling_args=None, tools=None, times=1, retries=0, state=None, **config):
    """The last of several answers of one client."""

    async def run():
        client = whet.OpenAIChatCompletionsClient(
            whet.ClientConfig(api_base_url=provider.url, max_retries=retries, **config)
        )
        try:
            for _ in range(times):
                response = await client.get_response(
                    messages or [UserMessage("hi")], "m", sampling_args or {}, tools, state=state
                )
            return response
        finally:
            await client.close()

    return asyncio.run(run())


def refusing(holds, status, body):
    """Refuses requests of which `holds` is true, and answers all others."""
    return lambda request: (status, body) if holds(request) else (200, completion())


def has(*path):
    """Whether a request has the field at a path; None stands for every item."""

    def look(value, rest):
        if not rest:
            return True
        if rest[0] is None:
            return any(look(item, rest[1:]) for item in value)
        return isinstance(value, dict) and rest[0] in value and look(value[rest[0]], rest[1:])

    return lambda request: look(request, path)


def content(test, role=None):
    return lambda request: any(
        test(message.get("content")) for message in request["messages"] if role in (None, message["role"])
    )


def pydantic_detail(*loc):
    return {"type": "extra_forbidden", "loc": ["body", *loc], "msg": "Extra inputs are not permitted", "input": "quota"}


def groq_property(name):
    return f"'messages.1' : for 'role:assistant' the following must be satisfied[('messages.1' : property '{name}' is unsupported)]"


THOUGHT = [UserMessage("q"), AssistantMessage("a", reasoning_content="hm"), UserMessage("q2")]
CALLED = [UserMessage("q"), AssistantMessage(None, tool_calls=[CALL]), ToolMessage("5", tool_call_id="call_1")]
SEEN = [
    UserMessage("q"),
    AssistantMessage("", tool_calls=[CALL]),
    ToolMessage([{"type": "text", "text": "here"}, IMAGE], tool_call_id="call_1"),
]
PARTS = [UserMessage([{"type": "text", "text": "a"}, {"type": "text", "text": "b"}])]
LIMIT = {"max_tokens": 32}
SAMPLING = {"temperature": 0.7, "top_p": 0.9, "seed": 1, "presence_penalty": 0.5, "extra_body": {"top_k": 5}}

FIELDS = {
    "Mistral, max_completion_tokens": (
        has("max_completion_tokens"), 422,
        {"object": "error", "message": {"detail": [pydantic_detail("max_completion_tokens")]}, "type": "invalid"},
        {"sampling_args": LIMIT},
    ),
    "Mistral through a proxy, an error as text in an error": (
        has("max_completion_tokens"), 422,
        {"message": json.dumps({"detail": [pydantic_detail("max_completion_tokens")]}), "code": "1000"},
        {"sampling_args": LIMIT},
    ),
    "vLLM of 2024, max_completion_tokens in a tuple": (
        has("max_completion_tokens"), 400,
        {"object": "error", "code": 400, "message": "[{'type': 'extra_forbidden', 'loc': ('body', "
         "'max_completion_tokens'), 'msg': 'Extra inputs are not permitted', 'input': 800}]"},
        {"sampling_args": LIMIT},
    ),
    "Gemini, an unknown name": (
        has("max_completion_tokens"), 400,
        [{"error": {"code": 400, "status": "INVALID_ARGUMENT", "message": "Invalid JSON payload received. Unknown name "
                    '"max_completion_tokens": Cannot find field.'}}],
        {"sampling_args": LIMIT},
    ),
    "Cohere, an unknown field": (
        has("max_completion_tokens"), 400,
        {"message": "unknown field: parameter 'max_completion_tokens' is not a valid field"}, {"sampling_args": LIMIT},
    ),
    "Azure of 2024, an unrecognised argument": (
        has("max_completion_tokens"), 400,
        {"error": {"message": "Unrecognized request argument supplied: max_completion_tokens", "param": None}},
        {"sampling_args": LIMIT},
    ),
    "Bedrock, an extraneous key": (
        has("max_completion_tokens"), 400,
        {"message": "Malformed input request: #: extraneous key [max_completion_tokens] is not permitted"},
        {"sampling_args": LIMIT},
    ),
    "Groq, reasoning_content in the history": (
        has("messages", None, "reasoning_content"), 400, {"error": {"message": groq_property("reasoning_content")}},
        {"messages": THOUGHT},
    ),
    "Mistral, reasoning_content in the history": (
        has("messages", None, "reasoning_content"), 422,
        {"detail": [pydantic_detail("messages", 1, "assistant", "reasoning_content")]}, {"messages": THOUGHT},
    ),
    "Cerebras, reasoning_content in the history": (
        has("messages", None, "reasoning_content"), 400,
        {"message": "messages.1.assistant.reasoning_content: property 'messages.1.assistant.reasoning_content' is "
         "unsupported", "code": "wrong_api_format"}, {"messages": THOUGHT},
    ),
    "Fireworks, reasoning_content in the history": (
        has("messages", None, "reasoning_content"), 400,
        {"error": {"message": "Extra inputs are not permitted, field: 'messages[1].reasoning_content', value: 'hm'"}},
        {"messages": THOUGHT},
    ),
    "OpenAI's o-series, a temperature": (
        has("temperature"), 400,
        {"error": {"message": "Unsupported value: 'temperature' does not support 0.7 with this model. Only the default "
                   "(1) value is supported.", "param": "temperature", "code": "unsupported_value"}},
        {"sampling_args": SAMPLING},
    ),
    "OpenAI, top_k": (
        has("top_k"), 400, {"error": {"message": "Unknown parameter: 'top_k'.", "param": "top_k"}},
        {"sampling_args": SAMPLING},
    ),
    "xAI, a parameter in camel case": (
        has("presence_penalty"), 400,
        {"code": "Client specified an invalid argument", "error": "Model grok-4 does not support parameter presencePenalty."},
        {"sampling_args": SAMPLING},
    ),
    "Claude 4.5, temperature and top_p": (
        lambda request: "temperature" in request and "top_p" in request, 400,
        {"error": {"message": "`temperature` and `top_p` cannot both be specified for this model. Please use only one."}},
        {"sampling_args": SAMPLING},
    ),
    "Mistral, a seed": (
        has("seed"), 422, {"detail": [pydantic_detail("seed")]}, {"sampling_args": SAMPLING},
    ),
    "Together, an unexpected keyword": (
        has("top_k"), 400, {"error": {"message": "generate() got an unexpected keyword argument 'top_k'"}},
        {"sampling_args": SAMPLING},
    ),
    "Mistral, all of them": (
        lambda request: {"seed", "presence_penalty", "top_k"} & request.keys(), 422,
        {"detail": [pydantic_detail(name) for name in ("seed", "presence_penalty", "top_k")]},
        {"sampling_args": SAMPLING},
    ),
    "Ollama, content null": (
        content(lambda value: value is None), 400, {"error": {"message": "invalid message content type: <nil>"}},
        {"messages": CALLED},
    ),
    "OpenAI of 2024, content null": (
        content(lambda value: value is None), 400,
        {"error": {"message": "Invalid value for 'content': expected a string, got null.", "param": "messages.[1].content"}},
        {"messages": CALLED},
    ),
    "a FastAPI server, content null": (
        content(lambda value: value is None), 422,
        {"detail": [{"type": "string_type", "loc": ["body", "messages", 1, "content"], "msg": "Input should be a valid "
                     "string", "input": None}]}, {"messages": CALLED},
    ),
    "DeepSeek, content in parts": (
        content(lambda value: isinstance(value, list)), 422,
        {"error": {"message": "Failed to deserialize the JSON body into the target type: messages[0]: invalid type: "
                   "sequence, expected a string at line 1 column 90"}}, {"messages": PARTS},
    ),
    "Groq, content in parts": (
        content(lambda value: isinstance(value, list)), 400,
        {"error": {"message": "'messages.0' : for 'role:user' the following must be satisfied[('messages.0.content' : "
                   "value must be a string)]"}}, {"messages": PARTS},
    ),
    "OpenAI, an image from a tool": (
        content(lambda value: isinstance(value, list), "tool"), 400,
        {"error": {"message": "Invalid 'messages[2]'. Image URLs are only allowed for messages with role 'user', but "
                   "this message with role 'tool' contains an image URL."}}, {"messages": SEEN},
    ),
    "a vLLM recipe, an image from a tool": (
        content(lambda value: isinstance(value, list), "tool"), 400,
        {"error": "Images are supported in user messages only: images in 'tool' messages return a 400 error."},
        {"messages": SEEN},
    ),
    "Mistral, ids of calls": (
        lambda request: any(len(m.get("tool_call_id", "9" * 9)) != 9 for m in request["messages"]), 400,
        {"message": "Tool call id was call_1 but must be a-z, A-Z, 0-9, with a length of 9.", "code": "3280"},
        {"messages": CALLED},
    ),
    "Gemma, a system message": (
        lambda request: request["messages"][0]["role"] == "system", 400,
        [{"error": {"code": 400, "message": "Developer instruction is not enabled for models/gemma-3-27b-it"}}],
        {"messages": [SystemMessage("s"), UserMessage("u")]},
    ),
    "o1-mini, a system message": (
        lambda request: request["messages"][0]["role"] == "system", 400,
        {"error": {"message": "Unsupported value: 'messages[0].role' does not support 'system' with this model.",
                   "param": "messages[0].role"}}, {"messages": [SystemMessage("s"), UserMessage("u")]},
    ),
    "a template, a system message": (
        lambda request: request["messages"][0]["role"] == "system", 400,
        {"message": "System role not supported", "type": "BadRequestError"},
        {"messages": [SystemMessage("s"), UserMessage("u")]},
    ),
    "Claude, an empty text": (
        content(lambda value: value == ""), 400,
        {"error": {"message": "messages: text content blocks must be non-empty"}},
        {"messages": [UserMessage("q"), AssistantMessage(""), UserMessage("again")]},
    ),
    "Bedrock, a blank text": (
        content(lambda value: value == ""), 400,
        {"message": "The text field in the ContentBlock object at messages.1.content.0 is blank. Add text."},
        {"messages": [UserMessage("q"), AssistantMessage(""), UserMessage("again")]},
    ),
    "Mistral, neither content nor calls": (
        content(lambda value: value in ("", None), "assistant"), 400,
        {"message": "Assistant message must have either content or tool_calls, but not none."},
        {"messages": [UserMessage("q"), AssistantMessage(""), UserMessage("again")]},
    ),
    "a server without strict tools": (
        has("tools", None, "function", "strict"), 422,
        {"detail": [pydantic_detail("tools", 0, "function", "strict")]}, {"tools": [TOOL]},
    ),
    "Gemini, a key of a tool's schema": (
        has("tools", None, "function", "parameters", "additionalProperties"), 400,
        {"error": {"message": "Invalid JSON payload received. Unknown name \"additionalProperties\" at 'tools[0]."
                   "function_declarations[0].parameters': Cannot find field.", "code": 400}},
        {"tools": [Tool("look", "Look.", {"type": "object", "properties": {"additionalProperties": {"type": "string"}},
                                          "additionalProperties": False})]},
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", FIELDS.values(), ids=FIELDS.keys())
def test_a_request_is_sent_again_without_what_is_refused(provide, case, caplog):
    holds, status, body, request = case
    provider = provide(refusing(holds, status, body))
    with caplog.at_level(logging.WARNING):
        assert ask(provider, **request, times=3).message.content == "fine"
    refused = sum(map(bool, map(holds, provider.requests)))
    assert refused <= 3
    assert len(provider.requests) == 3 + refused  # learned by the first
    assert len([record for record in caplog.records if "endpoints.toml" in record.message]) == refused


def test_what_is_set_for_an_endpoint_is_never_sent(provide, tmp_path):
    from whet.clients.endpoints import read_endpoints
    from whet.clients.make import make_client

    provider = provide(lambda request: (200, completion()))
    (tmp_path / "endpoints.toml").write_text(
        f'[[endpoint]]\nendpoint_id = "x"\nmodel = "m"\nurl = "{provider.url}"\n'
        'fields = { max_completion_tokens = "max_tokens", reasoning_content = "" }\nforms = ["no_null_content"]\n'
    )

    async def run():
        client = make_client(read_endpoints(tmp_path / "endpoints.toml")["x"].client)
        await client.get_response([*THOUGHT, *CALLED], "m", LIMIT)
        await client.close()

    asyncio.run(run())
    (request,) = provider.requests
    assert request["max_tokens"] == 32
    assert "max_completion_tokens" not in request
    assert [message for message in request["messages"] if "reasoning_content" in message] == []
    assert request["messages"][4]["content"] == ""


def test_two_names_for_one_limit_that_are_both_refused_are_left_out(provide):
    def behave(request):
        name = next((name for name in ("max_tokens", "max_completion_tokens") if name in request), None)
        return (200, completion()) if name is None else (400, {"error": {"message": f"Unknown parameter: '{name}'."}})

    assert ask(provide(behave), sampling_args=LIMIT).message.content == "fine"


def test_a_value_out_of_range_is_not_left_out(provide):
    provider = provide(lambda request: (400, {"error": {"message": "temperature must be between 0 and 1, not 5"}}))
    with pytest.raises(ModelError, match=r"between 0 and 1.*endpoints\.toml"):
        ask(provider, sampling_args={"temperature": 5})
    assert len(provider.requests) == 1


def test_the_name_of_a_users_own_field_is_kept(provide):
    """A property called like a refused key of the schema is the tool's, and stays."""
    case = FIELDS["Gemini, a key of a tool's schema"]
    provider = provide(refusing(*case[:3]))
    ask(provider, **case[3])
    (parameters,) = [tool["function"]["parameters"] for tool in provider.requests[-1]["tools"]]
    assert parameters == {"type": "object", "properties": {"additionalProperties": {"type": "string"}}}


def test_images_of_tools_follow_in_a_user_message(provide):
    case = FIELDS["OpenAI, an image from a tool"]
    provider = provide(refusing(*case[:3]))
    ask(provider, **case[3])
    assert provider.requests[-1]["messages"][2:] == [
        {"role": "tool", "content": "here", "tool_call_id": "call_1"},
        {"role": "user", "content": [IMAGE]},
    ]


# What a model did is an answer.

ANSWERS = {
    "OpenAI, a refusal": (completion({"content": None, "refusal": "I cannot help."}), "I cannot help."),
    "empty text": (completion({"content": ""}), ""),
    "null and no refusal": (completion({"content": None, "refusal": None}), ""),
    "all tokens in hidden reasoning": (completion({"content": ""}, "length"), ""),
    "reasoning alone": (completion({"content": None, "reasoning_content": "hm"}, "length"), ""),
    "OpenRouter, encrypted reasoning alone": (
        completion({"content": None, "reasoning_details": [{"type": "reasoning.encrypted", "data": "x"}]}), "",
    ),
    "Gemini, a call it could not form": (
        completion({"content": None}, "function_call_filter: MALFORMED_FUNCTION_CALL"), "",
    ),
}  # fmt: skip


@pytest.mark.parametrize(("body", "text"), ANSWERS.values(), ids=ANSWERS.keys())
def test_what_a_model_did_is_an_answer(provide, body, text, caplog):
    with caplog.at_level(logging.WARNING):
        message = ask(provide(lambda request: (200, body)), times=2).message
    assert (message.content, message.tool_calls) == (text, None)
    assert len([record for record in caplog.records if "max_tokens" in record.message]) == (0 if text else 1)


WRITTEN = {
    "Groq, a call it could not read": (
        400,
        {"error": {"message": "Failed to call a function. Please adjust your prompt. See 'failed_generation' for more "
                   "details.", "code": "tool_use_failed", "failed_generation": '<function=look{"at": 1</function>'}},
        '<function=look{"at": 1</function>',
    ),
    "Groq, nothing to show": (
        400, {"error": {"message": "Failed to call a function.", "code": "tool_use_failed", "failed_generation": ""}}, "",
    ),
    "Ollama, a call it could not read": (
        500,
        {"error": {"message": "error parsing tool call: raw='{\"at\": 1', err=unexpected end of JSON input"}}, '{"at": 1',
    ),
    "llama.cpp, an answer it could not read": (
        500, {"error": {"code": 500, "message": "Failed to parse input at pos 12: <tool_call>{", "type": "server_error"}},
        "<tool_call>{.",
    ),
}  # fmt: skip


@pytest.mark.parametrize(("status", "body", "text"), WRITTEN.values(), ids=WRITTEN.keys())
def test_what_a_server_could_not_read_of_an_answer_is_the_answer(provide, status, body, text):
    provider = provide(lambda request: (status, body))
    message = ask(provider, retries=3).message
    assert (message.content, message.finish_reason) == (text, "stop")
    assert len(provider.requests) == 1  # sampling until it can be read would hide it


def test_arguments_that_are_no_object_are_sent_as_one(provide):
    provider = provide(lambda request: (200, completion()))
    written = ['{"a": 1', "[1]", "", "null", '"text"', '{"a": NaN}', "[" * 5000, '{"a": 1}']
    calls = [ToolCall(id=f"c{number}", name="look", arguments=text) for number, text in enumerate(written)]
    messages = [UserMessage("q"), AssistantMessage(None, tool_calls=calls)]
    ask(provider, messages)
    sent = [call["function"]["arguments"] for call in provider.requests[0]["messages"][1]["tool_calls"]]
    assert [json.loads(text) for text in sent] == [
        {"arguments": '{"a": 1'}, {"arguments": "[1]"}, {}, {}, {"arguments": '"text"'}, {"arguments": '{"a": NaN}'},
        {"arguments": "[" * 5000}, {"a": 1},
    ]  # fmt: skip
    assert [call.arguments for call in messages[1].tool_calls] == written


@pytest.mark.parametrize("field", ["reasoning", "reasoning_content"])
def test_reasoning_goes_back_in_the_field_it_came_in(provide, field):
    provider = provide(lambda request: (200, completion({"content": "a", field: "hm"})))
    ask(provider, THOUGHT, times=2)
    assert provider.requests[1]["messages"][1] == {"role": "assistant", "content": "a", field: "hm"}


def test_details_and_signatures_of_an_answer_go_back_as_they_came(provide):
    details = [{"type": "reasoning.text", "text": "hm", "signature": "s"}, {"type": "reasoning.encrypted", "data": "x"}]
    extra = {"google": {"thought_signature": "t"}}
    call = {"id": "1", "type": "function", "function": {"name": "look", "arguments": "{}"}, "extra_content": extra}
    provider = provide(
        lambda request: (200, completion({"content": None, "reasoning_details": details, "tool_calls": [call]}))
    )
    message = ask(provider).message
    assert message.reasoning_content == "hm"
    ask(provider, [UserMessage("q"), message, ToolMessage("5", tool_call_id="1")])
    again = provider.requests[-1]["messages"][1]
    assert again["reasoning_details"] == details
    assert again["tool_calls"] == [call]


# A status of 200 that holds no answer.

HELD = {
    "OpenRouter, a provider's failure": {"error": {"code": 502, "message": "Provider returned error"}, "user_id": "u"},
    "OpenRouter, a failure in the choice": completion(
        choices=[{"index": 0, "finish_reason": "error", "message": {"role": "assistant", "content": "ha"},
                  "error": {"code": 502, "message": "Network connection lost."}}]),
    "a proxy, an error of no code": {"error": "upstream connect error"},
    "MiniMax, a rate limit": {"choices": None, "base_resp": {"status_code": 1002, "status_msg": "rate limit"}},
    "OpenRouter, a rate limit": {"error": {"code": 429, "message": "Rate limit exceeded: free-models-per-min"}},
}  # fmt: skip


@pytest.mark.parametrize("body", HELD.values(), ids=HELD.keys())
def test_an_error_in_a_response_of_200_is_tried_again(provide, body):
    answers = iter([body, completion()])
    provider = provide(lambda request: (200, next(answers), {"retry-after-ms": "1"}))
    assert ask(provider, retries=2).message.content == "fine"
    assert len(provider.requests) == 2


@pytest.mark.parametrize("body", HELD.values(), ids=HELD.keys())
def test_an_error_in_a_response_of_200_that_stays_is_the_endpoints(provide, body):
    with pytest.raises(EndpointDownError, match=r"See the server's log|Lower max_concurrent"):
        ask(provide(lambda request: (200, body)))


@pytest.mark.parametrize(
    ("body", "says"),
    [
        (b"<!DOCTYPE html><html><title>Sign in</title></html>", r"a web page titled 'Sign in'.*Check the address"),
        (b"", "an empty body"),
        (b'data: {"choices": []}\n\ndata: [DONE]\n\n', "a stream of events, which was not requested"),
        (b'{"id": "c", "choices": [', "no JSON"),
        (b"OK", "no JSON: 'OK'"),
        (b"[]", "JSON that is no object"),
        (json.dumps({**completion(), "choices": []}).encode(), "no choices"),
    ],
)
def test_a_response_of_200_that_is_none_says_what_it_is(provide, body, says):
    with pytest.raises(whet.InvalidModelResponseError, match=says):
        ask(provide(lambda request: (200, body)))


def test_an_answer_about_errors_is_an_answer(provide):
    text = '{"error": {"code": 502, "message": "context length"}}'
    assert ask(provide(lambda request: (200, completion({"content": text})))).message.content == text
    assert ask(provide(lambda request: (200, completion(error=None)))).message.content == "fine"


# Refusals of all requests, and others.

ERRORS = {
    "OpenAI, an empty account": (
        429, {"error": {"message": "You exceeded your current quota, please check your plan and billing details.",
                        "type": "insufficient_quota", "code": "insufficient_quota"}}, EndpointError, "Add credit",
    ),
    "Azure, a rate limit": (
        429, {"error": {"code": "RateLimitReached", "message": "Requests to the ChatCompletions_Create Operation have "
                        "exceeded token rate limit of your current OpenAI S0 pricing tier. Please retry after 6 seconds. "
                        "Please go here: https://aka.ms/oai/quotaincrease if you would like to further increase the "
                        "default rate limit."}}, EndpointDownError, "is busy",
    ),
    "Azure, a rate limit of code 429": (
        429, {"error": {"code": "429", "message": "Your requests have exceeded call rate limit for this quota. Please "
                        "retry after 12 seconds."}}, EndpointDownError, "is busy",
    ),
    "Gemini, a rate limit": (
        429, [{"error": {"code": 429, "status": "RESOURCE_EXHAUSTED", "message": "You exceeded your current quota, please "
                         "check your plan and billing details. Please retry in 37.1s.",
                         "details": [{"@type": "type.googleapis.com/google.rpc.RetryInfo", "retryDelay": "37s"}]}}],
        EndpointDownError, "is busy",
    ),
    "Gemini, a rate limit without a delay": (
        429, [{"error": {"code": 429, "status": "RESOURCE_EXHAUSTED",
                         "message": "Resource has been exhausted (e.g. check quota)."}}], EndpointDownError, "is busy",
    ),
    "OpenAI, a rate limit": (
        429, {"error": {"message": "Rate limit reached for gpt-4o on tokens per min (TPM): Limit 30000, Used 29000. Please "
                        "try again in 2s. Visit https://platform.openai.com/account/billing", "type": "tokens",
                        "code": "rate_limit_exceeded"}}, EndpointDownError, "is busy",
    ),
    "Moonshot, an empty account": (
        429, {"error": {"type": "exceeded_current_quota_error", "message": "Your account is suspended."}},
        EndpointError, "Add credit",
    ),
    "Anthropic, an empty account": (
        400, {"error": {"type": "invalid_request_error", "message": "Your credit balance is too low to access the "
                        "Anthropic API."}}, EndpointError, "Add credit",
    ),
    "DeepSeek, an empty account": (
        402, {"error": {"message": "Insufficient Balance"}}, EndpointError, "Add credit",
    ),
    "OpenRouter, credits for fewer tokens": (
        402, {"error": {"code": 402, "message": "This request requires more credits, or fewer max_tokens. You requested up "
                        "to 65535 tokens, but can only afford 5000."}}, EndpointError, "fewer max_tokens",
    ),
    "Groq, a request over the minute's limit": (
        413, {"error": {"message": "Request too large for model `x` on tokens per minute (TPM): Limit 6000, Requested "
                        "7000, please reduce your message size and try again.", "code": "rate_limit_exceeded"}},
        ModelError, "Limit 6000",
    ),
    "Gemini, a wrong key": (
        400, [{"error": {"code": 400, "message": "API key not valid. Please pass a valid API key."}}],
        EndpointError, "WHET_TEST_KEY",
    ),
    "xAI, a wrong key": (400, {"error": "Incorrect API key provided: xa***"}, EndpointError, "WHET_TEST_KEY"),
    "OpenRouter, a wrong model": (
        400, {"error": {"code": 400, "message": "openai/gpt-9 is not a valid model ID"}}, EndpointError, "Check the model",
    ),
    "Mistral, a wrong model": (
        400, {"message": "Invalid model: mistral-x", "code": "1500"}, EndpointError, "Check the model",
    ),
    "vLLM, a wrong model": (
        404, {"message": "The model `x` does not exist.", "code": 404}, EndpointError, "Check the model",
    ),
    "a web server, a wrong path": (404, b"<html><title>404</title></html>", EndpointError, "Check the model and the address"),
    "OpenRouter, moderation": (
        403, {"error": {"code": 403, "message": "Input was flagged", "metadata": {"reasons": ["violence"]}}},
        ContentFilterError, "Change the prompt",
    ),
    "Azure, a filtered prompt": (
        400, {"error": {"code": "content_filter", "message": "The response was filtered due to the prompt triggering Azure "
                        "OpenAI's content management policy."}}, ContentFilterError, "Change the prompt",
    ),
    "Alibaba, a filtered prompt": (
        400, {"error": {"code": "data_inspection_failed", "message": "Input data may contain inappropriate content."}},
        ContentFilterError, "Change the prompt",
    ),
    "Cloudflare, a page": (
        502, b"<!DOCTYPE html><html><head><title>Bad gateway</title></head></html>", EndpointDownError, "'Bad gateway'",
    ),
    "Anthropic, overloaded": (529, {"error": {"type": "overloaded_error", "message": "Overloaded"}}, EndpointDownError, "529"),
    "OpenRouter, what the provider said": (
        400, {"error": {"code": 400, "message": "Provider returned error",
                        "metadata": {"raw": '{"error": {"message": "messages must contain the word json"}}'}}},
        ModelError, "the word json",
    ),
    "Ollama, a model without tools": (
        400, {"error": {"message": "registry.ollama.ai/library/x does not support tools"}}, ModelError, "tools",
    ),
    "a server that repeats the prompt": (
        422, {"detail": [{"loc": ["body", "n"], "msg": "Input should be less than 2", "input": "billing context length"}]},
        ModelError, "less than 2",
    ),
}  # fmt: skip


@pytest.mark.parametrize(("status", "body", "error", "says"), ERRORS.values(), ids=ERRORS.keys())
def test_an_error_is_decided_by_its_code_and_says_what_to_do(provide, status, body, error, says):
    with pytest.raises(whet.errors.WhetError if error is EndpointError else error, match=says) as raised:
        ask(provide(lambda request: (status, body)), tools=[TOOL], api_key_var="WHET_TEST_KEY")
    assert type(raised.value) is error
    if issubclass(error, ModelError):
        assert "http://127.0.0.1" in str(raised.value)


@pytest.mark.parametrize("header", ["1", "3600"])
def test_a_busy_server_that_names_a_delay_is_no_empty_account(provide, header):
    body = {"error": {"message": "You exceeded your current quota", "type": "insufficient_quota"}}
    with pytest.raises(EndpointDownError, match="is busy"):
        ask(provide(lambda request: (429, body, {"retry-after": header})))


def test_what_a_retry_cannot_change_is_sent_once(provide):
    provider = provide(
        lambda request: (429, {"error": {"code": "insufficient_quota", "message": "You are out of quota"}})
    )
    with pytest.raises(EndpointError, match="no quota is left"):
        ask(provider, retries=5)
    assert len(provider.requests) == 1


# max_tokens that does not fit.

CONTEXT = 4096


def limited(words, prompt=100, most=CONTEXT):
    """A server of a context of 4,096 tokens that refuses in these words what does not fit."""

    def behave(request):
        wanted = request.get("max_completion_tokens", 0)
        if wanted <= min(CONTEXT - prompt, most):
            return 200, completion()
        return 400, {"error": {"message": words.format(prompt=prompt, wanted=wanted, total=prompt + wanted,
                                                       counted=CONTEXT - wanted + 1)}}  # fmt: skip

    return behave


TOO_MANY = {
    "OpenAI": "This model's maximum context length is 4096 tokens. However, you requested {total} tokens ({prompt} in the "
    "messages, {wanted} in the completion). Please reduce the length of the messages or completion.",
    "vLLM of 2025": "'max_tokens' or 'max_completion_tokens' is too large: {wanted}. This model's maximum context length is "
    "4096 tokens and your request has {prompt} input tokens ({wanted} > 4096 - {prompt}).",
    "vLLM of 2026": "This model's maximum context length is 4096 tokens. However, you requested {wanted} output tokens and "
    "your prompt contains at least {counted} input tokens, for a total of at least 4097 tokens. Please reduce the length of "
    "the input prompt or the number of requested output tokens. (parameter=input_tokens, value={counted})",
    "SGLang": "Requested token count exceeds the model's maximum context length of 4096 tokens. You requested a total of "
    "{total} tokens: {prompt} tokens from the input messages and {wanted} tokens for the completion.",
    "TGI": "Input validation error: `inputs` tokens + `max_new_tokens` must be <= 4096. Given: {prompt} `inputs` tokens and "
    "{wanted} `max_new_tokens`",
    "Anthropic": "input length and `max_tokens` exceed context limit: {prompt} + {wanted} > 4096, decrease input length or "
    "`max_tokens` and try again",
    "OpenRouter": "This endpoint's maximum context length is 4096 tokens. However, you requested about {total} tokens "
    "({prompt} of text input, {wanted} in the output). Please reduce the length of either one.",
    "Cerebras": "Please reduce the length of the messages or completion. Current length is {total} while limit is 4096",
    "Moonshot": "Invalid request: Your request exceeded model token limit: 4096 (requested: {total})",
    "whet": "prompt ({prompt}) and max_tokens ({wanted}) exceed the context of 4096",
    "no number of the prompt": "The model's context window is 4096 tokens: prompt and max_tokens together do not fit.",
}


@pytest.mark.parametrize("words", TOO_MANY.values(), ids=TOO_MANY.keys())
def test_a_limit_that_does_not_fit_becomes_what_is_left(provide, words, caplog):
    provider = provide(limited(words))
    with caplog.at_level(logging.WARNING):
        assert ask(provider, sampling_args={"max_tokens": 4000}, times=2).message.content == "fine"
    assert provider.requests[-1]["max_completion_tokens"] == 3996
    (warning,) = [record.getMessage() for record in caplog.records if "max_tokens" in record.getMessage()]
    assert "max_tokens = 4000" in warning
    assert "3996" in warning


def test_later_turns_get_what_is_left_without_a_word(provide, caplog):
    provider = provide(limited(TOO_MANY["OpenAI"], prompt=4000))
    state = whet.State(input={"example_id": 0}, trajectory_id="t", trajectory=[{}])
    with caplog.at_level(logging.WARNING):
        ask(provider, sampling_args={"max_tokens": 1000}, state=state)
    assert provider.requests[-1]["max_completion_tokens"] == 96
    assert not caplog.records


@pytest.mark.parametrize("words", TOO_MANY.values(), ids=TOO_MANY.keys())
def test_a_prompt_that_does_not_fit_is_too_long(provide, words):
    provider = provide(limited(words, prompt=5000))
    with pytest.raises(whet.OverlongPromptError):
        ask(provider, sampling_args={"max_tokens": 4000})
    assert len(provider.requests) <= 3


@pytest.mark.parametrize(
    "words",
    [
        "max_tokens is too large: {wanted}. This model supports at most 1024 completion tokens, whereas you provided {wanted}.",
        "max_tokens: {wanted} > 1024, which is the maximum allowed number of output tokens for claude",
        "`max_tokens` must be less than or equal to `1024`, the maximum value for `max_tokens` is less than the "
        "`context_window` for this model",
        "Invalid max_tokens value, the valid range of max_tokens is [1, 1024]",
        "Range of max_tokens should be [1, 1024]",
        "Unable to submit request because it has a maxOutputTokens value of {wanted} but the supported range is from 1 "
        "(inclusive) to 1025 (exclusive). Update the value and try again.",
        "The maximum tokens you requested exceeds the model limit of 1024. Try again with a lower value.",
    ],
)
def test_a_limit_above_that_of_the_model_becomes_the_models(provide, words):
    provider = provide(limited(words, most=1024))
    assert ask(provider, sampling_args={"max_tokens": 4000}).message.content == "fine"
    assert [request["max_completion_tokens"] for request in provider.requests] == [4000, 1024]


def test_a_rollout_is_scored_whatever_max_tokens_says(provide):
    provider = provide(limited(TOO_MANY["vLLM of 2026"]))
    env = whet.SingleTurnEnv(
        dataset=[{"question": "?", "answer": "fine"}],
        rubric=whet.Rubric([lambda completion, answer: float(completion[-1].content == answer)]),
    )
    results = env.evaluate_sync(
        whet.ClientConfig(api_base_url=provider.url), "m", {"max_tokens": 4000}, rollouts_per_example=6
    )
    assert [row["reward"] for row in results["outputs"]] == [1.0] * 6


def test_half_of_the_calls_broken_is_half_of_the_reward(provide):
    """Broken arguments are refused by the server when they come back; those rollouts are scored all the same."""
    state = {"rollouts": 0}

    def behave(request):
        calls = [call for message in request["messages"] for call in message.get("tool_calls") or []]
        for call in calls:
            try:
                json.loads(call["function"]["arguments"])
            except ValueError:
                return 400, {"error": {"message": "tool call arguments are not valid JSON"}}
        if calls:
            return 200, completion({"content": request["messages"][-1]["content"]})
        state["rollouts"] += 1
        arguments = '{"at": 1' if state["rollouts"] % 2 else '{"at": 1}'
        call = {"id": "1", "type": "function", "function": {"name": "look", "arguments": arguments}}
        return 200, completion({"content": None, "tool_calls": [call]}, "tool_calls")

    def look(at: int) -> str:
        """Look."""
        return f"seen {at}"

    env = whet.ToolEnv(
        dataset=[{"question": "?"}],
        tools=[look],
        rubric=whet.Rubric([lambda completion: float(completion[-1].content == "seen 1")]),
    )
    results = env.evaluate_sync(whet.ClientConfig(api_base_url=provide(behave).url), "m", rollouts_per_example=8)
    assert sorted(row["reward"] for row in results["outputs"]) == [0.0] * 4 + [1.0] * 4
    assert results["metadata"]["avg_reward"] == 0.5
    written = [row["completion"][0]["tool_calls"][0] for row in results["outputs"]]
    assert sum('{"at": 1}' not in json.loads(call)["arguments"] for call in written) == 4
