"""Which prompts go on from an earlier answer, and which begin a branch.

1. A prompt that repeats the conversation, in other objects or laid out otherwise, goes on from it.
2. A history that was edited, also in place and in the smallest way, is a branch rendered whole.
3. A history that was compacted or forked goes on from the latest answer that is still in it.
4. Conversations that take turns with each other are each continued.
5. Other tools are another prompt. A copied state goes on like the one it was copied from.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from copy import deepcopy
from typing import Any

import pytest
from scripted_engine import TOOL, Rollout
from scripts.tiny_model.tokenizer import build_tokenizer

from whet.inference.rendering.chat_renderer import ChatRenderer
from whet.types import AssistantMessage, Messages, Tool, ToolCall, ToolMessage, UserMessage

RENDERER = ChatRenderer(build_tokenizer())
CALL = '<tool_call>\n{"name": "calculate", "arguments": {"exact": true, "n": 1}}\n</tool_call><|im_end|>'
ANSWERS = [RENDERER.tokenizer.encode(text) for text in (CALL, "two<|im_end|>", "three<|im_end|>", "four<|im_end|>")]


def rollout() -> Rollout:
    return Rollout(RENDERER, ANSWERS, [TOOL])


def ends(made: Rollout) -> list[list[int]]:
    """After each turn, its prompt and what was sampled after it."""
    return [asked.prompt_ids + got.ids for asked, got in zip(made.engine.requests, made.engine.samples, strict=True)]


def continues(made: Rollout, turn: int, earlier: int) -> bool:
    """Whether a turn (from 0) goes on from an earlier one."""
    end = ends(made)[earlier]
    return made.engine.requests[turn].prompt_ids[: len(end)] == end


def rendered_whole(made: Rollout, turn: int) -> bool:
    prompt = made.state["trajectory"][turn]["prompt"]
    return made.engine.requests[turn].prompt_ids == RENDERER.render(prompt, made.tools)


async def begin(made: Rollout) -> Messages:
    """One turn, which is a call, and its result."""
    conversation = await made.turn([UserMessage("one")])
    return [*conversation, ToolMessage("3", tool_call_id="call_0_0")]


def with_call(messages: Messages, **fields: Any) -> Messages:
    call = {**messages[1].tool_calls[0], **fields}
    return [messages[0], AssistantMessage("", tool_calls=[ToolCall(**call)]), *messages[2:]]


SAME: dict[str, Callable[[Messages], Messages]] = {
    "the same objects": list,
    "other objects": deepcopy,
    "plain dicts with empty fields": lambda messages: [{**message, "refusal": None} for message in messages],  # type: ignore[misc]
    "arguments laid out otherwise": lambda messages: with_call(messages, arguments='{"n":1,"exact":true}'),
    "text in parts": lambda messages: [
        UserMessage([{"type": "text", "text": "o"}, {"type": "text", "text": "ne"}]),
        *messages[1:],
    ],
}
EDITED: dict[str, Callable[[Messages], Messages]] = {
    "another user": lambda messages: [UserMessage("one "), *messages[1:]],
    "true is not 1": lambda messages: with_call(messages, arguments='{"exact": 1, "n": 1}'),
    "1 is not 1.0": lambda messages: with_call(messages, arguments='{"exact": true, "n": 1.0}'),
    "another tool": lambda messages: with_call(messages, name="other"),
    "words put into its mouth": lambda messages: [messages[0], AssistantMessage("hm"), *messages[2:]],
    "a message left out": lambda messages: messages[1:],
}


@pytest.mark.parametrize("repeat", SAME.values(), ids=SAME)
def test_1_a_repeated_history_is_continued(repeat: Callable[[Messages], Messages]) -> None:
    made = rollout()

    async def run() -> None:
        await made.turn(repeat(await begin(made)))

    asyncio.run(run())
    assert continues(made, 1, 0)


@pytest.mark.parametrize("edit", EDITED.values(), ids=EDITED)
def test_2_an_edited_history_is_rendered_whole(edit: Callable[[Messages], Messages]) -> None:
    made = rollout()

    async def run() -> None:
        await made.turn(edit(await begin(made)))

    asyncio.run(run())
    assert rendered_whole(made, 1)
    assert not continues(made, 1, 0)


def test_2_a_message_that_is_changed_in_place_is_an_edited_history() -> None:
    made = rollout()

    async def run() -> None:
        conversation = await begin(made)
        conversation = await made.turn(conversation)
        conversation[2]["content"] = "[left out]"  # the same object is in the trajectory
        await made.turn([*conversation, UserMessage("and now?")])

    asyncio.run(run())
    assert continues(made, 1, 0)
    assert rendered_whole(made, 2)


def test_2_an_answer_without_its_thinking_is_an_edited_history() -> None:
    thinking = RENDERER.tokenizer.encode("<think>\nsteps\n</think>\n\nanswer<|im_end|>")
    made = Rollout(RENDERER, [thinking, ANSWERS[1], ANSWERS[2]])

    async def run() -> None:
        await made.turn([UserMessage("one")])
        asked: Messages = [UserMessage("one"), AssistantMessage("answer"), UserMessage("two")]
        conversation = await made.turn(asked)
        await made.turn([*conversation, UserMessage("three")])

    asyncio.run(run())
    assert rendered_whole(made, 1)
    assert continues(made, 2, 1)


def test_3_a_fork_goes_on_from_the_answer_before_it() -> None:
    made = rollout()

    async def run() -> None:
        conversation = await begin(made)
        await made.turn(conversation)
        await made.turn([*conversation[:2], ToolMessage("4", tool_call_id="call_0_0")])
        await made.turn(conversation)  # the same turn again

    asyncio.run(run())
    assert [continues(made, turn, 0) for turn in (1, 2, 3)] == [True, True, True]
    assert made.engine.requests[3].prompt_ids == made.engine.requests[1].prompt_ids


def test_3_a_compacted_history_is_a_branch_that_goes_on() -> None:
    made = rollout()

    async def run() -> None:
        await made.turn(await begin(made))
        conversation = await made.turn([UserMessage("In short: it was 3."), UserMessage("go on")])
        await made.turn([*conversation, UserMessage("and now?")])

    asyncio.run(run())
    assert rendered_whole(made, 2)
    assert continues(made, 3, 2)


def test_4_conversations_that_take_turns_are_each_continued() -> None:
    made = rollout()

    async def run() -> None:
        first = await begin(made)
        second = await made.turn([UserMessage("You are another agent.")])
        await made.turn(first)
        await made.turn([*second, UserMessage("go on")])

    asyncio.run(run())
    assert continues(made, 2, 0)
    assert continues(made, 3, 1)


def test_5_other_tools_are_another_prompt() -> None:
    made = rollout()

    async def run() -> None:
        conversation = await begin(made)
        made.tools = [TOOL, Tool("stop", "Stop.", {"type": "object", "properties": {}})]
        await made.turn(conversation)

    asyncio.run(run())
    assert rendered_whole(made, 1)


def test_5_a_copied_state_goes_on_from_what_was_sampled_before_it_was_copied() -> None:
    made, other = rollout(), rollout()

    async def run() -> None:
        conversation = await begin(made)
        other.state["trajectory"] += json.loads(json.dumps(made.state["trajectory"]))
        await other.turn(conversation)

    asyncio.run(run())
    end = ends(made)[0]
    assert other.engine.requests[0].prompt_ids[: len(end)] == end
