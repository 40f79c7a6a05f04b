"""Between messages and token ids: rendering a prompt, extending it turn by turn, reading a sampled answer.

The work is done by the `renderers` package. `renderer_choice.py` chooses a renderer, and this file holds it to whet's
promise: **a prompt that continues a conversation begins with exactly the ids of the earlier prompt and what was sampled
after it.** Sampled text is never tokenised again, whatever the model wrote, also where a template would drop earlier
thinking. An unknown template is continued where what it writes after an answer can be proved.
Tools that a template ignores are written by whet (`reading.py`).
"""

from __future__ import annotations

import json
import logging
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property, lru_cache, partial
from itertools import takewhile
from typing import Any, NamedTuple, TypeVar, cast

from jinja2 import TemplateError
from renderers import DefaultRendererConfig, Renderer, create_renderer

from whet.errors import RequestRefusedError
from whet.inference.rendering.reading import (
    CALL_MARKERS,
    AnswerFormat,
    as_text,
    ignores_tools,
    takes_system,
    with_tools,
)
from whet.inference.rendering.renderer_choice import (
    choose_renderer,
    text_after_answer,
    thinking_option,
    with_marker_cache,
)
from whet.inference.rendering.streaming import AnswerReader, Futures
from whet.messages import whole_characters
from whet.types import AssistantMessage, Messages, Tool

_Ids = TypeVar("_Ids", list[int], list[int] | None)

_log = logging.getLogger(__name__)
_UNKNOWN = object()
_REMEMBERED = 1024
"""Prompts and turns whose ids are kept."""

_OF_ODD_VALUES = (ValueError, TypeError, LookupError, AttributeError, RecursionError)
"""What a template raises for values of shapes that it does not expect, such as a tool's parameters."""
_ASKED: list[Any] = [{"role": "user", "content": "u"}]
_ANSWERED: dict[str, Any] = {"role": "assistant", "content": "a"}


class ChatRenderer:
    """Renders, extends and parses for one tokenizer. `enable_thinking=None` leaves the template's own default.

    Raises `ConfigError` where `enable_thinking` is given and the format has no such switch.
    """

    def __init__(self, tokenizer: Any) -> None:
        """`tokenizer` is a `transformers` tokenizer. Raises `ModelLoadError` when it has no chat template."""
        self.tokenizer = tokenizer
        self._config = choose_renderer(tokenizer)
        self._switched: dict[bool | None, _Switched] = {}
        self._remembered: OrderedDict[str, Any] = OrderedDict()
        self._in_system: bool | None = None  # where tools that the template ignores are written; None: none were yet
        self.stop_token_ids: tuple[int, ...] = tuple(self._format(None).package.get_stop_token_ids())

    @property
    def name(self) -> str:
        """Which renderer was chosen."""
        return str(cast(Any, self._format(None).package).config.name)

    @cached_property
    def ignores_tools(self) -> bool:
        """Whether the chat template has no place for tools, so that they are written as text."""
        return ignores_tools(self._format(None).package)

    @property
    def calls_as_text(self) -> bool:
        """Whether calls and results are written as text too; formats that `renderers` knows have their own."""
        return self.ignores_tools and isinstance(self._config, DefaultRendererConfig)

    @cached_property
    def longest_token(self) -> int:
        """Characters of the longest token of the vocabulary."""
        return max(map(len, self.tokenizer.get_vocab()))

    def decode(self, ids: list[int]) -> str:
        """Text of ids, special tokens included."""
        return str(self.tokenizer.decode(ids, skip_special_tokens=False))

    def render(
        self,
        messages: Messages,
        tools: Sequence[Tool] | None = None,
        *,
        enable_thinking: bool | None = None,
        open_turn: bool = True,
    ) -> list[int]:
        """Ids of a whole prompt, up to where the model's turn begins. Plain text messages are encoded as they are.

        Without `open_turn` they end where the last message does, as the format writes it.
        Raises `RequestRefusedError` for what the chat template refuses, such as roles in an order it does not know.
        """
        if is_plain_text(messages):
            text = whole_characters("".join(str(message["content"]) for message in messages))
            return list(self.tokenizer.encode(text, add_special_tokens=True))

        def ids() -> list[int]:
            native = _named_tool_results([_native_message(message) for message in messages])
            given = _native_tools(tools)
            if self.ignores_tools:
                native, given = self._with_written_tools(native, given), None
            renderer = self._format(enable_thinking).package
            try:
                return list(renderer.render_ids(native, tools=given, add_generation_prompt=open_turn))
            except (TemplateError, *_OF_ODD_VALUES) as error:
                reason = " ".join(str(error).split())
                raise RequestRefusedError(
                    f"the chat template of this model refuses the conversation: {reason}"
                ) from error

        return self._once("prompt", messages, tools, enable_thinking, open_turn, make=ids)

    def extend(
        self,
        prompt_ids: Sequence[int],
        completion_ids: Sequence[int],
        conversation: Messages,
        new_messages: Messages,
        tools: Sequence[Tool] | None = None,
        *,
        enable_thinking: bool | None = None,
    ) -> list[int] | None:
        """Ids of the next prompt, beginning with `prompt_ids + completion_ids`; None where that cannot be.

        `conversation` is those ids as messages; of it only the calls that `new_messages` answer are used. An answer
        that was cut off is closed first.
        """
        calls = _calls_answered(conversation, new_messages)
        asking = {"role": "assistant", "tool_calls": calls}
        _, *added = _named_tool_results([asking, *(_native_message(message) for message in new_messages)])
        earlier = [*prompt_ids, *completion_ids]
        last = completion_ids[-1] if completion_ids and completion_ids[-1] in self.stop_token_ids else None

        turn = _NewTurn(last, calls, added, _native_tools(tools), enable_thinking)
        if self.calls_as_text:
            turn = turn._replace(calls=[], added=as_text(added), tools=None)
        find = self._after_unknown if isinstance(self._config, DefaultRendererConfig) else self._after_known
        following = self._once("turn", *turn, make=partial(find, turn))
        return None if following is None else earlier + following

    def parse(
        self,
        completion_ids: list[int],
        *,
        prompt_ids: list[int] | None = None,
        tools: Sequence[Tool] | None = None,
        enable_thinking: bool | None = None,
        call_ids: str = "call",
    ) -> AssistantMessage:
        """The sampled ids as a message (see `reading.py`).

        Tool calls are named `<call_ids>_0`, `<call_ids>_1`, ..., so that the same rollout has the same ids every time.
        """
        answers, given = self._format(enable_thinking).answers, _native_tools(tools)
        return answers.read(completion_ids, prompt_ids=prompt_ids, tools=given, call_ids=call_ids).message

    def reader(
        self,
        prompt_ids: list[int],
        tools: Sequence[Tool] | None = None,
        *,
        enable_thinking: bool | None = None,
        stops: tuple[str, ...] = (),
    ) -> AnswerReader:
        """For an answer to `prompt_ids` that arrives id by id; `stops` are the strings that end its content."""
        format = self._format(enable_thinking)
        return AnswerReader(format.futures, format.answers, prompt_ids, _native_tools(tools), stops)

    def parse_text(self, completion_ids: list[int]) -> str:
        """The continuation of plain text: the sampled ids unchanged, without the stop that ends them."""
        ends = completion_ids[-1:] and completion_ids[-1] in self.stop_token_ids
        return self.decode(completion_ids[:-1] if ends else completion_ids)

    def _with_written_tools(self, native: list[dict[str, Any]], tools: Any) -> list[dict[str, Any]]:
        if tools and self._in_system is None:
            self._in_system = takes_system(self._format(None).package, self.tokenizer)
            _log.warning(
                "the chat template of %s ignores tools: they are written into the %s message %s",
                getattr(self.tokenizer, "name_or_path", "") or "this model",
                "system" if self._in_system else "first user",
                "in Hermes form (<tools>, <tool_call>, <tool_response>), and calls are read from the model's text"
                if self.calls_as_text
                else "as JSON (<tools>); calls and results have the model's own format",
            )
        return with_tools(native, tools, in_system=bool(self._in_system), calls_as_text=self.calls_as_text)

    def _after_known(self, turn: _NewTurn) -> list[int] | None:
        """What a renderer of the package writes after an answer whose last id is `last` (None: it was cut off).

        It is given a plain answer instead of the sampled one: in the formats it knows, that depends on how an answer
        was closed and on nothing else. Given the sampled answer, it would re-open or re-close some.
        """
        last, ids = turn.last, self._bridge([], turn)
        if ids is not None and last in (None, ids[0]):
            return ids if last is None else ids[1:]
        ids = None if last is None else self._bridge([last], turn)
        return self._after_rendered(turn) if ids is None else ids

    def _bridge(self, close: list[int], turn: _NewTurn) -> list[int] | None:
        format = self._format(turn.thinking)
        prompt, answer = format.plain_answer
        before = [*prompt, *answer, *close]
        bridged = format.package.bridge_to_next_turn(prompt, before[len(prompt) :], turn.added, tools=turn.tools)
        if bridged is None or bridged.token_ids[: len(before)] != before:
            return None
        return list(bridged.token_ids[len(before) :])

    def _after_rendered(self, turn: _NewTurn) -> list[int] | None:
        """The same where the renderer does not bridge: by rendering a plain answer with `added` after it and without.

        None where the format changes what came before, or its answers have no end that can be seen.
        """
        render = partial(self._format(turn.thinking).package.render_ids, tools=turn.tools)
        calling = {"role": "assistant", "content": "", "tool_calls": _without_arguments(turn.calls)}
        answer = calling if turn.calls else _ANSWERED
        try:
            alone = render([*_ASKED, answer])
            whole = render([*_ASKED, answer, *turn.added], add_generation_prompt=True)
        except ValueError:
            return None  # the format cannot express this at all
        header = len(render(_ASKED, add_generation_prompt=False))
        end = max((i for i, token in enumerate(alone) if token in self.stop_token_ids and i >= header), default=None)
        if end is None or alone[: end + 1] != whole[: end + 1]:
            return None
        return list(whole[end + 1 :] if turn.last == alone[end] else whole[end:])

    def _after_unknown(self, turn: _NewTurn) -> list[int] | None:
        """What an unknown template writes after an answer, as far as that can be proved."""
        options = {} if turn.thinking is None else {"enable_thinking": turn.thinking}
        stops = {self.decode([stop]): stop for stop in self.stop_token_ids}
        calls = _without_arguments(turn.calls)
        reply = text_after_answer(self.tokenizer, calls, turn.added, turn.tools, options, list(stops))
        if reply is None:
            return None
        stop, text = reply
        ids = list(self.tokenizer.encode(stop + text, add_special_tokens=False))
        if not stop:
            return ids
        if ids[:1] != [stops[stop]]:
            return None  # the tokenizer reads the stop together with what follows it
        return ids[1:] if turn.last is not None else ids

    def _once(self, *key: Any, make: Callable[[], _Ids]) -> _Ids:
        """The result of `make`, made once for equal keys: the rollouts of a group have much in common."""
        name = json.dumps(key, default=str)
        # In this order, so that threads may come here at the same time.
        if (ids := self._remembered.get(name, _UNKNOWN)) is _UNKNOWN:
            ids = make()
        self._remembered[name] = ids
        self._remembered.move_to_end(name)
        if len(self._remembered) > _REMEMBERED:
            self._remembered.popitem(last=False)
        return cast(_Ids, ids if ids is None else ids.copy())

    def _format(self, thinking: bool | None) -> _Switched:
        if thinking not in self._switched:
            options = {}
            if thinking is not None:
                options = {thinking_option(self._config, self._format(None).package): thinking}
            cached = with_marker_cache(self.tokenizer)
            package = create_renderer(cached, self._config, chat_template_kwargs=options or None)
            self._switched[thinking] = _Switched(self, package)
        return self._switched[thinking]


class _NewTurn(NamedTuple):
    """What follows an answer: its last id (None where it was cut off), the calls that are answered, the messages."""

    last: int | None
    calls: list[dict[str, Any]]
    added: list[dict[str, Any]]
    tools: Any  # as chat templates take them
    thinking: bool | None


class _Switched:
    """A chat format with one setting of its switch for thinking."""

    def __init__(self, owner: ChatRenderer, package: Renderer) -> None:
        self.package, self._owner = package, owner

    @cached_property
    def answers(self) -> AnswerFormat:
        """How answers are read."""
        owner = self._owner
        vocabulary = owner.tokenizer.get_vocab()
        stops, in_text = owner.stop_token_ids, owner.calls_as_text and CALL_MARKERS[0] not in vocabulary
        return AnswerFormat(self.package, owner.name, owner.decode, stops, vocabulary, calls_in_text=in_text)

    @cached_property
    def futures(self) -> Futures:
        """How answers are read while they are sampled."""
        return Futures(self.answers, self._owner.tokenizer)

    @cached_property
    def plain_answer(self) -> tuple[list[int], list[int]]:
        """A short prompt and an answer to it, not closed yet, as the format writes them."""
        prompt = self.package.render_ids(_ASKED, add_generation_prompt=True)
        whole = self.package.render_ids([*_ASKED, _ANSWERED])
        start = next((i for i, pair in enumerate(zip(prompt, whole, strict=False)) if len({*pair}) > 1), len(prompt))
        answer = takewhile(lambda token: token not in self._owner.stop_token_ids, whole[start:])
        return list(whole[:start]), list(answer)


def is_plain_text(messages: Messages) -> bool:
    """Whether a prompt is text to continue, outside any chat format."""
    return bool(messages) and all(message["role"] == "text" for message in messages)


def _native_message(message: Mapping[str, Any]) -> dict[str, Any]:
    """A whet message in the form `renderers` takes: OpenAI's, with calls nested under `function`.

    Raises `RequestRefusedError` for a part that is no text: a template would leave it out without an error.
    """
    content = message.get("content")
    for part in content if isinstance(content, list) else ():
        if part["type"] != "text":
            raise RequestRefusedError(
                f"this model reads text, and a {message['role']} message has a part of type {part['type']!r}"
            )
    native = {key: value for key, value in message.items() if value is not None and key != "tool_calls"}
    native.setdefault("content", "")
    if message.get("tool_calls"):
        native["tool_calls"] = [_native_call(call) for call in message["tool_calls"]]
    mended: dict[str, Any] = whole_characters(native)
    return mended


def _native_call(call: Mapping[str, Any]) -> dict[str, Any]:
    return {"type": "function", "id": call["id"], "function": {"name": call["name"], "arguments": call["arguments"]}}


def _without_arguments(calls: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The calls with empty arguments: those that a model wrote may not be JSON."""
    return [{**call, "function": {**call["function"], "arguments": {}}} for call in calls]


def _calls_answered(conversation: Messages, new_messages: Messages) -> list[dict[str, Any]]:
    """The calls to which `new_messages` give results, in the order in which they were made."""
    open_calls = {message["tool_call_id"] for message in new_messages if message["role"] == "tool"}
    calls: list[dict[str, Any]] = []
    for message in reversed(conversation):
        if not open_calls:
            break
        answered = [call for call in message.get("tool_calls") or () if call["id"] in open_calls]
        open_calls.difference_update(call["id"] for call in answered)
        calls = [_native_call(call) for call in answered] + calls
    return calls


def _named_tool_results(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Tool results with the name of the tool they answer: some formats write it out."""
    names: dict[str, str] = {}
    for message in messages:
        for call in message.get("tool_calls", ()):
            names[call["id"]] = call["function"]["name"]
        if message["role"] == "tool" and message.get("tool_call_id") in names:
            message.setdefault("name", names[message["tool_call_id"]])
    return messages


def _native_tools(tools: Sequence[Tool] | None) -> Any:
    """Tools as chat templates expect them: OpenAI's wrapping, which is what models were trained on."""
    return list(_wrapped(json.dumps(tools))) if tools else None


@lru_cache(maxsize=64)
def _wrapped(tools: str) -> tuple[dict[str, Any], ...]:
    keys = ("name", "description", "parameters")
    return tuple({"type": "function", "function": {key: tool[key] for key in keys}} for tool in json.loads(tools))
