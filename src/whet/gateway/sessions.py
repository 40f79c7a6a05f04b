"""Sessions of the gateway: each is one running rollout, with an address and a secret of its own.

A request whose messages continue an earlier turn continues that turn's tokens, also where the program has left out the
reasoning of its answers.
"""

from __future__ import annotations

import hmac
from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import Any, Protocol, TypeVar

from whet.clients.client import OnDelta
from whet.gateway.wire import Interface, RequestError, TurnRequest
from whet.types import AssistantMessage, Message, Messages, Response, State


class Answering(Protocol):
    """What a session is to the gateway."""

    id: str
    secret: str
    needs_key: bool

    async def answer(self, request: TurnRequest, on_delta: OnDelta | None = None) -> Response:
        """The response of one turn; `on_delta` receives it in deltas."""


AnsweringT = TypeVar("AnsweringT", bound=Answering)


class MessagesRead:
    """The messages of a session's last request: a conversation that is sent again and again is read once."""

    def __init__(self) -> None:
        self._interface: Interface | None = None
        self._raw: list[Any] = []
        self._messages: Messages = []

    def turn(self, interface: Interface, body: Any) -> TurnRequest:
        """The turn of a body, in which messages equal to the last request's are not read again."""
        given = body.get("messages") if isinstance(body, dict) else None
        if not isinstance(given, list):
            return interface.read_request(body)
        if interface is self._interface:
            earlier = zip(given, self._raw, self._messages, strict=False)
            known = [read if one == raw else one for one, raw, read in earlier]
            body = {**body, "messages": [*known, *given[len(known) :]]}
        turn = interface.read_request(body)
        if len(turn.messages) == len(given):  # an interface that reads them one by one
            self._interface, self._raw, self._messages = interface, given, turn.messages
        return turn


class Sessions:
    """The sessions that are open, by id."""

    def __init__(self) -> None:
        self._open: dict[str, Answering] = {}
        self._read: dict[str, MessagesRead] = {}

    def add(self, session: AnsweringT) -> AnsweringT:
        """Open a session."""
        self._open[session.id] = session
        self._read[session.id] = MessagesRead()
        return session

    def find(self, session_id: str, secret: str | None) -> Answering:
        """The session, for a request with its secret. The same error for a wrong secret and for no such session."""
        session = self._open.get(session_id)
        right = session is not None and hmac.compare_digest((secret or "").encode(), session.secret.encode())
        if session is None or (session.needs_key and not right):
            raise RequestError("there is no such session, or this is not its key", status=401)
        return session

    def close(self, session_id: str) -> None:
        """Refuse further requests."""
        self._open.pop(session_id, None)
        self._read.pop(session_id, None)

    def read(self, session_id: str, interface: Interface, body: Any) -> TurnRequest:
        """The turn of a body. Raises `RequestError` for what is malformed."""
        return self._read.get(session_id, MessagesRead()).turn(interface, body)

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
    reasoning: dict[Any, list[dict[str, str]]] = defaultdict(list)
    for answer in answers:
        if answer.get("reasoning_content"):
            reasoning[_key(answer)].append({"reasoning_content": answer["reasoning_content"]})
    return reasoning


def _lacks_reasoning(message: Mapping[str, Any]) -> bool:
    return message["role"] == "assistant" and not message.get("reasoning_content")


def _key(message: Mapping[str, Any]) -> Any:
    """The content and the calls of an answer. Calls are identified by their ids, which are the session's own."""
    content = message.get("content") or ""
    calls = tuple((call["id"], call["name"]) for call in message.get("tool_calls") or ())
    return content if isinstance(content, str) else repr(content), calls


def _fields(message: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in message.items() if key != "role"}
