"""The models of the session's own process, as workers ask for them: a turn at a time, each rollout with its own memory.

The worker has the rollout; here is only as much of its state as a model of this process looks at: which rollout it is
and how many turns it has taken. What the model remembers of it goes when the worker says that it is over, or dies.
"""

from __future__ import annotations

import asyncio
import json
from typing import Any

from whet.clients.client import Client
from whet.evals.model import Models
from whet.evals.workers.child import Child
from whet.evals.workers.frames import error_to_words
from whet.messages import normalize_messages
from whet.types import State, Tool


class Asked:
    """Questions of workers, under way."""

    def __init__(self, models: Models) -> None:
        self._models = models
        self._questions: dict[tuple[int, int], asyncio.Task[None]] = {}  # by worker and its number of the question
        self._rollouts: dict[tuple[int, str], tuple[Client[Any, Any, Any, Any], State]] = {}
        self._releasing: set[asyncio.Task[None]] = set()

    async def open(self, evaluation: int) -> None:
        """Have the model of an evaluation ready: loading it is no part of the time of whichever rollout asks first.

        Raises `WhetError` where it cannot be had.
        """
        await self._models.client(evaluation)

    def hear(self, child: Child, head: dict[str, Any], body: bytes) -> None:
        """A question, or that one needs no answer any more, or that a rollout is over."""
        loop = asyncio.get_running_loop()
        if head["kind"] == "ask":
            key = child.number, head["number"]
            task = self._questions[key] = loop.create_task(self._answer(child, head, json.loads(body)))
            task.add_done_callback(lambda _: self._questions.pop(key, None))
        elif head["kind"] == "forget":
            question = self._questions.get((child.number, head["number"]))
            if question is not None:
                question.cancel()
        else:
            self._release((child.number, head["rollout"]))

    async def lost(self, child: Child) -> None:
        """A worker is gone: nobody waits for answers to it, and its rollouts are over."""
        for key, question in list(self._questions.items()):
            if key[0] == child.number:
                question.cancel()
        for rollout in [rollout for rollout in self._rollouts if rollout[0] == child.number]:
            self._release(rollout)
        await asyncio.gather(*self._releasing, return_exceptions=True)

    async def release(self, evaluation: int) -> None:
        """Nothing more comes of an evaluation."""
        await self._models.release(evaluation)

    async def forget_all(self) -> None:
        """Stop answering."""
        questions = list(self._questions.values())
        for question in questions:
            question.cancel()
        await asyncio.gather(*questions, return_exceptions=True)

    async def close(self) -> None:
        await self.forget_all()
        await asyncio.gather(*self._releasing, return_exceptions=True)
        await self._models.close()

    async def _answer(self, child: Child, head: dict[str, Any], asked: dict[str, Any]) -> None:
        number = head["number"]
        assert child.channel is not None
        try:
            client = await self._models.client(head["evaluation"])
            state = self._state(child, client, head)
            prompt = normalize_messages(asked["prompt"], field_name="prompt")
            tools = [Tool(**tool) for tool in asked["tools"]] if asked["tools"] else None
            response = await client.get_response(prompt, head["model"], asked["sampling_args"], tools, state=state)
        except Exception as error:  # whatever it is, the rollout in the worker has it
            child.channel.send_object(("answer", number, None, error_to_words(error)))
        else:
            child.channel.send_object(("answer", number, response, None))

    def _state(self, child: Child, client: Client[Any, Any, Any, Any], head: dict[str, Any]) -> State | None:
        rollout = head["rollout"]
        if rollout is None:
            return None
        key = child.number, rollout
        if key not in self._rollouts:
            self._rollouts[key] = client, State(input={}, trajectory=[], trajectory_id=rollout)
        state = self._rollouts[key][1]
        state["trajectory"] = [{}] * head["turn"]
        return state

    def _release(self, key: tuple[int, str]) -> None:
        known = self._rollouts.pop(key, None)
        if known is None:
            return
        client, state = known
        release = getattr(client, "release", None)
        if release is not None:
            task = asyncio.get_running_loop().create_task(release(state))
            self._releasing.add(task)
            task.add_done_callback(self._releasing.discard)
