"""What turn k of a conversation costs: as much as turn 2, whatever k.

1. Continuing renders and encodes only the new messages, in formats that are known and in those that are not.
2. It looks at each earlier message once and reads no earlier tool call again.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable
from typing import Any

import pytest
from scripted_engine import OPENING, TOOL, Rollout
from scripts.tiny_model.tokenizer import build_tokenizer
from small_tokenizers import tokenizer_for
from test_shipped_templates import COVERED, SAID, sampled
from test_unknown_templates import CONTINUED
from test_unknown_templates import renderer_of as unknown

from whet.inference import policy_client
from whet.inference.rendering.chat_renderer import ChatRenderer
from whet.types import Messages, ToolMessage, UserMessage

TURNS = 25
TINY_CALL = '<tool_call>\n{"name": "calculate", "arguments": {"expression": "1+2"}}\n</tool_call><|im_end|>'
UNKNOWN_CALL = '<tool_call>\n{"name": "calculate", "arguments": {"x": 1}}\n</tool_call></s>'


class Counting:
    """A tokenizer that counts the characters it encodes; what templates render is encoded by it too."""

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        self._count = [0]  # one for all shallow copies

    @property
    def characters(self) -> int:
        return self._count[0]

    @characters.setter
    def characters(self, count: int) -> None:
        self._count[0] = count

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or name == "_tokenizer":  # what `copy` asks for before there is anything
            raise AttributeError(name)
        return getattr(self._tokenizer, name)

    def __call__(self, text: Any, *args: Any, **kwargs: Any) -> Any:
        self.characters += len(text)
        return self._tokenizer(text, *args, **kwargs)

    def encode(self, text: str, *args: Any, **kwargs: Any) -> Any:
        self.characters += len(text)
        return self._tokenizer.encode(text, *args, **kwargs)

    def apply_chat_template(self, messages: Any, *args: Any, **kwargs: Any) -> Any:
        text = self._tokenizer.apply_chat_template(messages, *args, **{**kwargs, "tokenize": False})
        self.characters += len(text)
        return self._tokenizer.encode(text, add_special_tokens=False) if kwargs.get("tokenize", True) else text


def characters_of_turns(tokenizer: Any, answer: list[int]) -> list[int]:
    """Characters rendered or encoded in each of the turns of one rollout, which all say different things."""
    counting = Counting(tokenizer)
    rollout, spent = Rollout(ChatRenderer(counting), [answer] * TURNS, [TOOL]), []

    async def play() -> None:
        prompt: Messages = list(OPENING)
        for number in range(TURNS):
            before = counting.characters
            conversation = await rollout.turn(prompt)
            spent.append(counting.characters - before)
            results = [
                ToolMessage(f"{number:03d}", tool_call_id=made["id"]) for made in conversation[-1].tool_calls or []
            ]
            prompt = [*conversation, *(results or [UserMessage(f"{number:03d}")])]

    asyncio.run(play())
    assert rollout.engine.branches() == 1
    return spent


def tiny() -> tuple[Any, list[int]]:
    tokenizer = build_tokenizer()
    return tokenizer, tokenizer.encode(TINY_CALL)


def template(kind: str) -> Callable[[], tuple[Any, list[int]]]:
    def make() -> tuple[Any, list[int]]:
        tokenizer = unknown(CONTINUED[kind]).tokenizer
        return tokenizer, tokenizer.encode(UNKNOWN_CALL, add_special_tokens=False)

    return make


def shipped(name: str) -> Callable[[], tuple[Any, list[int]]]:
    return lambda: (tokenizer_for(name), sampled(name, SAID[-1]))


MADE = {"whet/tiny": tiny, **{kind: template(kind) for kind in CONTINUED}, **{name: shipped(name) for name in COVERED}}


@pytest.mark.parametrize("made", MADE.values(), ids=MADE)
def test_1_a_turn_renders_only_what_is_new(made: Callable[[], tuple[Any, list[int]]]) -> None:
    first, second, third, *later = characters_of_turns(*made())
    assert max(later) <= third + 8  # ids of calls grow by a digit where they are written out
    assert max(later) <= second
    assert first > 0


def test_2_a_turn_reads_no_earlier_call_again(monkeypatch: pytest.MonkeyPatch) -> None:
    tokenizer, answer = tiny()
    meant, written = [], []
    as_meant, as_written = policy_client.as_meant, policy_client.as_written
    monkeypatch.setattr(policy_client, "as_meant", lambda message: (meant.append(1), as_meant(message))[1])
    monkeypatch.setattr(policy_client, "as_written", lambda message: (written.append(1), as_written(message))[1])
    rollout, read, looked_at = Rollout(ChatRenderer(tokenizer), [answer] * TURNS, [TOOL]), [], []

    async def play() -> None:
        prompt: Messages = list(OPENING)
        for _ in range(TURNS):
            meant.clear()
            written.clear()
            conversation = await rollout.turn(prompt)
            read.append(len(meant))
            looked_at.append(len(written))
            prompt = [*conversation, ToolMessage("3", tool_call_id=conversation[-1].tool_calls[0]["id"])]

    asyncio.run(play())
    assert max(read[1:]) == read[1]
    assert all(now <= before + 6 for before, now in itertools.pairwise(looked_at))
