"""The ids that a model would sample for a given message: the reverse of `reading.py`, for written demonstrations.

Found by rendering, never by looking for text: the prompt that an engine is given, and the same conversation with the
answer in it. The second begins with the first; what follows, up to the token that ends a turn, is the answer.

    prompt            <|im_start|>user\\nHi<|im_end|>\\n<|im_start|>assistant\\n
    with the answer   <|im_start|>user\\nHi<|im_end|>\\n<|im_start|>assistant\\nHello!<|im_end|>\\n
    the answer                                                                 Hello!<|im_end|>

It has to read back as the message. Formats that write an empty thought before the last answer of a conversation and
none before earlier ones have two forms of a message without one: with `reasoning_content` absent it is written without,
with `reasoning_content` "" it is written with the empty thought.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from whet.errors import ModelError
from whet.messages import content_text
from whet.types import AssistantMessage, Messages, Tool, ToolMessage, UserMessage

if TYPE_CHECKING:
    from whet.inference.rendering.chat_renderer import ChatRenderer

END_OF_THOUGHT = "</think>"


def answer_ids(
    renderer: ChatRenderer,
    conversation: Messages,
    answer: AssistantMessage,
    tools: Sequence[Tool] | None = None,
    *,
    enable_thinking: bool | None = None,
) -> list[int]:
    """The ids of `answer` after `conversation`, the token that ends the turn included.

    Raises `ModelError` where the format leaves no exact answer: it writes something else before an answer than it opens
    a turn with, leaves out part of the message, ends answers with nothing that can be seen, or the message itself holds
    the text that ends a turn.
    """
    _refuse_an_end_inside(renderer, answer)
    prompt = renderer.render(conversation, tools, enable_thinking=enable_thinking)
    candidates: list[list[int]] = []
    lost = ""
    refusal = ModelError("the chat template writes no token that ends an answer, so a model could not learn to stop")
    for whole in _rendered(renderer, conversation, answer, tools, enable_thinking):
        try:
            ids = _after(renderer, prompt, whole)
        except ModelError as error:
            refusal = error
            continue
        end = next((number for number, token in enumerate(ids, start=1) if token in renderer.stop_token_ids), None)
        if end is None:
            continue
        read = renderer.parse(ids[:end], prompt_ids=prompt, tools=tools, enable_thinking=enable_thinking)
        if lost := _lost(renderer, answer, ids[:end], read):
            continue
        if _has_thought(answer) or END_OF_THOUGHT not in renderer.decode(ids[:end]):
            return ids[:end]
        candidates.append(ids[:end])  # with a thought that the message does not have; there may be a way without
    if candidates:
        return min(candidates, key=len)
    if lost:
        raise ModelError(f"the chat template does not write the {lost} of this message as it is; mend the message")
    raise refusal


def _rendered(
    renderer: ChatRenderer,
    conversation: Messages,
    answer: AssistantMessage,
    tools: Sequence[Tool] | None,
    thinking: bool | None,
) -> Iterator[list[int]]:
    """The conversation with its answer: as its end, and with more after it, since some formats end an answer by what
    comes next."""
    results: Messages = [
        ToolMessage("", tool_call_id=call["id"], name=call["name"]) for call in answer.get("tool_calls") or []
    ]
    following: Messages = results or [UserMessage("next")]
    for after in ([], following):
        yield renderer.render([*conversation, answer, *after], tools, enable_thinking=thinking, open_turn=False)


def _after(renderer: ChatRenderer, prompt: list[int], whole: list[int]) -> list[int]:
    """What of `whole` follows `prompt`."""
    if whole[: len(prompt)] == prompt:
        return whole[len(prompt) :]
    # The end of the prompt may have been read as one token with what follows it: a newline and another one.
    start = next((i for i, pair in enumerate(zip(prompt, whole, strict=False)) if pair[0] != pair[1]), len(whole))
    opened, written = renderer.decode(prompt[start:]), renderer.decode(whole[start:])
    if written.startswith(opened):
        rest: list[int] = renderer.tokenizer.encode(written[len(opened) :], add_special_tokens=False)
        if renderer.decode([*prompt[start:], *rest]) == written:
            return rest
    raise ModelError(
        f"the chat template opens the model's turn with {_short(opened)} and writes {_short(written)} where this "
        "message stands, so its tokens cannot be split from the prompt's. Where thinking is the difference, set "
        "enable_thinking to what the messages do: true with reasoning_content, false without"
    )


def _lost(renderer: ChatRenderer, answer: AssistantMessage, ids: list[int], read: AssistantMessage) -> str:
    """What of a message is not in its ids; empty where all of it is."""
    if calls := answer.get("tool_calls") or []:  # what a template makes of arguments may not be read as a call again
        text = " ".join(_words(renderer.decode(ids)))
        if not all(call["name"] in text for call in calls):
            return "tool calls"
        parts = {"reasoning_content": str(answer.get("reasoning_content") or ""), "content": _content(answer)}
        return next((name for name, part in parts.items() if " ".join(_words(part)) not in text), "")
    if _words(_all(answer)) != _words(_all(read)):
        return "reasoning_content" if answer.get("reasoning_content") else "content"
    return ""


def _all(message: AssistantMessage) -> str:
    return f"{message.get('reasoning_content') or ''} {_content(message)}"


def _content(message: AssistantMessage) -> str:
    return content_text(message.get("content"))


def _words(text: str) -> list[str]:
    """Formats differ in the whitespace they keep, and some take thoughts in content."""
    return text.replace("<think>", " ").replace(END_OF_THOUGHT, " ").split()


def _has_thought(answer: AssistantMessage) -> bool:
    return answer.get("reasoning_content") is not None or END_OF_THOUGHT in _content(answer)


def _refuse_an_end_inside(renderer: ChatRenderer, answer: AssistantMessage) -> None:
    texts = [_content(answer), str(answer.get("reasoning_content") or "")]
    texts += [f"{call['name']} {call['arguments']}" for call in answer.get("tool_calls") or []]
    for stop in renderer.stop_token_ids:
        if (end := renderer.decode([stop])) and any(end in text for text in texts):
            raise ModelError(f"an assistant message holds {end!r}, which ends a turn; take it out of the text")


def _short(text: str) -> str:
    return repr(text if len(text) <= 40 else f"{text[:40]}...")
