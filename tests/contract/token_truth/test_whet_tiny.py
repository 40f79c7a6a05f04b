"""Token truth with whet/tiny, numbered.

1. A rollout's next prompt begins with the earlier prompt and what was sampled after it, id for id.
2. So a rollout of any number of turns, with tools or without, whatever the model wrote, is one branch.
3. Ids, logprobs and versions of a turn are those the engine gave, in order.
4. A turn that rewrites history is a new branch, rendered whole.
5. The engine is notified when a rollout is over.
"""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scripted_engine import TOOL, Rollout
from scripts.tiny_model.tokenizer import build_tokenizer

from whet.inference.rendering.chat_renderer import ChatRenderer
from whet.types import AssistantMessage, Messages, Tool, UserMessage

CALL = '<tool_call>\n{"name": "calculate", "arguments": {"expression": "1+2"}}\n</tool_call>'
ANSWERS = [
    "plain<|im_end|>",
    "two\n\nparagraphs <|im_end|>",
    f"{CALL}<|im_end|>",
    f"before\n{CALL}\n{CALL}<|im_end|>",
    "<think>\nsteps\n</think>\n\nanswer<|im_end|>",
    "<think>never closed<|im_end|>",
    "<think>cut off while thinking",
    "</think> stray<|im_end|>",
    '<tool_call>\n{"name": broken<|im_end|>',
    '<tool_call>\n{"name": "calculate", "arguments": "text"}\n</tool_call><|im_end|>',
    "cut off in the mid",
    "<|endoftext|>",
    "<|im_end|>",
    "<|im_start|>user\nfake turn<|im_end|>",
]
RENDERER = ChatRenderer(build_tokenizer())


def play(answers: list[list[int]], tools: list[Tool] | None) -> Rollout:
    rollout = Rollout(RENDERER, answers, tools)
    asyncio.run(rollout.play())
    return rollout


@pytest.mark.parametrize("tools", [None, [TOOL]], ids=["without tools", "with tools"])
@pytest.mark.parametrize("answer", ANSWERS)
def test_1_the_next_prompt_begins_with_what_was_sampled(answer: str, tools: list[Tool] | None) -> None:
    ids = RENDERER.tokenizer.encode(answer)
    assert play([ids] * 4, tools).engine.branches() == 1


@settings(max_examples=60, deadline=None)
@given(st.lists(st.lists(st.integers(0, 511), min_size=1, max_size=30), min_size=2, max_size=5), st.booleans())
def test_2_any_ids_whatever_make_one_branch(answers: list[list[int]], with_tools: bool) -> None:
    stops = set(RENDERER.stop_token_ids)
    cut = [ids[: next((i + 1 for i, token in enumerate(ids) if token in stops), len(ids))] for ids in answers]
    assert play(cut, [TOOL] if with_tools else None).engine.branches() == 1


def test_3_tokens_of_a_turn_are_those_of_the_engine() -> None:
    answers = [RENDERER.tokenizer.encode(answer) for answer in ANSWERS]
    rollout = play(answers, [TOOL])
    engine, trajectory = rollout.engine, rollout.state["trajectory"]
    for request, sample, step in zip(engine.requests, engine.samples, trajectory, strict=True):
        tokens = step["tokens"]
        assert tokens["prompt_ids"] == request.prompt_ids
        assert tokens["completion_ids"] == sample.ids
        assert tokens["completion_logprobs"] == sample.logprobs
        assert sum(count for _, count in tokens["policy_version"]) == len(sample.ids)


def test_4_a_rewritten_history_is_a_new_branch_rendered_whole() -> None:
    rewritten: Messages = [UserMessage("summary of one"), AssistantMessage("a"), UserMessage("two")]
    rollout = Rollout(RENDERER, [RENDERER.tokenizer.encode("a<|im_end|>")] * 2)

    async def run() -> None:
        await rollout.turn([UserMessage("one")])
        await rollout.turn(rewritten)

    asyncio.run(run())
    assert rollout.engine.branches() == 2
    assert rollout.engine.requests[1].prompt_ids == RENDERER.render(rewritten)


def test_5_a_rollout_that_is_over_is_released() -> None:
    rollout = Rollout(RENDERER, [])
    asyncio.run(rollout.client.release(rollout.state))
    assert rollout.engine.released == ["t"]
