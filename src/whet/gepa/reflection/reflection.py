"""`Reflection`: new texts for components, from a model that is shown the rollouts of the old ones.

    records ──▶ a question ──▶ the log, else the model ──▶ the log ──▶ a text that can be tried, or why there is none

An answer that cannot be used (nothing in it, the current text, too long, placeholders lost) is put to the model once
more, with what was wrong; one that a content filter refused is not. Each is counted, and when too many come in a row
the search ends. A failure of the endpoint ends the search at once, and `--resume` continues it.

Called from the thread that searches; requests run on the event loop.
"""

from __future__ import annotations

import asyncio
import hashlib
import re
import string
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from whet.clients.client import Client
from whet.envs.config.texts import JUDGE, TOOL
from whet.errors import (
    ContentFilterError,
    EmptyModelResponseError,
    Error,
    GepaError,
    OverlongPromptError,
    WhetError,
)
from whet.gepa.config import SearchConfig
from whet.gepa.reflection.log import ReflectionLog, ReflectionReply, ReflectionRequest
from whet.gepa.reflection.prompt import CLOSE, OPEN, excerpt, write_correction, write_request
from whet.gepa.types import Candidate, SearchObserver, candidate_id
from whet.messages import content_text, whole_characters
from whet.types import AssistantMessage, Messages, SamplingArgs, UserMessage

ATTEMPTS = 2  # for one text: the request, and one correction
MOST_CHARS = {TOOL: 1024, "": 8000}  # what OpenAI takes as the description of a tool; about 2,000 tokens
SMALLEST_ROOM = 500
"""Characters of rollouts in a question, below which no request is made."""
_THINKING = re.compile(r"\A\s*<think(?:ing)?>.*?</think(?:ing)?>", re.DOTALL | re.IGNORECASE)
_FENCE = re.compile(r"^(?P<fence>`{3,}|~{3,})[^\n`]*\n(?P<text>.*)^(?P=fence)[ \t]*$", re.DOTALL | re.MULTILINE)


class Reflection:
    """Proposes new texts. Blocking; called from the thread that searches, one call at a time."""

    def __init__(
        self,
        client: Client[Any, Any, Any, Any],
        model: str,
        config: SearchConfig,
        log: ReflectionLog,
        observer: SearchObserver,
        loop: asyncio.AbstractEventLoop,
        *,
        sampling: SamplingArgs,
        seed: int | None,
    ) -> None:
        """`loop` runs in another thread; requests and the observer's events run on it. No `seed`: none is sent."""
        self._client, self._model, self._config = client, model, config
        self._sampling, self._seed = sampling, seed
        self._log, self._observer, self._loop = log, observer, loop
        self._requested: Counter[str] = Counter()  # by the key of the request
        self._room = config.max_request_chars
        self._in_a_row = 0
        self._ended: Exception | None = None

    def __call__(
        self, candidate: Candidate, records: Mapping[str, Sequence[Mapping[str, Any]]], components: Sequence[str]
    ) -> dict[str, str]:
        """New texts for (some of) `components`; {} where no answer was usable.

        Raises `GepaError` where the endpoint fails, and once too many answers in a row were of no use; from then on
        every call raises it again.
        """
        if self._ended is not None:
            raise self._ended
        try:
            return asyncio.run_coroutine_threadsafe(self._propose(candidate, records, components), self._loop).result()
        except WhetError as error:
            self._ended = error
            raise

    async def _propose(
        self, candidate: Candidate, records: Mapping[str, Sequence[Mapping[str, Any]]], components: Sequence[str]
    ) -> dict[str, str]:
        texts: dict[str, str] = {}
        for component in components:
            if records.get(component):
                self._observer.phase("reflection", component, 0)
                text = await self._text(candidate, component, records[component])
                if text is not None:
                    texts[component] = text
        return texts

    async def _text(self, candidate: Candidate, component: str, records: Sequence[Mapping[str, Any]]) -> str | None:
        """A new text for a component that can be tried; None where the model gave none."""
        current, most = candidate[component], most_chars(self._config.max_chars, component)
        placeholders = _placeholders(component, current)
        about = {"component": component, "candidate": candidate_id(candidate)}
        write = partial(write_request, component, current, records, most=most, placeholders=placeholders)
        first, reply = await self._first_reply(write, about)
        for attempt in range(1, ATTEMPTS + 1):
            try:
                text = _read(reply)
                check(text, current, most=most, placeholders=placeholders)
            except Unusable as problem:
                self._count_unusable(component, str(problem), reply)
                if attempt == ATTEMPTS or reply.answer is None:
                    return None
                reply = await self._reply(_conversation(first, reply.answer, str(problem), most), about)
                continue
            self._in_a_row = 0
            return text
        return None

    async def _first_reply(
        self, write: Callable[..., str], about: Mapping[str, Any]
    ) -> tuple[UserMessage, ReflectionReply]:
        """The first request and its reply; a request that is too long is repeated with less of the rollouts."""
        least = len(write(room=0))
        while True:
            text = write(room=self._room)
            question = UserMessage(text)
            reply = await self._reply([question], about)
            if reply.failure != "too long":
                return question, reply
            self._room = len(text) // 2
            if self._room < least + SMALLEST_ROOM:
                raise GepaError(
                    f"the context of the reflection model '{self._model}' is too small: {len(text):,} characters, "
                    f"{least:,} of them before any rollout, do not fit ({reply.said}). "
                    "Start a new run with another --reflection-model."
                )
            self._observer.note(
                f"{len(text):,} characters are too many for {self._model}: it is shown less of the rollouts"
            )

    async def _reply(self, messages: Messages, about: Mapping[str, Any]) -> ReflectionReply:
        """The model's reply, from the log where an earlier process made the same request."""
        request = ReflectionRequest(self._model, messages, self._sampling)
        key = request.key
        number = self._requested[key]
        reply = self._log.find(key, number)
        if reply is None:
            reply = await self._ask(request, number)
            self._log.write(request, number, reply, about)
        self._requested[key] += 1
        return reply

    async def _ask(self, request: ReflectionRequest, number: int) -> ReflectionReply:
        sampling = dict(request.sampling)
        if self._seed is not None:
            sampling["seed"] = request_seed(self._seed, request.key, number)
        try:
            response = await self._client.get_response(request.messages, self._model, sampling)
        except ContentFilterError as error:
            return ReflectionReply(failure="refused", said=str(error))
        except OverlongPromptError as error:
            return ReflectionReply(failure="too long", said=str(error))
        except EmptyModelResponseError as error:
            return ReflectionReply(answer="", said=str(error))
        except (Error, WhetError) as error:
            raise GepaError(
                f"the reflection model '{self._model}' is not available: {error} "
                "What was paid for is kept; fix the cause, then continue with --resume."
            ) from error
        usage = dict(response["usage"]) if response.get("usage") is not None else None
        message = response["message"]
        return ReflectionReply(
            content_text(message.get("content")), finish_reason=message["finish_reason"], usage=usage
        )

    def _count_unusable(self, component: str, problem: str, reply: ReflectionReply) -> None:
        """Raises `GepaError` once there were too many in a row, not counting those of an earlier process."""
        if reply.replayed:
            return
        self._in_a_row += 1
        most = self._config.max_unusable
        self._observer.note(f"no new text for {component}: {problem} ({self._in_a_row} of {most} in a row)")
        if self._in_a_row == most:
            raise GepaError(
                f"the reflection model '{self._model}' gave no usable text {most} times in a row; the last time, "
                f"{problem}. See {self._log.path}; continue with --resume, or start a new run with another -M."
            )


def most_chars(max_chars: Mapping[str, int], component: str) -> int:
    """Characters that a text for a component may have; `max_chars` are the configured limits."""
    default = next(most for start, most in MOST_CHARS.items() if component.startswith(start))
    return max_chars.get(component, default)


def request_seed(seed: int, key: str, number: int) -> int:
    """A seed in [0, 2**31) for the `number`th asking of a request."""
    digest = hashlib.blake2b(f"reflection/{seed}/{key}/{number}".encode(), digest_size=4).digest()
    return int.from_bytes(digest, "little") >> 1


def why_unusable(reply: ReflectionReply, component: str, current: str, most: int) -> str | None:
    """Why a reply is unusable, in words; None where its text could be tried."""
    try:
        check(_read(reply), current, most=most, placeholders=_placeholders(component, current))
    except Unusable as problem:
        return str(problem)
    return None


def _placeholders(component: str, current: str) -> frozenset[str] | None:
    """The names in braces that a component's text is filled in by; None where braces mean nothing in it."""
    return placeholders_of(current) if component.startswith(JUDGE) else None


def _conversation(first: UserMessage, answer: str, problem: str, most: int) -> Messages:
    """The question, an answer that could not be used, and what was wrong; only the question where nothing was said."""
    if not answer.strip():
        return [first]
    return [first, AssistantMessage(excerpt(answer, 2 * most)), UserMessage(write_correction(problem, most))]


def _read(reply: ReflectionReply) -> str:
    """The text that a reply proposes. Raises `Unusable`."""
    if reply.answer is None:
        raise Unusable(f"it was refused ({reply.said})" if reply.failure == "refused" else f"it is {reply.failure}")
    return text_of(reply.answer, cut_off=reply.cut_off)


class Unusable(Exception):
    """An answer without a text that could be tried. Its text says why, for people and for the model itself."""


def text_of(answer: str, *, cut_off: bool = False) -> str:
    """The text that an answer proposes, without white space around it.

    It stands between `<new_text>` and `</new_text>`. Some models put it into a code fence all the same, or give nothing
    but the text; both are accepted. A model's thinking that is left in the answer is removed.

    Raises `Unusable` where there is none, or it was `cut_off` by a limit of tokens before its end.
    """
    answer = whole_characters(_THINKING.sub("", answer, count=1))
    start = answer.rfind(OPEN)
    if start >= 0:
        text, closed, _ = answer[start + len(OPEN) :].partition(CLOSE)
        if not closed and cut_off:
            raise Unusable("it was cut off by the limit of tokens before its end")
        return _something(text)
    fenced = _FENCE.search(answer)
    if fenced is not None and len(answer.strip()) - len(fenced[0].strip()) <= len(fenced["text"].strip()):
        return _something(fenced["text"])  # where more stands outside, it is an example inside of the text
    if cut_off:
        raise Unusable("it was cut off by the limit of tokens before its end")
    return _something(answer)


def check(text: str, current: str, *, most: int, placeholders: frozenset[str] | None) -> None:
    """Raise `Unusable` where `text` cannot replace `current`.

    Args:
        most: characters it may have.
        placeholders: those that it must have, each `{name}`, and no other; None where braces mean nothing.
    """
    if text == current.strip():
        raise Unusable("it is the current text, unchanged")
    if len(text) > most:
        raise Unusable(f"it has {len(text):,} characters, and {most:,} are allowed")
    if placeholders is not None:
        _check_placeholders(text, placeholders)


def placeholders_of(text: str) -> frozenset[str]:
    """The names in braces that `str.format` would fill in. Raises ValueError where it could not read the text."""
    return frozenset(name for _, name, _, _ in string.Formatter().parse(text) if name is not None)


def _check_placeholders(text: str, wanted: frozenset[str]) -> None:
    try:
        present = placeholders_of(text)
    except ValueError as error:
        raise Unusable(f"its braces cannot be read ({error}); literal ones have to be doubled") from None
    if lost := sorted(wanted - present):
        raise Unusable(f"it has lost {_named(lost)}")
    if strange := sorted(present - wanted):
        raise Unusable(f"it has {_named(strange)}, which nothing fills in; literal braces have to be doubled")


def _named(names: list[str]) -> str:
    return ", ".join(f"{{{name}}}" for name in names)


def _something(text: str) -> str:
    text = text.strip()
    if not text:
        raise Unusable("it is empty")
    return text
