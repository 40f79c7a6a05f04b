"""Why a server did not answer: from the status and the body of its response to one of whet's errors.

Codes decide where there are any, words only where there are none: "quota" is in the text of an ordinary rate limit
(Azure, Gemini) as well as of an empty account. What can be read of a body is its error, never what it repeats of the
request. Which errors are scored is in docs/design/evaluations.md.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from whet.errors import (
    ContentFilterError,
    EndpointDownError,
    EndpointError,
    ModelError,
    OverlongPromptError,
)

Kind = Literal["access", "quota", "busy", "overlong", "filter", "missing", "written", "refused", "down"]
FINAL = frozenset({"access", "quota", "overlong", "filter", "missing", "written", "refused"})
"""Kinds that sending the same request again does not change."""
_TEXTS = ("message", "msg", "detail", "error_msg", "status_msg", "errors", "base_resp", "title")
_CODES = ("code", "type", "status", "reason", "error_type", "error_code", "status_code")
_QUOTA_CODES = frozenset(
    {"insufficient_quota", "billing_hard_limit_reached", "billing_not_active", "exceeded_current_quota_error"}
    | {"insufficient_balance", "insufficient_credits", "insufficient_funds", "arrearage", "billing_error", "1113"}
)
_BUSY_CODES = frozenset(
    {"rate_limit_exceeded", "rate_limit_error", "ratelimitreached", "resource_exhausted", "rate_limit_reached_error"}
    | {"tokens", "requests", "too_many_requests", "toomanyrequests", "engine_overloaded_error", "throttling"}
)
_QUOTA = re.compile(
    r"exceeded (your|the) (current |monthly )?quota|quota exceeded|credit balance|insufficient[ _](\w+[ _])?"
    r"(funds|credits?|balance|quota)|out of (funds|credits)|spend(ing)? limit|billing|not enough credits|no credits",
    re.IGNORECASE,
)
_WAIT = re.compile(r"(retry|try again|available) (in|after) [\d~a]|retrydelay|per (second|minute)", re.IGNORECASE)
_KEY = re.compile(r"\bapi[ _-]?key\b.{0,30}(not valid|invalid|incorrect|expired|missing)|"
                  r"(incorrect|invalid|expired|missing|no) api[ _-]?key|api_key_invalid", re.IGNORECASE)  # fmt: skip
_FILTER = re.compile(
    r"content[ _]?(filter|management policy|policy violation)|responsibleaipolicy|usage (guidelines|policies)|"
    r"flagged|moderation|prohibited_content|data_inspection_failed",
    re.IGNORECASE,
)
_MODEL = re.compile(
    r"model_not_found|not a valid model|invalid model\b|unknown model|no such model|model \S+ (was )?not (found|exist)|"
    r"model \S+ does not exist",
    re.IGNORECASE,
)
_WRITTEN = re.compile(
    r"(?:error parsing tool call: raw='(?P<raw>.*?)', err=.*|failed to parse input at pos \d+: ?(?P<rest>.*)"
    r"|failed to call a function|tool_use_failed|output_parse_failed|malformed_function_call)",
    re.IGNORECASE | re.DOTALL,
)
"""How servers say that they could not read what the model wrote."""


def failure(package: Any, error: Any, base_url: str, advice: str) -> Exception | None:
    """The error of the package as one of whet's; None for another kind. `advice` is what to do about a refused key."""
    if isinstance(error, package.APITimeoutError):
        return EndpointDownError(f"{base_url} did not answer in time: {error} Raise its timeout, or see its log.")
    if isinstance(error, package.APIConnectionError):
        cause = f" ({error.__cause__})" if error.__cause__ is not None else ""
        return EndpointDownError(f"{base_url} cannot be reached: {error}{cause}")
    if not isinstance(error, package.APIStatusError):
        return None
    body = body_of(error.response)
    text = said(body)
    make, sentence = _SENTENCES[kind_of(error.response, body)]
    ours = make(sentence.format(url=base_url, text=text, status=error.status_code, advice=advice))
    if type(ours) is ModelError:
        ours.refusal = text
    if isinstance(ours, WrittenError):
        quoted = [value for key, value in _pairs(body) if key == "failed_generation"]
        match = _WRITTEN.search(text)
        ours.text = str(next(filter(None, [*quoted, *(match.groups() if match else ())]), ""))
    return ours


class WrittenError(ModelError):
    """The server could not read what the model wrote (`text`): an answer, however bad."""

    text = ""


_SENTENCES: dict[Kind, tuple[type[Exception], str]] = {
    "access": (EndpointError, "{url} refuses access: {text} {advice}"),
    "quota": (EndpointError, "{url} reports that no quota is left: {text} Add credit, or use another key."),
    "missing": (EndpointError, "{url} does not have what is requested: {text} Check the model and the address."),
    "busy": (EndpointDownError, "{url} is busy: {text} Lower max_concurrent if this is frequent."),
    "down": (EndpointDownError, "{url} fails with status {status}: {text} See the server's log or status."),
    "overlong": (OverlongPromptError, "{text}"),
    "filter": (ContentFilterError, "{url}: the content filter stopped the request: {text} Change the prompt."),
    "written": (WrittenError, "{text}"),
    "refused": (
        ModelError,
        "{url} rejects the request (status {status}): {text} "
        "Check the sampling arguments, and `fields` and `forms` of the endpoint in endpoints.toml.",
    ),
}
"""The error of each kind, and what to do about it."""


def kind_of(response: Any, body: Any) -> Kind:
    """Why a response of a status of 400 and above is none."""
    status, text = response.status_code, said(body)
    codes = {str(value)[:100].lower() for key, value in _pairs(body) if key in _CODES}
    words = " ".join((text, *codes))
    waits = "retry-after" in response.headers or _WAIT.search(f"{words} {' '.join(k for k, _ in _pairs(body))}")
    no_quota = not waits and (codes & _QUOTA_CODES or (_QUOTA.search(text) and not codes & _BUSY_CODES))
    if status == 429:
        return "quota" if no_quota else "busy"
    if status == 402 or (status < 500 and status != 404 and no_quota):
        return "quota"
    if status in (400, 500) and _WRITTEN.search(words):
        return "written"
    if status in (400, 413, 422, 500) and (is_overflow(words) or (status < 500 and room_in(text, 0) is not None)):
        return "overlong"
    if status in (400, 403, 422) and _FILTER.search(words):
        return "filter"
    if status in (401, 403) or (status == 400 and _KEY.search(words)):
        return "access"
    if status in (404, 405) or (status in (400, 422) and _MODEL.search(words)):
        return "missing"
    return "down" if status >= 498 or status in (408, 409, 424, 425) else "refused"


def look_into(response: Any, content: bytes) -> None:
    """Make a response of status 200 that holds an error one of that error, and mark what is not to be sent again.

    The package then retries, waits and raises as for any other error of that status.
    """
    if response.status_code == 200:
        status = _held(content) if b'"error"' in content or b'"base_resp"' in content else None
        if status is None:
            return
        response.status_code = status
    if response.status_code >= 400:
        if kind_of(response, body_of(response)) in FINAL:
            response.headers["x-should-retry"] = "false"
        elif str(response.headers.get("retry-after", "")).isdigit():  # the packages retry no response with a longer one
            response.headers["retry-after"] = str(min(60, int(response.headers["retry-after"])))


def _held(content: bytes) -> int | None:
    """The status of the error that a body holds in place of an answer; None where it holds none."""
    try:
        body = json.loads(content)
    except (ValueError, RecursionError):
        return None
    if not isinstance(body, Mapping):
        return None
    choices = body.get("choices")
    error = body.get("error")
    if isinstance(choices, list) and choices:
        error = choices[0].get("error") if len(choices) == 1 and isinstance(choices[0], Mapping) else None
    elif body.get("output") or body.get("object") == "response":  # its own field says how it failed
        return None
    elif not error and isinstance(base := body.get("base_resp"), Mapping) and base.get("status_code"):
        error = base
    if not error:
        return None
    code = error.get("code") if isinstance(error, Mapping) else None
    if isinstance(code, int | str) and str(code).isdigit() and 400 <= int(code) < 600:
        return int(code)
    return (
        400 if is_overflow(said(error)) or _FILTER.search(said(error)) else 429 if _QUOTA.search(said(error)) else 500
    )


def body_of(response: Any) -> Any:
    """The body of a response as JSON, or its text."""
    try:
        return json.loads(response.content)
    except (ValueError, RecursionError):
        return str(response.text)


def said(body: Any, depth: int = 0) -> str:
    """What the server said, in a sentence, without what it repeats of the request."""
    if isinstance(body, str):
        text = body.strip()
        if text[:1] in ("{", "[") and depth < 4:
            try:
                return said(json.loads(text), depth + 1)
            except (ValueError, RecursionError):
                pass
        if re.match(r"(?i)<!doctype html|<html", text):
            title = re.search(r"(?is)<title[^>]*>(.*?)</title>", text)
            return f"a web page{f' titled {title[1].strip()[:80]!r}' if title else ''}."
        return text[:1000] if text.endswith((".", "!", "?")) or not text else f"{text[:1000]}."
    if isinstance(body, list):
        return " ".join(said(item, depth + 1) for item in body[:3] if depth < 4)
    if not isinstance(body, Mapping):
        return ""
    if body.get("error") and not isinstance(body["error"], bool) and depth < 4:
        return said(body["error"], depth + 1)
    text = next((said(body[key], depth + 1) for key in _TEXTS if body.get(key) and depth < 4), "")
    where = body.get("loc")
    if isinstance(where, list | tuple) and text:
        text = f"{'.'.join(str(part) for part in where if part != 'body')}: {text}"
    metadata = body.get("metadata")  # of a router, with what the provider behind it said
    raw = said(metadata["raw"], depth + 1) if isinstance(metadata, Mapping) and metadata.get("raw") else ""
    return f"{text} {raw}".strip() or json.dumps(body, default=str)[:300]


def _pairs(body: Any, depth: int = 0) -> Iterator[tuple[str, Any]]:
    """Every plain value in a body with its key, except what is repeated of the request (`input`)."""
    if depth > 5:
        return
    if isinstance(body, list):
        for item in body[:5]:
            yield from _pairs(item, depth + 1)
    elif isinstance(body, Mapping):
        for key, value in body.items():
            if isinstance(value, str | int):
                yield str(key), value
            elif key != "input":
                yield from _pairs(value, depth + 1)


# How servers say that a request does not fit into the model's context, and how many tokens that leaves for the answer.
#
# The wordings are those of servers and providers seen in public; `tests/clients/test_context_limit.py` has them all. A
# rate limit ("tokens per minute") also counts tokens and is none of these.

_N = r"(\d[\d,_]*)"
_RATE = re.compile(r"\b(per|a) (second|minute|hour|day|month)\b|\b[tr]p[mds]\b|rate.?limit", re.IGNORECASE)
_OVERFLOW = re.compile(
    r"context[\s_-]*(length|window|limit|size|overflow)"
    r"|(length|limit|exceed\w*|maximum|max|overflow\w*)\W+(?:\w+\W+){0,4}context\b"
    r"|\b(prompt|input|conversation)[\s_]*(?:(?:is|was|are)\s+)?too[\s_]*(long|large|many tokens)"
    r"|too many (?:\w+ ){0,2}(tokens|text bytes)"
    r"|(maximum|max)[\s_]*(?:allowed[\s_]*)?(?:model|prompt|input|sequence|seq|total)[\s_]*(?:sequence[\s_]*)?len(gth)?"
    r"|\b(prompt|inputs?|messages?|request)\b\W+(?:[\w.]+\W+){0,12}?(exceed\w*|longer than|greater than)"
    r"\W+(?:\w+\W+){0,8}?(tokens?|length)\b"
    r"|token count\W+(?:\w+\W+){0,8}?(exceeds|only supports)"
    r"|reduce the (?:length|size) of (?:the |your |either )?(messages?|prompt|inputs?|one)"
    r"|range of input length|token limit|tokens_limit|exceeds? the configured limit|exceeded model|exceed_context"
    r"|inputs`? tokens \+ `?max_new_tokens|current length is \d+ while limit",
    re.IGNORECASE,
)
_BOTH = [  # wordings with the context's size, and the prompt's or the whole request's
    rf"context length is (?:only )?(?P<context>{_N}) tokens?.*?\((?P<prompt>{_N}) (?:in|of|from) (?:the )?"
    r"(?:messages|prompt|text input|input)",
    rf"context length is (?P<context>{_N}) tokens and your (?:request|prompt) has (?P<prompt>{_N}) input",
    rf"context length is (?P<context>{_N}) tokens.*?prompt contains (?P<least>at least )?(?P<prompt>{_N}) (?:input )?t",
    rf"context length of (?P<context>{_N}) tokens.*?: (?P<prompt>{_N}) tokens from the input",
    rf"context limit: (?P<prompt>{_N}) \+ {_N} > (?P<context>{_N})",
    rf"must be <= (?P<context>{_N})\. given: (?P<prompt>{_N}) `?inputs",
    rf"prompt \((?P<prompt>{_N})\) and max_tokens \({_N}\) exceed the context of (?P<context>{_N})",
    rf"current length is (?P<total>{_N}) while limit is (?P<context>{_N})",
    rf"token limit: (?P<context>{_N}) \(requested: (?P<total>{_N})\)",
    rf"(?:context length|context window|context) (?:is|of) (?P<context>{_N}).*?(?P<least>max_tokens|output|completion)",
]
_MOST = [  # wordings with the most tokens that an answer may have
    rf"supports at most (?P<most>{_N}) (?:completion|output) tokens",
    rf"max_tokens: {_N} > (?P<most>{_N})",
    rf"maxoutputtokens value of {_N} but the supported range is from \d+ \(inclusive\) to (?P<above>{_N}) \(exclusive",
    rf"range of max_?(?:completion_|new_|output_)?tokens (?:is|should be) \[\d+, ?(?P<most>{_N})\]",
    rf"maximum tokens you requested exceeds the model limit of (?P<most>{_N})",
    rf"max_?(?:completion_|new_|output_)?tokens\b.{{0,60}}?(?:<=|at most|less than or equal to|no more than)"
    rf"\D{{0,3}}(?P<most>{_N})",
]
_ROOM = [re.compile(wording, re.IGNORECASE | re.DOTALL) for wording in (*_BOTH, *_MOST)]


@dataclass(frozen=True, slots=True)
class ContextRoom:
    """What the server says: tokens of the context, of the prompt, and the most that an answer may have.

    `at_least`: the prompt may be longer, as where the server has stopped counting.
    """

    context: int | None = None
    prompt: int | None = None
    most: int | None = None
    at_least: bool = False

    def left(self) -> int | None:
        """Tokens left for the answer; None where that is not known."""
        if self.most is not None or self.context is None:
            return self.most
        return None if self.prompt is None or self.at_least else max(0, self.context - self.prompt)


def is_overflow(text: str) -> bool:
    """Whether a server's words for a refused request say that it does not fit into the context."""
    return _RATE.search(text) is None and _OVERFLOW.search(text) is not None


def room_in(text: str, requested: int) -> ContextRoom | None:
    """The numbers in a refusal of a request for `requested` tokens; None where `max_tokens` is not what is refused."""
    for wording in _ROOM:
        if match := wording.search(text):
            texts = {name: text for name, text in match.groupdict().items() if text is not None}
            at_least = texts.pop("least", None) is not None
            number = {name: int(re.sub(r"\D", "", text)) for name, text in texts.items()}
            most = number["above"] - 1 if "above" in number else number.get("most")
            prompt = number["total"] - requested if "total" in number else number.get("prompt")
            return ContextRoom(number.get("context"), prompt, most, at_least)
    return None
