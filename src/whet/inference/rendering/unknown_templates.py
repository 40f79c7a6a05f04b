"""What an unknown chat template writes after an answer, where that can be proved.

A template is text with holes; it says nothing of where an answer ends. So it is tried out: it renders a made-up
conversation whose answer is a marker, with the new messages after it and without. What comes after the marker is
what follows an answer, and it can be put behind any ids that were sampled, provided that

* the marker is there once, with the conversation before it rendered as it was when there was nothing after it, so the
  template neither moves, nor edits, nor adds to what came before (an empty thought may be dropped);
* what follows the answer alone comes first behind the marker: the template closes an answer in one way;
* a longer conversation before the answer gives the same: nothing is counted or looked up further back.

Otherwise the answer is None, and the caller renders the conversation whole.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from jinja2 import TemplateError

_MARKER = "whet-answer-marker"
_EARLIER: tuple[dict[str, Any], ...] = ({"role": "user", "content": "p"}, {"role": "assistant", "content": "q"})
_ASKED: tuple[dict[str, Any], ...] = ({"role": "user", "content": "u"},)


def text_after_answer(
    tokenizer: Any,
    calls: Sequence[Mapping[str, Any]],
    added: list[dict[str, Any]],
    tools: Any,
    options: Mapping[str, Any],
    stops: Sequence[str],
) -> tuple[str, str] | None:
    """How an answer is closed (one of `stops`, or "" where it is not), and what follows: `added` and a new turn.

    `calls` are the tool calls of the answer, for templates that write results only after them; `options` are passed to
    the template. None where nothing is proved.
    """

    def render(messages: Sequence[Mapping[str, Any]], *, turn: bool = False) -> str:
        return str(
            tokenizer.apply_chat_template(
                list(messages), tools=tools, add_generation_prompt=turn, tokenize=False, **options
            )
        )

    def follows(before: Sequence[Mapping[str, Any]]) -> tuple[str, str] | None:
        prompt, alone = render(before), render([*before, answer])
        whole = render([*before, answer, *readable], turn=True)
        if alone.count(_MARKER) != 1 or whole.count(_MARKER) != 1:
            return None
        head, close = alone.split(_MARKER)
        head_now, after = whole.split(_MARKER)
        kept = head_now.startswith(prompt) and head.startswith(head_now)
        return (close, after) if kept and after.startswith(close) else None

    answer: dict[str, Any] = {"role": "assistant", "content": _MARKER}
    if calls:
        answer["tool_calls"] = list(calls)
    readable = [_readable_calls(message) for message in added]
    try:
        reply = follows(_ASKED)
        same = reply is not None and reply == follows([*_EARLIER, *_ASKED])
    except (TemplateError, TypeError, ValueError, KeyError):
        return None  # the template refuses such a conversation, so nothing is proved
    if reply is None or not same:
        return None
    close, after = reply
    ends = [(close.rfind(stop), stop) for stop in stops if stop in close]
    if ends:
        where, stop = max(ends)
        return stop, after[where + len(stop) :]
    return None if calls else ("", after)  # without a stop, the answer's calls cannot be separated from what follows


def _readable_calls(message: Mapping[str, Any]) -> dict[str, Any]:
    """The message with the arguments of its calls read: many templates go through them as a dict."""
    mended = dict(message)
    if mended.get("tool_calls"):
        mended["tool_calls"] = [
            {**call, "function": {**call["function"], "arguments": _read(call["function"]["arguments"])}}
            for call in mended["tool_calls"]
        ]
    return mended


def _read(arguments: Any) -> Any:
    try:
        return json.loads(arguments)
    except (TypeError, ValueError, RecursionError):
        return arguments
