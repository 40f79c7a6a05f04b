"""A session: what one program does through the gateway, recorded as a rollout.

Each session has an address and a secret of its own. Its requests use the run's sampling arguments, whatever the program
requests; its turns and tokens are limited; and the messages, with their tokens, are the trajectory of a `State`
like any environment's. A request whose messages continue an earlier turn continues that turn's tokens.
"""

from __future__ import annotations

import hmac
import secrets
import uuid
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from whet.clients.client import Client
from whet.clients.deltas import OnDelta
from whet.clients.usage import UsageTotals
from whet.envs.steps import trajectory_step
from whet.gateway.wire import RequestError, TurnRequest
from whet.types import AssistantMessage, Message, Messages, Response, RolloutTiming, SamplingArgs, State

AnyClient = Client[Any, Any, Any, Any]


@dataclass(frozen=True, slots=True)
class SessionLimits:
    """What a session may do; None = no limit."""

    max_turns: int | None = None
    max_total_tokens: int | None = None  # that the model writes, over all turns


class RecordedSession:
    def __init__(
        self,
        client: AnyClient,
        model: str,
        *,
        sampling_args: SamplingArgs | None = None,
        limits: SessionLimits | None = None,
        state: State | None = None,
    ) -> None:
        """Make a session of `model`. `sampling_args` override those of requests; turns are recorded into `state`."""
        self.client = client
        self.model = model
        self.sampling_args = sampling_args or {}
        self.limits = limits or SessionLimits()
        self.state = state if state is not None else _empty_state(client, model)
        self.id: str = self.state["trajectory_id"]
        self.secret = secrets.token_urlsafe(24)
        self.closed = False

    def admits(self, given: str | None) -> bool:
        return is_secret(given, self.secret)

    async def answer(self, request: TurnRequest, on_delta: OnDelta | None = None) -> Response:
        """The model's turn, recorded, and streamed to `on_delta`. Raises `RequestError` where the session is over."""
        self._check()
        prompt = with_reasoning(request.messages, self.state)
        listening: dict[str, Any] = {} if on_delta is None else {"on_delta": on_delta}
        response: Response = await self.client.get_response(
            prompt,
            self.model,
            {**request.sampling_args, **self.sampling_args},
            request.tools,
            state=self.state,
            **listening,
        )
        self.state["usage"].add_response(response)
        self.state["trajectory"].append(trajectory_step(prompt, response, self.id))
        return response

    async def close(self) -> State:
        """End it: further requests are refused. What it recorded."""
        self.closed = True
        release = getattr(self.client, "release", None)
        if release is not None:
            await release(self.state)
        return self.state

    def _check(self) -> None:
        if self.closed:
            raise RequestError("this session has ended", status=403)
        turns, limit = len(self.state["trajectory"]), self.limits.max_turns
        if limit is not None and turns >= limit:
            raise RequestError(f"this session has had its {limit} turns", status=403, code="max_turns")
        most = self.limits.max_total_tokens
        if most is not None and self.state["usage"]["output_tokens"] >= most:
            raise RequestError(f"this session has written its {most} tokens", status=403, code="max_total_tokens")


def _empty_state(client: AnyClient, model: str) -> State:
    return State(
        input={"prompt": [], "example_id": 0},
        client=client,
        model=model,
        sampling_args={},
        trajectory=[],
        trajectory_id=uuid.uuid4().hex,
        completion=None,
        error=None,
        timing=RolloutTiming(),
        usage=UsageTotals(),
    )


def is_secret(given: str | None, secret: str) -> bool:
    """Whether a request carries the right secret, compared in constant time."""
    return given is not None and hmac.compare_digest(given.encode(), secret.encode())


class Answering(Protocol):
    """What a session is to the gateway."""

    id: str

    def admits(self, given: str | None) -> bool: ...

    async def answer(self, request: TurnRequest, on_delta: OnDelta | None = None) -> Response: ...

    async def close(self) -> State: ...


AnsweringT = TypeVar("AnsweringT", bound=Answering)


class Sessions:
    """The sessions that are open, by id."""

    def __init__(self) -> None:
        self._open: dict[str, Answering] = {}

    def add(self, session: AnsweringT) -> AnsweringT:
        self._open[session.id] = session
        return session

    def find(self, session_id: str, secret: str | None) -> Answering:
        """The session, for a request with its secret. The same error for a wrong secret and for no such session."""
        session = self._open.get(session_id)
        if session is None or not session.admits(secret):
            raise RequestError("there is no such session, or this is not its key", status=401)
        return session

    async def close(self, session_id: str) -> State:
        return await self._open.pop(session_id).close()

    def __len__(self) -> int:
        return len(self._open)


def with_reasoning(messages: Messages, state: State) -> Messages:
    """`messages`, with the reasoning of the answers recorded in `state` where a program has left it out.

    OpenAI's chat interface has no field for it, so most programs drop it. Without it the message would differ from the
    answer that was sampled, its tokens could not be continued, and every turn would begin a branch.
    """
    recorded = _reasoning_by_answer(message for step in state["trajectory"] for message in step["completion"])
    if not recorded:
        return messages
    restored: Messages = []
    for message in messages:
        left = recorded.get(_key(message)) if _lacks_reasoning(message) else None
        # Equal answers are taken in the order in which they were given; the last counts for all further ones.
        reasoning = (left.pop(0) if len(left) > 1 else left[0]) if left else None
        restored.append(message if reasoning is None else AssistantMessage(**{**_fields(message), **reasoning}))
    return restored


def _reasoning_by_answer(answers: Iterable[Message]) -> dict[Any, list[dict[str, str]]]:
    found: dict[Any, list[dict[str, str]]] = defaultdict(list)
    for answer in answers:
        if answer.get("reasoning_content"):
            found[_key(answer)].append({"reasoning_content": answer["reasoning_content"]})
    return found


def _lacks_reasoning(message: Mapping[str, Any]) -> bool:
    return message["role"] == "assistant" and not message.get("reasoning_content")


def _key(message: Mapping[str, Any]) -> Any:
    """The content and the calls of an answer. Calls are identified by their ids, which are the session's own."""
    content = message.get("content") or ""
    calls = tuple((call["id"], call["name"]) for call in message.get("tool_calls") or ())
    return content if isinstance(content, str) else repr(content), calls


def _fields(message: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in message.items() if key != "role"}
