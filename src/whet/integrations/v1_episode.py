"""What comes back of an episode of verifiers 0.4: its shape, the turns that are trained on, and why it failed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel, FiniteFloat

from whet.errors import EnvError, Error, InfraError, ModelError, OverlongPromptError
from whet.messages import normalize_messages
from whet.types import Messages, Response, ResponseMessage

if TYPE_CHECKING:
    from whet.integrations.v1_gateway import Call, Recorder

_KINDS: dict[str, type[Error]] = {
    "ProviderError": ModelError,
    **dict.fromkeys(("SandboxError", "ToolsetError", "TunnelError", "InterceptionError"), InfraError),
}
"""Errors of verifiers by their name; others are the environment's own."""


class FailureReply(BaseModel):
    type: str
    message: str


class NodeReply(BaseModel):
    """A message of a trace, after that at `parent`; `ids` are the tokens that it adds."""

    parent: int | None
    sampled: bool
    ids: list[int]
    message: dict[str, Any]


class TraceReply(BaseModel):
    id: str
    agent: str
    trainable: bool
    reward: FiniteFloat
    rewards: dict[str, FiniteFloat]
    metrics: dict[str, FiniteFloat]
    stop_condition: str | None
    is_truncated: bool
    errors: list[FailureReply]
    tools: list[dict[str, Any]]
    nodes: list[NodeReply]


class EpisodeReply(BaseModel):
    """What comes back of an episode; it may be a stranger's, so its shape is checked."""

    ok: bool
    errors: list[FailureReply]
    traces: list[TraceReply]


def error_of(episode: EpisodeReply, recorder: Recorder) -> Exception:
    """What an episode failed by: the model's own error where there was one."""
    if recorder.error is not None and not isinstance(recorder.error, OverlongPromptError):
        return recorder.error
    failures = [failure for trace in episode.traces for failure in trace.errors] + episode.errors
    if not failures:
        return EnvError("the episode failed, and does not say why")
    message = " ".join(failures[-1].message.split())[-600:]
    return _KINDS.get(failures[-1].type, EnvError)(f"the episode failed: {failures[-1].type}: {message}")


def turns_of(calls: Sequence[Call], traces: Sequence[TraceReply], *, whole: bool) -> list[tuple[Messages, Response]]:
    """The calls of the model that are turns of these traces, as prompts and responses.

    A call for token ids has no messages; it gets those of the message whose tokens, after those of all before it, are
    its prompt and what was sampled. Raises `EnvError` for a message that nothing was sampled for, where the episode is
    a `whole` one.
    """
    of = {trace.id: _sampled(trace) for trace in traces}
    turns: list[tuple[Messages, Response]] = []
    for call in calls:
        tokens = call.response.message.tokens
        if call.trace not in of:
            continue
        if call.prompt is not None:
            turns.append((call.prompt, call.response))
            continue
        assert tokens is not None
        said = of[call.trace].pop((*tokens["prompt_ids"], *tokens["completion_ids"]), None)
        if said is not None:  # or the harness has not used the answer
            message = {**said[-1], "finish_reason": call.response.message.finish_reason, "tokens": tokens}
            message["is_truncated"] = call.response.message.is_truncated
            content = message.pop("content") or ""
            message.pop("role")
            turns.append((said[:-1], Response(**{**call.response, "message": ResponseMessage(content, **message)})))
    if whole and all(call.prompt is None for call in calls) and any(of.values()):
        raise EnvError("the episode has messages of the model whose tokens no engine has sampled")
    return turns


def _sampled(trace: TraceReply) -> dict[tuple[int, ...], Messages]:
    """The conversations that end in a message of the model, by all of their tokens. Raises `EnvError`."""
    paths: list[tuple[tuple[int, ...], Messages]] = []
    sampled: dict[tuple[int, ...], Messages] = {}
    for index, node in enumerate(trace.nodes):
        if node.parent is not None and not 0 <= node.parent < index:
            raise EnvError("the episode has a message that comes after none")
        ids, messages = ((), []) if node.parent is None else paths[node.parent]
        try:
            path = (*ids, *node.ids), [*messages, *normalize_messages([node.message])]
        except (TypeError, ValueError) as error:
            raise EnvError(f"the episode has a message that is none: {error}") from error
        paths.append(path)
        if node.sampled:
            sampled[path[0]] = path[1]
    return sampled
