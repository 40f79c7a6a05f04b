"""An engine that samples given ids, and rollouts of it: messages in, exact ids out, nothing else made up."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

from whet.envs.multiturn_env import completion_messages, step_tokens
from whet.inference.policy_client import PolicyClient
from whet.inference.protocol import Engine, OnTokens, Sample, SampleRequest, VersionRun, WeightUpdate
from whet.inference.rendering.chat_renderer import ChatRenderer
from whet.types import Messages, State, SystemMessage, Tool, ToolMessage, UserMessage

TOOL = Tool("calculate", "Evaluate.", {"type": "object", "properties": {"expression": {"type": "string"}}})
OPENING: Messages = [SystemMessage("You are terse."), UserMessage("What is 1 plus 2?")]
SAID_NEXT = ("Go on.", "Naïve?", "", "  two  spaces\n\n", "tab\there\u00a0", "true", "日本 🎉")


class ScriptedEngine(Engine):
    """Answers with given ids, and remembers what it was asked."""

    version = 3
    recomputes = False

    def __init__(self, answers: Sequence[list[int]]) -> None:
        self.answers = list(answers)
        self.requests: list[SampleRequest] = []
        self.samples: list[Sample] = []
        self.released: list[str] = []

    async def sample(self, request: SampleRequest, *, on_tokens: OnTokens | None = None) -> Sample:
        ids = self.answers[len(self.requests)]
        for token in ids if on_tokens is not None else ():
            on_tokens([token])
        stopped = bool(ids) and ids[-1] in request.params.stop_token_ids
        logprobs = [-random.Random(i).random() for i in ids]
        half = len(ids) // 2
        versions = [VersionRun(3, half), VersionRun(4, len(ids) - half)]
        sample = Sample(ids, logprobs, versions, "stop" if stopped else "length")
        self.requests.append(request)
        self.samples.append(sample)
        return sample

    async def load_weights(self, update: WeightUpdate) -> None:
        raise NotImplementedError

    async def release(self, rollout_key: str) -> None:
        self.released.append(rollout_key)

    async def close(self) -> None: ...

    def branches(self) -> int:
        """How often a prompt did not begin with the prompt before it and what was sampled after that, plus one."""
        count = 1
        for before, sample, after in zip(self.requests, self.samples, self.requests[1:], strict=False):
            earlier = before.prompt_ids + sample.ids
            count += after.prompt_ids[: len(earlier)] != earlier
        return count


class Rollout:
    """One rollout of a policy that samples `answers`, turn by turn."""

    def __init__(self, renderer: ChatRenderer, answers: Sequence[list[int]], tools: list[Tool] | None = None) -> None:
        self.engine, self.tools = ScriptedEngine(answers), tools
        self.client = PolicyClient(self.engine, renderer, max_context=100_000)
        self.state = State(trajectory=[], trajectory_id="t")

    async def turn(self, prompt: Messages, **sampling_args: Any) -> Messages:
        """The model's turn after `prompt`, recorded as an environment records it; the conversation with it."""
        response = await self.client.get_response(prompt, "m", sampling_args, self.tools, state=self.state)
        step = {"prompt": prompt, "completion": completion_messages(response), "response": response}
        self.state["trajectory"].append({**step, "tokens": step_tokens(response)})
        return [*prompt, *step["completion"]]

    async def play(self, **sampling_args: Any) -> None:
        """All answers in turn; after each come the results of its calls, a user's words, or both."""
        rng, prompt = random.Random(0), list(OPENING)
        for _ in self.engine.answers:
            conversation = await self.turn(prompt, **sampling_args)
            calls = conversation[-1].tool_calls or []
            added: Messages = [ToolMessage(rng.choice(SAID_NEXT), tool_call_id=call["id"]) for call in calls]
            if not added or rng.random() < 0.3:
                added.append(UserMessage(rng.choice(SAID_NEXT)))
            prompt = [*conversation, *added]
