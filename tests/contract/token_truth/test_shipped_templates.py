"""Token truth in the formats that ship with `renderers`, whatever is sampled.

1. Every format of the package is tried here, or is named with the reason why it cannot be.
2. The next prompt begins with the prompt before it and what was sampled after it, id for id; so a rollout whose
   history is not edited is one branch. The answers: booleans and numbers as arguments, odd whitespace, no arguments,
   malformed calls, parallel calls, thinking, each also cut off, closed by every other stop, and sampled in pieces that
   the tokenizer would join; markers out of place, halves of a character, nothing at all, and ids at random.
3. What is added is what the package itself adds to the true ids, where it keeps them.
4. What is added is what the format writes there: the same as in the conversation rendered whole.
5. A call that cannot be read is not lost: what was sampled of it is in the message.
6. The same holds with thinking switched on or off, where a format has such a switch; elsewhere the switch is refused.
7. Tools reach the model in every format.
"""

from __future__ import annotations

import asyncio
import random
from functools import lru_cache
from typing import Any

import pytest
from renderers import AutoRendererConfig, create_renderer
from renderers.base import RENDERER_REGISTRY, template_field_names
from scripted_engine import OPENING, SAID_NEXT, TOOL, Rollout
from small_tokenizers import MODELS, split_to_bytes, tokenizer_for

from whet.errors import ConfigError
from whet.inference.rendering.chat_renderer import ChatRenderer
from whet.types import AssistantMessage, Messages, ToolCall, ToolMessage, UserMessage

NOT_COVERED = {
    "default": "is the fallback for unknown templates: test_unknown_templates.py",
    "gpt-oss": "is encoded by openai-harmony, whose vocabulary is downloaded when it is first used",
}
ONE_CALL_ONLY = {"llama-3"}
"""Formats in which an answer has at most one call."""
NO_NEWLINE_FROM_PACKAGE = {"laguna-m.1", "laguna-xs.2"}
"""Formats with a newline after an answer, which the package writes in a whole prompt and leaves out in a longer one."""
COVERED = sorted({*MODELS} - {*NOT_COVERED})
CALLING = 5
"""Which of the answers below is a call with arguments."""
ARGUMENTS = (
    '{"yes": true, "no": false, "nothing": null, "one": 1, "float": 1.0, "text": "true", "deep": [{"a": false}]}'
)


def call(number: int, arguments: str) -> ToolCall:
    """With the id that Kimi writes out; others leave ids out."""
    return ToolCall(f"functions.calculate:{number}", "calculate", arguments)


SAID = (
    AssistantMessage("plain"),
    AssistantMessage("\n\n \tleading"),
    AssistantMessage("trailing \t\n\n"),
    AssistantMessage("doubled\n\n\n\nnewlines  and   spaces\u00a0\u2003here"),
    AssistantMessage("naïve 日本 🎉 e\u0301"),
    AssistantMessage("", tool_calls=[ToolCall("functions.calculate:0", "calculate", ARGUMENTS)]),
    AssistantMessage("", tool_calls=[ToolCall("functions.calculate:0", "calculate", "{}")]),
    AssistantMessage(
        "first", tool_calls=[ToolCall(f"functions.calculate:{i}", "calculate", '{"expression": "1"}') for i in range(3)]
    ),
    AssistantMessage("then", reasoning_content="steps\n\n  of thought"),
    AssistantMessage(
        "", reasoning_content="to the tool", tool_calls=[ToolCall("functions.calculate:0", "calculate", ARGUMENTS)]
    ),
)


@lru_cache(maxsize=64)
def renderer_of(name: str) -> ChatRenderer:
    return ChatRenderer(tokenizer_for(name))


@lru_cache(maxsize=64)
def package_of(name: str) -> Any:
    return create_renderer(tokenizer_for(name), AutoRendererConfig(thinking_retention="all"))


def native(messages: Messages) -> list[dict[str, Any]]:
    """Messages in the form that the package takes."""
    return [
        {**message, "tool_calls": [{"type": "function", "id": made["id"], "function": {**made}} for made in calls]}
        if (calls := message.get("tool_calls"))
        else dict(message)
        for message in messages
    ]


def sampled(name: str, answer: AssistantMessage) -> list[int]:
    """What a model that speaks the format well samples to say `answer`."""
    tools = [{"type": "function", "function": dict(TOOL)}]
    renderer = package_of(name)
    before = renderer.render_ids(native(OPENING), tools=tools, add_generation_prompt=True)
    results = [ToolMessage("3", tool_call_id=made["id"], name=made["name"]) for made in answer.tool_calls or []]
    for after in ([], results or [UserMessage("next")]):  # some formats close an answer by what comes next
        whole = renderer.render_ids(native([*OPENING, answer, *after]), tools=tools)
        start = next((i for i, pair in enumerate(zip(before, whole, strict=False)) if pair[0] != pair[1]), len(before))
        for end, token in enumerate(whole[start:], start=start + 1):
            if token in renderer.get_stop_token_ids():
                return list(whole[start:end])
    raise AssertionError(f"answers have no end in {name}")


@lru_cache(maxsize=64)
def answers_of(name: str) -> list[list[int]]:
    """Everything a model may sample, and more."""
    tokenizer, rng = tokenizer_for(name), random.Random(name)
    stops = list(renderer_of(name).stop_token_ids)
    said = [answer for answer in SAID if name not in ONE_CALL_ONLY or len(answer.tool_calls or []) < 2]
    good = [sampled(name, answer) for answer in said]
    markers = sorted(set(tokenizer.added_tokens_decoder) - set(stops))
    plain = tokenizer.encode("some plain words", add_special_tokens=False)
    half = tokenizer.encode("🎉", add_special_tokens=False)[:1]
    answers = [*good, *(split_to_bytes(tokenizer, ids) for ids in good), *(ids[:-1] for ids in good)]
    answers += [[*plain, stop] for stop in stops] + [[stop] for stop in stops] + [[], half, [*half, stops[0]]]
    answers += [
        [*good[CALLING][: len(good[CALLING]) // 2], stops[0]],
        good[CALLING][: len(good[CALLING]) // 2],
        [*good[CALLING][1:]],
    ]
    answers += [[marker, *plain] for marker in markers] + [[*plain, marker, *plain, stops[-1]] for marker in markers]
    ordinary = [token for token in range(len(tokenizer)) if token not in stops]
    answers += [[*rng.choices(ordinary, k=12), *rng.choices([[], *([stop] for stop in stops)])[0]] for _ in range(10)]
    return answers


def test_1_every_shipped_format_is_tried_or_named_with_a_reason() -> None:
    package_of(COVERED[0])  # the package fills its registry when it is first used
    assert {*COVERED, *NOT_COVERED} == set(RENDERER_REGISTRY)


@pytest.mark.parametrize("tools", [None, [TOOL]], ids=["without tools", "with tools"])
@pytest.mark.parametrize("name", COVERED)
def test_2_whatever_is_sampled_the_next_prompt_begins_with_it(name: str, tools: Any) -> None:
    answers = answers_of(name)
    rollout = Rollout(renderer_of(name), answers, tools)
    asyncio.run(rollout.play())
    assert rollout.engine.branches() == 1
    assert [step["tokens"]["completion_ids"] for step in rollout.state["trajectory"]] == answers


@pytest.mark.parametrize("name", COVERED)
def test_3_what_is_added_is_what_the_package_adds_to_the_true_ids(name: str) -> None:
    renderer, compared = renderer_of(name), 0
    prompt, tools = renderer.render(OPENING, [TOOL]), [{"type": "function", "function": dict(TOOL)}]
    for ids in answers_of(name):
        message = renderer.parse(ids, prompt_ids=prompt, tools=[TOOL])
        added: Messages = [
            ToolMessage("3", tool_call_id=made["id"], name=made["name"]) for made in message.tool_calls or []
        ] or [UserMessage(SAID_NEXT[3])]
        theirs = package_of(name).bridge_to_next_turn(prompt, ids, native(added), tools=tools)
        if theirs is None or theirs.token_ids[: len(prompt) + len(ids)] != prompt + ids:
            continue
        rest = theirs.token_ids[len(prompt) + len(ids) :]
        ours = renderer.extend(prompt, ids, [*OPENING, message], added, [TOOL])
        if ids and ids[-1] in renderer.stop_token_ids:
            newline = (
                renderer.tokenizer.encode("\n", add_special_tokens=False) if name in NO_NEWLINE_FROM_PACKAGE else []
            )
            assert ours in (prompt + ids + rest, prompt + ids + newline + rest)
        else:  # the package also closes a thought that was cut off
            assert ours is not None
            assert rest[-len(ours) + len(prompt) + len(ids) :] == ours[len(prompt) + len(ids) :]
        compared += 1
    assert compared > 30


@pytest.mark.parametrize("name", COVERED)
def test_4_what_is_added_is_what_stands_there_in_the_conversation_rendered_whole(name: str) -> None:
    renderer = renderer_of(name)
    prompt, answer = renderer.render(OPENING, [TOOL]), AssistantMessage("plain")
    ids = sampled(name, answer)
    added: Messages = [UserMessage("Go on.")]
    ours = renderer.extend(prompt, ids, [*OPENING, answer], added, [TOOL])
    assert ours is not None
    whole = renderer.render([*OPENING, answer, *added], [TOOL])
    assert renderer.decode(ours).rpartition("plain")[2] == renderer.decode(whole).rpartition("plain")[2]


@pytest.mark.parametrize("name", COVERED)
def test_5_a_call_that_was_cut_off_is_in_the_message(name: str) -> None:
    renderer, tried = renderer_of(name), 0
    prompt, whole = renderer.render(OPENING, [TOOL]), sampled(name, SAID[CALLING])
    for length in range(1, len(whole)):
        if "calculate" in renderer.decode(whole[:length]):
            message = renderer.parse(whole[:length], prompt_ids=prompt, tools=[TOOL])
            assert "calculate" in f"{message.content}{message.reasoning_content}{message.tool_calls}"
            tried += 1
    assert tried > 10


@pytest.mark.parametrize("thinking", [True, False], ids=["thinking", "not thinking"])
@pytest.mark.parametrize("name", COVERED)
def test_6_a_switch_for_thinking_changes_nothing_of_this(name: str, thinking: bool) -> None:
    rollout = Rollout(renderer_of(name), answers_of(name)[::2], [TOOL])
    if {"enable_thinking", "thinking"} & template_field_names(package_of(name).config):
        asyncio.run(rollout.play(enable_thinking=thinking))
        assert rollout.engine.branches() == 1
    else:
        with pytest.raises(ConfigError, match="no switch for thinking"):
            asyncio.run(rollout.play(enable_thinking=thinking))


@pytest.mark.parametrize("name", COVERED)
def test_7_tools_are_in_the_prompt(name: str) -> None:
    renderer = renderer_of(name)
    text = renderer.decode(renderer.render([UserMessage("u")], [TOOL]))
    assert TOOL.name in text
    assert TOOL.description in text
