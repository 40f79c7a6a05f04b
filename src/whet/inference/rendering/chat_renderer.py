"""Between messages and token ids: rendering a prompt, extending it turn by turn, reading a sampled answer.

The work is done by the `renderers` package. `renderer_choice.py` chooses a renderer, and this file holds it to whet's
promise: **a prompt that continues a conversation begins with exactly the ids of the earlier prompt and what was sampled
after it.** Sampled text is never tokenised again, whatever the model wrote, also where a template would drop earlier
thinking. An unknown template is continued where what it writes after an answer can be proved (`unknown_templates.py`).
"""

from __future__ import annotations

import json
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property, lru_cache
from itertools import takewhile
from typing import Any, TypeVar, cast

from jinja2 import TemplateError
from renderers import DefaultRendererConfig, Renderer

from whet.errors import RequestRefusedError
from whet.inference.rendering.reading import AnswerFormat
from whet.inference.rendering.renderer_choice import choose_renderer, make_renderer, thinking_option
from whet.inference.rendering.streaming import AnswerReader, Futures
from whet.inference.rendering.unknown_templates import text_after_answer
from whet.messages import whole_characters
from whet.types import AssistantMessage, Messages, Tool

_Ids = TypeVar("_Ids", list[int], list[int] | None)

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
        self._renderers: dict[bool | None, Renderer] = {}
        self._formats: dict[bool | None, AnswerFormat] = {}
        self._futures: dict[bool | None, Futures] = {}
        self._remembered: OrderedDict[str, Any] = OrderedDict()
        self.stop_token_ids: tuple[int, ...] = tuple(self._renderer(None).get_stop_token_ids())
        self._plain_answers: dict[bool | None, tuple[list[int], list[int]]] = {}

    @property
    def name(self) -> str:
        """Which renderer was chosen."""
        return str(cast(Any, self._renderer(None)).config.name)

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
            renderer = self._renderer(enable_thinking)
            try:
                return list(renderer.render_ids(native, tools=_native_tools(tools), add_generation_prompt=open_turn))
            except (TemplateError, *_OF_ODD_VALUES) as error:
                reason = " ".join(str(error).split())
                raise RequestRefusedError(
                    f"the chat template of this model refuses the conversation: {reason}"
                ) from error

        return self._once("prompt", messages, tools, enable_thinking, open_turn, make=ids)

    def extend(
        self,
        prompt_ids: list[int],
        completion_ids: list[int],
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

        def find() -> list[int] | None:
            if isinstance(self._config, DefaultRendererConfig):
                return self._after_unknown(last, calls, added, tools, enable_thinking)
            return self._after_known(last, calls, added, tools, enable_thinking)

        following = self._once("turn", last, calls, added, tools, enable_thinking, make=find)
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
        read = self.format_for(enable_thinking).read(
            completion_ids, prompt_ids=prompt_ids, tools=_native_tools(tools), call_ids=call_ids
        )
        return read.message

    def reader(
        self,
        prompt_ids: list[int],
        tools: Sequence[Tool] | None = None,
        *,
        enable_thinking: bool | None = None,
        stops: tuple[str, ...] = (),
    ) -> AnswerReader:
        """For an answer to `prompt_ids` that arrives id by id; `stops` are the strings that end its content."""
        answers = self.format_for(enable_thinking)
        if enable_thinking not in self._futures:
            self._futures[enable_thinking] = Futures(answers, self.tokenizer)
        return AnswerReader(self._futures[enable_thinking], answers, prompt_ids, _native_tools(tools), stops)

    def parse_text(self, completion_ids: list[int]) -> str:
        """The continuation of plain text: the sampled ids unchanged, without the stop that ends them."""
        ends = completion_ids[-1:] and completion_ids[-1] in self.stop_token_ids
        return self.decode(completion_ids[:-1] if ends else completion_ids)

    def format_for(self, enable_thinking: bool | None) -> AnswerFormat:
        """How answers are read."""
        if enable_thinking not in self._formats:
            package = self._renderer(enable_thinking)
            self._formats[enable_thinking] = AnswerFormat(
                package, self.name, self.decode, self.stop_token_ids, self.tokenizer.get_vocab()
            )
        return self._formats[enable_thinking]

    def _after_known(
        self,
        last: int | None,
        calls: list[dict[str, Any]],
        added: list[dict[str, Any]],
        tools: Sequence[Tool] | None,
        thinking: bool | None,
    ) -> list[int] | None:
        """What a renderer of the package writes after an answer whose last id is `last` (None: it was cut off).

        It is given a plain answer instead of the sampled one: in the formats it knows, that depends on how an answer
        was closed and on nothing else. Given the sampled answer, it would re-open or re-close some.
        """
        ids = self._bridge([], added, tools, thinking)
        if ids is not None and last in (None, ids[0]):
            return ids if last is None else ids[1:]
        if last is not None:
            ids = self._bridge([last], added, tools, thinking)
            if ids is not None:
                return ids
        return self._after_rendered(last, calls, added, tools, thinking)

    def _bridge(
        self, close: list[int], added: list[dict[str, Any]], tools: Sequence[Tool] | None, thinking: bool | None
    ) -> list[int] | None:
        prompt, answer = self._plain_answer(thinking)
        before = [*prompt, *answer, *close]
        bridged = self._renderer(thinking).bridge_to_next_turn(
            prompt, before[len(prompt) :], added, tools=_native_tools(tools)
        )
        if bridged is None or bridged.token_ids[: len(before)] != before:
            return None
        return list(bridged.token_ids[len(before) :])

    def _plain_answer(self, thinking: bool | None) -> tuple[list[int], list[int]]:
        """A short prompt and an answer to it, not closed yet, as the format writes them."""
        if thinking not in self._plain_answers:
            renderer = self._renderer(thinking)
            prompt = renderer.render_ids(_ASKED, add_generation_prompt=True)
            whole = renderer.render_ids([*_ASKED, _ANSWERED])
            start = next(
                (i for i, pair in enumerate(zip(prompt, whole, strict=False)) if len({*pair}) > 1), len(prompt)
            )
            answer = list(takewhile(lambda token: token not in self.stop_token_ids, whole[start:]))
            self._plain_answers[thinking] = list(whole[:start]), answer
        return self._plain_answers[thinking]

    def _after_rendered(
        self,
        last: int | None,
        calls: list[dict[str, Any]],
        added: list[dict[str, Any]],
        tools: Sequence[Tool] | None,
        thinking: bool | None,
    ) -> list[int] | None:
        """The same where the renderer does not bridge: by rendering a plain answer with `added` after it and without.

        None where the format changes what came before, or its answers have no end that can be seen.
        """
        renderer, given = self._renderer(thinking), _native_tools(tools)
        calling = {"role": "assistant", "content": "", "tool_calls": _without_arguments(calls)}
        answer = calling if calls else _ANSWERED
        try:
            alone = renderer.render_ids([*_ASKED, answer], tools=given)
            whole = renderer.render_ids([*_ASKED, answer, *added], tools=given, add_generation_prompt=True)
        except ValueError:
            return None  # the format cannot express this at all
        header = len(renderer.render_ids(_ASKED, tools=given, add_generation_prompt=False))
        end = max((i for i, token in enumerate(alone) if token in self.stop_token_ids and i >= header), default=None)
        if end is None or alone[: end + 1] != whole[: end + 1]:
            return None
        return list(whole[end + 1 :] if last == alone[end] else whole[end:])

    def _after_unknown(
        self,
        last: int | None,
        calls: list[dict[str, Any]],
        added: list[dict[str, Any]],
        tools: Sequence[Tool] | None,
        thinking: bool | None,
    ) -> list[int] | None:
        """What an unknown template writes after an answer, as far as that can be proved."""
        options = {} if thinking is None else {"enable_thinking": thinking}
        stops = {self.decode([stop]): stop for stop in self.stop_token_ids}
        found = text_after_answer(
            self.tokenizer, _without_arguments(calls), added, _native_tools(tools), options, list(stops)
        )
        if found is None:
            return None
        stop, text = found
        ids = list(self.tokenizer.encode(stop + text, add_special_tokens=False))
        if not stop:
            return ids
        if ids[:1] != [stops[stop]]:
            return None  # the tokenizer reads the stop together with what follows it
        return ids[1:] if last is not None else ids

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

    def _renderer(self, enable_thinking: bool | None) -> Renderer:
        if enable_thinking not in self._renderers:
            options = None
            if enable_thinking is not None:
                options = {thinking_option(self._config, self._renderer(None)): enable_thinking}
            self._renderers[enable_thinking] = make_renderer(self.tokenizer, self._config, options)
        return self._renderers[enable_thinking]


def is_plain_text(messages: Messages) -> bool:
    """Whether a prompt is text to continue, outside any chat format."""
    return bool(messages) and all(message["role"] == "text" for message in messages)


def _native_message(message: Mapping[str, Any]) -> dict[str, Any]:
    """A whet message in the form `renderers` takes: OpenAI's, with calls nested under `function`.

    Raises `RequestRefusedError` for a part that is no text: a template would leave it out without a word.
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
    asked = {message["tool_call_id"] for message in new_messages if message["role"] == "tool"}
    calls: list[dict[str, Any]] = []
    for message in reversed(conversation):
        if not asked:
            break
        answered = [call for call in message.get("tool_calls") or () if call["id"] in asked]
        asked.difference_update(call["id"] for call in answered)
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
