"""The models of the session's own process, used by workers: a turn per request, each rollout with its own state.

The worker has the rollout; here is only the part of its state that a model of this process reads: which rollout it is
and how many turns it has taken. It is released when the worker reports that the rollout is over, or dies.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping, Sequence
from typing import Any

from whet.clients.client import Client
from whet.messages import normalize_messages
from whet.rollouts.jobs import Parts
from whet.rollouts.workers.child import Child
from whet.rollouts.workers.state_record import response_of
from whet.system.channel import error_to_words
from whet.types import State, Tool


class ParentModels:
    """Pending requests of workers to the models."""

    def __init__(self, parts: Parts) -> None:
        self._parts = parts
        self._requests: dict[tuple[int, int], asyncio.Task[None]] = {}  # by worker and its number
        self._rollouts: dict[tuple[int, str], tuple[Client[Any, Any, Any, Any], State]] = {}
        self._releasing: set[asyncio.Task[None]] = set()

    def handle(self, child: Child, head: dict[str, Any], body: bytes) -> None:
        """A request, its cancellation, or the end of a rollout."""
        loop = asyncio.get_running_loop()
        if head["kind"] == "ask":
            key = child.number, head["number"]
            task = self._requests[key] = loop.create_task(self._answer(child, head, json.loads(body)))
            task.add_done_callback(lambda _: self._requests.pop(key, None))
        elif head["kind"] == "forget":
            request = self._requests.get((child.number, head["number"]))
            if request is not None:
                request.cancel()
        else:
            self._release((child.number, head["rollout"]))

    async def lost(self, child: Child) -> None:
        """A worker has ended: its requests are cancelled, and its rollouts are over."""
        for key, request in list(self._requests.items()):
            if key[0] == child.number:
                request.cancel()
        for rollout in [rollout for rollout in self._rollouts if rollout[0] == child.number]:
            self._release(rollout)
        await asyncio.gather(*self._releasing, return_exceptions=True)

    async def forget_all(self) -> None:
        """Stop answering."""
        requests = list(self._requests.values())
        for request in requests:
            request.cancel()
        await asyncio.gather(*requests, return_exceptions=True)

    async def close(self) -> None:
        await self.forget_all()
        await asyncio.gather(*self._releasing, return_exceptions=True)

    async def _answer(self, child: Child, head: dict[str, Any], body: dict[str, Any]) -> None:
        number, given = head["number"], child.given.get(head["job"])
        try:
            client = await self._parts.client(head["source"])
            state = self._state(child, client, head, body.get("before"))
            prompt = normalize_messages(body["prompt"], field_name="prompt")
            tools = [Tool(**tool) for tool in body["tools"]] if body["tools"] else None
            response = await client.get_response(prompt, head["model"], body["sampling_args"], tools, state=state)
        except Exception as error:  # whatever it is, the rollout in the worker has it
            child.send("answer", number, None, error_to_words(error))
        else:
            if given is not None:
                given.answers[number] = response
            child.send("answer", number, response, None)

    def _state(
        self,
        child: Child,
        client: Client[Any, Any, Any, Any],
        head: dict[str, Any],
        before: Sequence[Mapping[str, Any]] | None,
    ) -> State | None:
        """The state of a rollout here; `before` are the turns that it began with, such as those it was forked off."""
        rollout = head["rollout"]
        if rollout is None:
            return None
        key = child.number, rollout
        if key not in self._rollouts:
            self._rollouts[key] = client, State(input={}, trajectory=[], trajectory_id=rollout)
        state = self._rollouts[key][1]
        state["trajectory"] = [_turn(step) for step in before] if before else [{}] * head["turn"]
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


def _turn(step: Mapping[str, Any]) -> dict[str, Any]:
    """A turn that was taken before, as far as a model of this process reads it."""
    messages = {name: normalize_messages(step[name], field_name=name) for name in ("prompt", "completion")}
    return {**messages, "response": response_of(step["response"])}
