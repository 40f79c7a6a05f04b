"""Token truth, numbered.

1. A rollout's next prompt begins with the earlier prompt and what was sampled after it, id for id.
2. So a rollout of any number of turns, with tools or without, whatever the model wrote, is one branch.
3. Ids, logprobs and versions of a turn are those the engine gave, in order.
4. A turn that rewrites history is a new branch, rendered whole.
5. The engine is told when a rollout is over.
"""

from __future__ import annotations

import asyncio
import random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("torch")

from whet.inference.policy_client import PolicyClient
from whet.inference.protocol import Sample, SampleRequest, VersionRun, WeightUpdate
from whet.inference.rendering import ChatRenderer
from whet.models.tokenizer import build_tokenizer
from whet.types import AssistantMessage, Messages, State, SystemMessage, Tool, ToolMessage, UserMessage

TOOL = Tool("calculate", "Evaluate.", {"type": "object", "properties": {"expression": {"type": "string"}}})
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


class ScriptedEngine:
    """Answers with given ids, and remembers what it was asked."""

    version = 3

    def __init__(self, answers: list[list[int]]) -> None:
        self.answers = answers
        self.requests: list[SampleRequest] = []
        self.samples: list[Sample] = []
        self.released: list[str] = []

    async def sample(self, request: SampleRequest) -> Sample:
        ids = self.answers[len(self.requests)]
        stopped = bool(ids) and ids[-1] in request.params.stop_token_ids
        logprobs = [-random.Random(i).random() for i in ids]
        half = len(ids) // 2
        sample = Sample(
            ids, logprobs, [VersionRun(3, half), VersionRun(4, len(ids) - half)], "stop" if stopped else "length"
        )
        self.requests.append(request)
        self.samples.append(sample)
        return sample

    async def load_weights(self, update: WeightUpdate) -> None:
        raise NotImplementedError

    async def release(self, rollout_key: str) -> None:
        self.released.append(rollout_key)

    async def close(self) -> None: ...


def new_state() -> State:
    return State(trajectory=[], trajectory_id="t")


def client_of(engine: ScriptedEngine) -> PolicyClient:
    return PolicyClient(engine, RENDERER, max_context=4096)


async def turn(
    client: PolicyClient, prompt: Messages, state: State, tools: list[Tool] | None = None, **args: Any
) -> None:
    response = await client.get_response(prompt, "whet/tiny", args, tools, state=state)
    message = {
        key: response.message[key] for key in ("content", "tool_calls", "reasoning_content") if key in response.message
    }
    state["trajectory"].append(
        {
            "prompt": prompt,
            "completion": [AssistantMessage(**message)],
            "response": response,
            "tokens": response.message.tokens,
        }
    )


async def play(answers: list[list[int]], tools: list[Tool] | None, rng: random.Random) -> tuple[ScriptedEngine, State]:
    engine, state = ScriptedEngine(answers), new_state()
    client = client_of(engine)
    prompt: Messages = [SystemMessage("You are terse."), UserMessage("What is 1 plus 2?")]
    for _ in answers:
        await turn(client, prompt, state, tools)
        last = state["trajectory"][-1]
        calls = last["completion"][0].tool_calls or []
        added: Messages = [ToolMessage("3", tool_call_id=call["id"]) for call in calls]
        if not added or rng.random() < 0.3:
            added.append(UserMessage(rng.choice(["Go on.", "Naïve?", ""])))
        prompt = [*last["prompt"], *last["completion"], *added]
    return engine, state


def branches(engine: ScriptedEngine) -> int:
    count = 1
    for before, sample, after in zip(engine.requests, engine.samples, engine.requests[1:], strict=False):
        earlier = before.prompt_ids + sample.ids
        count += after.prompt_ids[: len(earlier)] != earlier
    return count


@pytest.mark.parametrize("tools", [None, [TOOL]], ids=["without tools", "with tools"])
@pytest.mark.parametrize("answer", ANSWERS)
def test_1_the_next_prompt_begins_with_what_was_sampled(answer: str, tools: list[Tool] | None) -> None:
    ids = RENDERER.tokenizer.encode(answer)
    engine, _ = asyncio.run(play([ids] * 4, tools, random.Random(0)))
    assert branches(engine) == 1


@settings(max_examples=60, deadline=None)
@given(st.lists(st.lists(st.integers(0, 511), min_size=1, max_size=30), min_size=2, max_size=5), st.booleans())
def test_2_any_ids_whatever_make_one_branch(answers: list[list[int]], with_tools: bool) -> None:
    stops = set(RENDERER.stop_token_ids)
    cut = [ids[: next((i + 1 for i, token in enumerate(ids) if token in stops), len(ids))] for ids in answers]
    engine, _ = asyncio.run(play(cut, [TOOL] if with_tools else None, random.Random(0)))
    assert branches(engine) == 1


def test_3_tokens_of_a_turn_are_those_of_the_engine() -> None:
    answers = [RENDERER.tokenizer.encode(answer) for answer in ANSWERS]
    engine, state = asyncio.run(play(answers, [TOOL], random.Random(0)))
    for request, sample, step in zip(engine.requests, engine.samples, state["trajectory"], strict=True):
        tokens = step["tokens"]
        assert tokens["prompt_ids"] == request.prompt_ids
        assert tokens["completion_ids"] == sample.ids
        assert tokens["completion_logprobs"] == sample.logprobs
        assert sum(count for _, count in tokens["policy_version"]) == len(sample.ids)


def test_4_a_rewritten_history_is_a_new_branch_rendered_whole() -> None:
    async def run() -> ScriptedEngine:
        engine, state = ScriptedEngine([RENDERER.tokenizer.encode("a<|im_end|>")] * 2), new_state()
        client = client_of(engine)
        await turn(client, [UserMessage("one")], state)
        await turn(client, [UserMessage("summary of one"), AssistantMessage("a"), UserMessage("two")], state)
        return engine

    engine = asyncio.run(run())
    assert branches(engine) == 2
    whole = RENDERER.render([UserMessage("summary of one"), AssistantMessage("a"), UserMessage("two")])
    assert engine.requests[1].prompt_ids == whole


def test_5_a_rollout_that_is_over_is_released() -> None:
    engine = ScriptedEngine([])
    asyncio.run(client_of(engine).release(new_state()))
    assert engine.released == ["t"]
