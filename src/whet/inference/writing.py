"""What a model samples to say a given message: the reverse of `reading.py`, for demonstrations that somebody wrote.

Found by rendering, never by looking for text: the prompt that an engine is given, and the same conversation with the
answer in it. The second begins with the first; what follows, up to the token that ends a turn, is the answer.

    prompt            <|im_start|>user\\nHi<|im_end|>\\n<|im_start|>assistant\\n
    with the answer   <|im_start|>user\\nHi<|im_end|>\\n<|im_start|>assistant\\nHello!<|im_end|>\\n
    the answer                                                                 Hello!<|im_end|>
"""

from __future__ import annotations

from collections.abc import Sequence

from whet.errors import ModelError
from whet.inference.rendering import ChatRenderer
from whet.types import AssistantMessage, Messages, Tool, ToolMessage, UserMessage


def answer_ids(
    renderer: ChatRenderer,
    conversation: Messages,
    answer: AssistantMessage,
    tools: Sequence[Tool] | None = None,
    *,
    enable_thinking: bool | None = None,
) -> list[int]:
    """The ids that say `answer` after `conversation`, the token that ends the turn included.

    Raises `ModelError` where the format leaves no exact answer: it writes something else before an answer than it opens
    a turn with, ends answers with nothing that can be seen, or the message itself holds the text that ends a turn.
    """
    _refuse_an_end_inside(renderer, answer)
    prompt = renderer.render(conversation, tools, enable_thinking=enable_thinking)
    results: Messages = [
        ToolMessage("", tool_call_id=call["id"], name=call["name"]) for call in answer.get("tool_calls") or []
    ]
    following: Messages = results or [UserMessage("next")]
    for after in ([], following):  # some formats end an answer by what comes next
        whole = renderer.render(
            [*conversation, answer, *after], tools, enable_thinking=enable_thinking, open_turn=False
        )
        rest = _after(renderer, prompt, whole)
        for end, token in enumerate(rest, start=1):
            if token in renderer.stop_token_ids:
                return rest[:end]
    raise ModelError("the chat template writes no token that ends an answer, so a model could not learn to stop")


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
        "message stands, so its tokens cannot be told from the prompt's. Where thinking is the difference, set "
        "enable_thinking to what the messages do: true with reasoning_content, false without"
    )


def _refuse_an_end_inside(renderer: ChatRenderer, answer: AssistantMessage) -> None:
    said = [str(answer.get("content") or ""), str(answer.get("reasoning_content") or "")]
    said += [f"{call['name']} {call['arguments']}" for call in answer.get("tool_calls") or []]
    for stop in renderer.stop_token_ids:
        if (end := renderer.decode([stop])) and any(end in text for text in said):
            raise ModelError(f"an assistant message holds {end!r}, which ends a turn; take it out of the text")


def _short(text: str) -> str:
    return repr(text if len(text) <= 40 else f"{text[:40]}...")
