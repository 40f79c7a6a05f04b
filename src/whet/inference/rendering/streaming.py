"""An answer while it is sampled: ids in; out of its reasoning and content, all that no later id can change.

The finished message is read by one parser (`reading.py`); nothing here reads a format a second time. Between two
markers of a format (a thought's end, a call's begin) text is added to one field, and only what markers do has to be
known. That is tried out, once for each order of markers that occurs: `Futures` has the parser read short made-up
answers with those markers, and notes which field text is added to, and whether that is still there after any one or two
markers more. Where it is not, as behind the begin of a call, text is held back until the answer is finished.

Also held back: whitespace that may be the end, characters of which not all bytes are there, and text that may become a
marker or a stop string. Tool calls are passed on when the answer is finished.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any, Literal

from whet.clients.client import Delta
from whet.inference.rendering.reading import CALL_MARKERS, AnswerFormat, Reading
from whet.inference.stops import cut_at_stop
from whet.types import AssistantMessage

Field = Literal["reasoning", "content"]
MOST_MARKERS = 6
"""Markers of one answer that are followed; text after more is held back."""
MOST_KNOWN = 4096
"""Orders of markers that are remembered: what a model writes must not fill the memory."""
_TEXT_MARKERS = ("<think>", "</think>")
_DSML = "\uff5cDSML\uff5c"
_MORE_TEXT_MARKERS = {
    "deepseek-v4": (f"<{_DSML}tool_calls>", f"<{_DSML}toolcalls>", f"<{_DSML}tool>", f"<{_DSML}invoke"),
    "gemma4": ("thought\n",),
}
_CALL_AS_JSON = '{"name": "f", "parameters": {}}'
_HALF = "\N{REPLACEMENT CHARACTER}"
_CHARACTER_IDS = 8
"""More ids than the bytes of a character."""
_LETTERS = "abcdefghijklmnopqrstuvw"
_PROMPT_TAIL = 256


class Futures:
    """What markers do in one format, as far as it was tried. Shared by all answers of that format."""

    def __init__(self, answers: AnswerFormat, tokenizer: Any) -> None:
        self._answers, self._tokenizer = answers, tokenizer
        added = tokenizer.added_tokens_decoder
        vocabulary = tokenizer.get_vocab()
        named = {vocabulary[text] for text in _TEXT_MARKERS if text in vocabulary}
        held = _ids_in([vars(answers.package), *_parser_of(answers.package)])
        # Other added tokens that are not special are phrases: text like any other.
        self._marks = (named | held) & added.keys() - answers.stops
        self.marks = self._marks | {token for token, meant in added.items() if meant.special}
        texts = [*_TEXT_MARKERS, *_MORE_TEXT_MARKERS.get(answers.name, ())]
        texts += CALL_MARKERS if answers.calls_in_text else ()
        if answers.name == "default":  # there special tokens are cut out of the text, also where it only spells them
            self.text_markers = tuple(dict.fromkeys((*texts, *tokenizer.all_special_tokens)))
        else:
            self.text_markers = tuple(text for text in texts if vocabulary.get(text) not in added)
        self._known: dict[tuple[bool, tuple[str | int, ...]], Field | None] = {}
        self._x, self._y, self._z = (self.encode(letter) for letter in "xyz")
        # Where a tokenizer falls back to single bytes, one that is no character may take those around it along.
        self.bytes = frozenset(vocabulary[name] for name in (f"<0x{n:02X}>" for n in range(256)) if name in vocabulary)
        self.joins = tokenizer.decode([*self._x, *self._y], skip_special_tokens=False) == "xy"
        self.exact = not getattr(tokenizer, "clean_up_tokenization_spaces", False)

    def encode(self, text: str) -> list[int]:
        return list(self._tokenizer.encode(text, add_special_tokens=False))

    def decode(self, ids: list[int]) -> str:
        return str(self._tokenizer.decode(ids, skip_special_tokens=False)) if ids else ""

    @cached_property
    def reads_json_as_call(self) -> bool:
        """Whether an answer that is a JSON object, without any marker, is a call."""
        return bool(self._answers.read(self.encode(_CALL_AS_JSON), prompt_ids=None, tools=None).calls)

    def begins_in_thought(self, prompt_ids: list[int]) -> bool:
        """Whether `prompt_ids` have opened a thought already."""
        return self._answers.package.parse_response([], prompt_ids=prompt_ids).reasoning_complete is False

    def field_after(self, markers: tuple[str | int, ...], prompt_ids: list[int], in_thought: bool) -> Field | None:
        """Which field is sure to keep the text that comes next; None where that is not sure.

        `markers` are the answer so far: ids or texts of markers, and "" where there was other text between them.
        """
        if (in_thought, markers) not in self._known:
            tail = prompt_ids[-_PROMPT_TAIL:]
            tail = tail if self.begins_in_thought(tail) == in_thought else prompt_ids
            if len(self._known) >= MOST_KNOWN:
                self._known.clear()
            self._known[in_thought, markers] = self._try(markers, tail)
        return self._known[in_thought, markers]

    def _try(self, markers: tuple[str | int, ...], prompt_ids: list[int]) -> Field | None:
        def read(*more: list[int]) -> Reading:
            ids = list(itertools.chain(so_far, *more))
            return self._answers.read(ids, prompt_ids=prompt_ids, tools=None)

        letters, so_far = iter(_LETTERS), list[int]()
        for marker in markers:
            so_far += self._ids_of(marker) if marker else self.encode(next(letters))
        now = read(self._x)
        field = _field_of(now, read(self._x, self._y))
        if now.calls or field is None:
            return None
        for first in self._markers:
            if not _kept(now, read(self._x, first)):
                return None
            for second in ([], *self._markers):
                if not _kept(now, read(self._x, first, self._z, second, self._x if second else [])):
                    return None
        return field

    @cached_property
    def _markers(self) -> list[list[int]]:
        """Whatever the format's parser may react to."""
        texts = dict.fromkeys((*self.text_markers, *_TEXT_MARKERS))
        markers = [[token] for token in sorted(self._marks)] + [self.encode(text) for text in texts]
        return [ids for number, ids in enumerate(markers) if ids not in markers[:number]]

    def _ids_of(self, marker: str | int) -> list[int]:
        return [marker] if isinstance(marker, int) else self.encode(marker)


def _parser_of(package: Any) -> list[Any]:
    """The parts of a package's renderer for templates it does not know."""
    parts = (getattr(package, name, None) for name in ("_tool_parser", "_reasoning_parser"))
    return [vars(part) for part in parts if part is not None]


def _ids_in(value: Any) -> set[int]:
    """Numbers anywhere in plain containers."""
    if isinstance(value, dict):
        return _ids_in(list(value.values()))
    if isinstance(value, list | tuple | set | frozenset):
        return set().union(*(_ids_in(item) for item in value))
    return {value} if isinstance(value, int) and not isinstance(value, bool) else set()


class TextSoFar:
    """The text of ids that come one by one, without the characters that later ids may still change."""

    def __init__(self, decode: Callable[[list[int]], str], unsure: frozenset[int] = frozenset()) -> None:
        """Text that ends with one of the ids `unsure` may still change."""
        self._decode, self._unsure = decode, unsure
        self._context: list[int] = []
        self._pending: list[int] = []

    def push(self, token: int) -> str:
        """What has become certain with this id."""
        self._pending.append(token)
        # The end shows whether bytes are missing: a model that writes nothing but bytes must not cost more and more.
        end = self._pending[-_CHARACTER_IDS:]
        if token in self._unsure or (len(end) < len(self._pending) and self._decode(end).endswith(_HALF)):
            return ""
        whole = self._decode([*self._context, *self._pending])
        if whole.endswith(_HALF):
            return ""
        new = whole[len(self._decode(self._context)) :]
        self._context, self._pending = self._pending, []
        return new


class TextReader:
    """Plain text that is continued: streamed unchanged, up to a stop."""

    def __init__(self, decode: Callable[[list[int]], str], stops: tuple[str, ...], stop_ids: Sequence[int]) -> None:
        self._text, self._said, self._streamed = TextSoFar(decode), "", 0
        self._stops, self._stop_ids = tuple(stop for stop in stops if stop), frozenset(stop_ids)

    def feed(self, ids: list[int]) -> Delta:
        self._said += "".join(self._text.push(token) for token in ids if token not in self._stop_ids)
        sure = _without_begun(cut_at_stop(self._said, self._stops), self._stops)
        new, self._streamed = sure[self._streamed :], max(self._streamed, len(sure))
        return Delta(content=new)


class AnswerReader:
    """One answer of a chat, id by id."""

    def __init__(
        self,
        futures: Futures,
        answers: AnswerFormat,
        prompt_ids: list[int],
        tools: Any,
        stops: tuple[str, ...] = (),
    ) -> None:
        """`tools` are the tools as the format's parser takes them; `stops` the strings that end the content."""
        self._futures, self._answers = futures, answers
        self._prompt_ids, self._tools = prompt_ids, tools
        self._stops = tuple(stop for stop in stops if stop)
        self._in_thought = futures.begins_in_thought(prompt_ids)
        self._ids: list[int] = []
        self._markers: tuple[str | int, ...] = ()
        self._streamed: dict[Field, str] = {"reasoning": "", "content": ""}
        self._over = not futures.exact
        self._field: Field | None = None
        self._before = ""  # text of the field before the last marker
        self._since = ""  # text since then
        self._text = TextSoFar(futures.decode, futures.bytes)
        if not self._over:
            self._look()

    def feed(self, ids: list[int]) -> Delta:
        """What has become certain with these ids."""
        for token in ids:
            if self._over or token in self._answers.stops:
                self._over = True
                break
            self._take(token)
        return Delta() if self._over else self._new()

    def _take(self, token: int) -> None:
        self._ids.append(token)
        if token in self._futures.marks:
            self._mark(self._since, token)
            self._look()
            return
        self._since += self._text.push(token)
        match = _first_marker(self._since, self._futures.text_markers)
        if match is not None:
            while match is not None:
                at, marker = match
                self._mark(self._since[:at], marker)
                self._since = self._since[at + len(marker) :]
                match = _first_marker(self._since, self._futures.text_markers)
            self._look()

    def _mark(self, text: str, marker: str | int) -> None:
        self._markers = (*self._markers, *([""] if text.strip() else []), marker)

    def _look(self) -> None:
        """After a marker: which field is open, and what is in it."""
        self._field, self._text = None, TextSoFar(self._futures.decode, self._futures.bytes)
        if sum(marker != "" for marker in self._markers) > MOST_MARKERS:
            self._over = True
            return
        begun = (*self._markers, "") if self._since.strip() else self._markers
        field = self._futures.field_after(begun, self._prompt_ids, self._in_thought)
        if field is None:
            return
        probe = [*self._ids, *self._futures.encode("x")]
        read = self._answers.read(probe, prompt_ids=self._prompt_ids, tools=self._tools)
        text = _texts(read.message)[field]
        before, since = text[:-1], self._since
        since = since if before.endswith(since) else since.lstrip()
        if not text.endswith("x") or not before.endswith(since):
            return
        before = before[: len(before) - len(since)]
        if before.strip() and self._markers[:1] == self._markers[-1:]:
            self._over = True  # a marker as text at the very beginning, which may be that of a header
        # What comes before can be put together with what follows where that is all that decoding does.
        elif not before.endswith(_HALF) and (self._futures.joins or not before.strip()):
            self._field, self._before, self._since = field, before, since

    def _new(self) -> Delta:
        field = self._field
        if field is None or (field == "reasoning" and self._streamed["content"]):
            return Delta()
        text = f"{self._before}{self._since}".lstrip()
        ends = self._futures.text_markers
        if field == "content":
            if text.startswith("{") and self._futures.reads_json_as_call:
                return Delta()
            text, ends = cut_at_stop(text, self._stops), (*ends, *self._stops)
        text, streamed = _without_begun(text, ends).rstrip(), self._streamed[field]
        if len(text) <= len(streamed) or not text.startswith(streamed):
            return Delta()
        self._streamed[field] = text
        new = text[len(streamed) :]
        return Delta(reasoning=new) if field == "reasoning" else Delta(content=new)


def _texts(message: AssistantMessage) -> dict[Field, str]:
    return {"reasoning": str(message.reasoning_content or ""), "content": str(message.content or "")}


def _field_of(now: Reading, more: Reading) -> Field | None:
    """The field that ends with "x" now, and with "xy" where a "y" comes after it."""
    before, after = _texts(now.message), _texts(more.message)
    for field, other in (("content", "reasoning"), ("reasoning", "content")):
        if before[field].endswith("x") and after[field].rstrip("y").rstrip() == before[field]:  # type: ignore[index]
            return field if before[other] == after[other] else None  # type: ignore[index, return-value]
    return None


def _kept(now: Reading, later: Reading) -> bool:
    texts = _texts(later.message)
    return all(texts[field].startswith(text) for field, text in _texts(now.message).items())


def _first_marker(text: str, markers: Sequence[str]) -> tuple[int, str] | None:
    matches = [(text.index(marker), marker) for marker in markers if marker in text]
    return min(matches, default=None)


def _without_begun(text: str, markers: Sequence[str]) -> str:
    """`text` without the longest end of it that may be the beginning of one of `markers`."""
    longest = max((len(marker) for marker in markers), default=0) - 1
    for length in range(min(longest, len(text)), 0, -1):
        if any(marker.startswith(text[-length:]) for marker in markers):
            return text[:-length]
    return text
