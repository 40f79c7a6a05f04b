"""Which renderer of the `renderers` package a tokenizer gets, and how that renderer is made.

A model whose chat template is the Qwen3 format (compared by what it renders, not by its name, so that fine-tunes and
exports count too) gets the Qwen3 renderer. Models the package knows by name get theirs. All others are rendered by
their own template.

What an unknown chat template writes after an answer, where that can be proved.

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

import copy
import json
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any, cast

from jinja2 import TemplateError
from renderers import (
    AutoRendererConfig,
    DefaultRendererConfig,
    Qwen3RendererConfig,
    Renderer,
    RendererConfig,
    create_renderer,
)
from renderers.base import MODEL_RENDERER_MAP, template_field_names

from whet.errors import ConfigError, ModelLoadError
from whet.inference.rendering.reading import PROBE_TOOL

LONGEST_MARKER = 64
"""Characters of a text that counts as a marker."""
_QWEN3_MARKERS = (
    "<|im_start|>",
    "<|im_end|>",
    "<|endoftext|>",
    "<tool_call>",
    "</tool_call>",
    "<tool_response>",
    "</think>",
)
_PROBE: list[dict[str, Any]] = [
    {"role": "system", "content": "s"},
    {"role": "user", "content": "u"},
    {"role": "assistant", "content": "a"},
    {"role": "user", "content": "v"},
]


def choose_renderer(tokenizer: Any) -> RendererConfig:
    """The renderer for the chat format of this tokenizer. Raises `ModelLoadError` where it has no chat template."""
    if getattr(tokenizer, "name_or_path", "") in MODEL_RENDERER_MAP:
        return AutoRendererConfig(thinking_retention="all")
    if not getattr(tokenizer, "chat_template", None):
        raise ModelLoadError(
            f"the tokenizer of {getattr(tokenizer, 'name_or_path', 'this model')!r} has no chat template; "
            "use an instruction-tuned model, or add a chat_template to tokenizer_config.json"
        )
    if _writes_qwen3(tokenizer):
        return Qwen3RendererConfig(thinking_retention="all")
    has_hermes_calls = "<tool_call>" in tokenizer.get_vocab()
    return DefaultRendererConfig(tool_parser="qwen3" if has_hermes_calls else None)


def _writes_qwen3(tokenizer: Any) -> bool:
    """Whether the chat template and the Qwen3 renderer agree on a conversation, with tools and without."""
    vocabulary = tokenizer.get_vocab()
    if any(marker not in vocabulary for marker in _QWEN3_MARKERS):
        return False
    try:
        renderer = create_renderer(tokenizer, Qwen3RendererConfig())
    except Exception:  # it asserts that the tokenizer has each of its special tokens
        return False
    for tools in (None, [PROBE_TOOL]):
        expected = tokenizer.apply_chat_template(_PROBE, tools=tools, add_generation_prompt=True, return_dict=False)
        got = renderer.render_ids(_PROBE, tools=tools, add_generation_prompt=True)
        if list(expected) != list(got):
            return False
    return True


def thinking_option(config: RendererConfig, renderer: Renderer) -> str:
    """The template option that turns thinking on and off. Raises `ConfigError` for a format without one."""
    if isinstance(config, DefaultRendererConfig):
        return "enable_thinking"  # a template without this option ignores it
    known = template_field_names(cast(Any, renderer).config)
    for name in ("enable_thinking", "thinking"):
        if name in known:
            return name
    raise ConfigError("the chat format of this model has no switch for thinking; leave out 'enable_thinking'")


def with_marker_cache(tokenizer: Any) -> Any:
    """A copy of the tokenizer whose `encode` caches short texts; the original is not changed.

    The `renderers` package looks up the same few markers (`<|im_start|>assistant` and similar) for every answer that it
    reads. That was a fifth of the processor time of a run's own process while an engine and a learner run concurrently.
    """
    encode = tokenizer.encode

    @lru_cache(maxsize=4096)
    def known(text: str, special: bool) -> tuple[int, ...]:
        return tuple(encode(text, add_special_tokens=special))

    def encode_once(text: Any, *args: Any, **options: Any) -> Any:
        if (
            isinstance(text, str)
            and len(text) <= LONGEST_MARKER
            and not args
            and options.keys() == {"add_special_tokens"}
        ):
            return list(known(text, bool(options["add_special_tokens"])))
        return encode(text, *args, **options)

    cached = copy.copy(tokenizer)
    cached.encode = encode_once
    return cached


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
