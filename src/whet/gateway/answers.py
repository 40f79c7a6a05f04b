"""The answers to one request: its choices, and every failure as an error of the request or of the model."""

from __future__ import annotations

import asyncio
import hashlib
import logging
from collections.abc import Awaitable, Callable
from dataclasses import replace
from functools import partial

from whet.clients.deltas import Delta, OnDelta
from whet.errors import (
    ConfigError,
    EndpointDownError,
    EndpointError,
    Error,
    OverlongPromptError,
    RequestRefusedError,
    WhetError,
)
from whet.gateway.wire import RequestError, TurnRequest
from whet.types import Response

Answer = Callable[[TurnRequest, OnDelta | None], Awaitable[Response]]
logger = logging.getLogger(__name__)


async def answers_of(
    answer: Answer, turn: TurnRequest, on_delta: Callable[[int, Delta], None] | None = None, *, in_turn: bool = False
) -> list[Response]:
    """The response of each choice, all requested at once, or one after the other with `in_turn`.

    Choices of a request with a seed have seeds of their own; the first has the request's. `on_delta` receives deltas
    with the number of the choice. Raises `RequestError`; the choices that are not answered by then are cancelled.
    """

    def one(choice: int) -> Awaitable[Response]:
        own = None if on_delta is None else partial(on_delta, choice)
        return _translated(answer, _choice_of(turn, choice), own)

    if turn.choices == 1 or in_turn:
        return [await one(choice) for choice in range(turn.choices)]
    tasks = [asyncio.ensure_future(one(choice)) for choice in range(turn.choices)]
    try:
        return await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def _choice_of(turn: TurnRequest, choice: int) -> TurnRequest:
    seed = turn.sampling_args.get("seed")
    if choice == 0 or seed is None:
        return turn
    digest = hashlib.blake2b(f"{seed}/choice {choice}".encode(), digest_size=8).digest()
    return replace(turn, sampling_args={**turn.sampling_args, "seed": int.from_bytes(digest, "big") >> 1})


async def _translated(answer: Answer, turn: TurnRequest, on_delta: OnDelta | None = None) -> Response:
    """The answer; what whet raises is an error of the request, or of the model behind the gateway."""
    try:
        return await answer(turn, on_delta)
    except RequestError:
        raise
    except OverlongPromptError as error:
        raise RequestError(f"prompt is too long: {error}", code="context_length_exceeded") from error
    except (ConfigError, RequestRefusedError) as error:
        raise RequestError(str(error)) from error
    except (EndpointError, EndpointDownError) as error:
        raise RequestError(f"the model cannot be reached: {error}", status=503) from error
    except (Error, WhetError) as error:
        raise RequestError(f"the model failed: {error}", status=502) from error
    except Exception as error:
        logger.exception("a request failed")
        raise RequestError("the gateway failed; its log says how", status=500) from error
