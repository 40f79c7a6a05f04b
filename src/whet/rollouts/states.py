"""The state of a rollout at its start, and that of a rollout whose environment failed before it had one."""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from whet.clients.client import Client
from whet.clients.usage import UsageTotals
from whet.messages import normalize_messages
from whet.types import RolloutTiming, SamplingArgs, State, Tool

_watched: ContextVar[list[State] | None] = ContextVar("whet_watched_states", default=None)


@contextmanager
def watched_states() -> Iterator[list[State]]:
    """The states of rollouts that are begun within: what there is of one that does not return its own."""
    begun: list[State] = []
    token = _watched.set(begun)
    try:
        yield begun
    finally:
        _watched.reset(token)


def rollout_begins(state: State) -> None:
    """Called by the code that runs the turns of a rollout."""
    begun = _watched.get()
    if begun is not None:
        begun.append(state)


def new_state(
    row: dict[str, Any],
    client: Client[Any, Any, Any, Any],
    model: str,
    sampling_args: SamplingArgs | None,
    tool_defs: Sequence[Tool] = (),
) -> State:
    """Every field a rollout begins with. `row` becomes `state["input"]` as it is: the rollout may write into it."""
    trajectory_id = row.pop("trajectory_id", None) or uuid.uuid4().hex
    return State(
        input=row,
        task=row["task"] if row.get("task") is not None else row,
        client=client,
        model=model,
        sampling_args=sampling_args,
        is_completed=False,
        is_truncated=False,
        stop_condition=None,
        tool_defs=list(tool_defs),
        trajectory=[],
        trajectory_id=trajectory_id,
        completion=None,
        reward=None,
        advantage=None,
        metrics=None,
        error=None,
        final_env_response=None,
        timing=RolloutTiming(),
        usage=UsageTotals(),
    )


def failed_state(
    given: Mapping[str, Any],
    client: Client[Any, Any, Any, Any],
    model: str,
    sampling_args: SamplingArgs | None,
    error: Exception,
) -> State:
    """A rollout that ended in `error` before there was a state. Its row may be what is wrong, so any row will do."""
    row = dict(given)
    try:
        row["prompt"] = normalize_messages(row.get("prompt"), field_name="prompt")
    except (TypeError, ValueError):
        row["prompt"] = str(row.get("prompt"))
    if isinstance(row.get("info"), str):
        try:
            row["info"] = json.loads(row["info"])
        except ValueError:
            row["info"] = {"unreadable": row["info"]}
    elif isinstance(row.get("info"), Mapping):
        row["info"] = dict(row["info"])
    state = new_state(row, client, model, sampling_args)
    state.update(is_completed=True, stop_condition="has_error", completion=[], error=error)
    timing = state["timing"]
    timing.generation.start = timing.generation.end = time.time()
    return state


def cut_off_state(state: State, given: Mapping[str, Any], error: Exception) -> State:
    """A rollout that was ended from outside, with what was said until then. `given` is the row it was begun with."""
    if given.get("info") is not None:
        # As in any rollout, and not as an environment that was in the middle of it may have left it.
        info = given["info"]
        state["input"]["info"] = json.loads(info) if isinstance(info, str) else dict(info)
    state.update(is_completed=True, is_truncated=True, stop_condition="has_error", error=error)
    return state
