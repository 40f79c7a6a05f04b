"""From a model's response to a step of the trajectory: the message, and its tokens cut to the context."""

from __future__ import annotations

from typing import Literal

from whet.types import AssistantMessage, Messages, Response, TrajectoryStep, TrajectoryStepTokens

_NOT_IN_THE_MESSAGE = frozenset({"role", "finish_reason", "is_truncated", "tokens"})
_WHERE_KNOWN: tuple[Literal["sampling", "kept_mass", "kept", "routed_experts"], ...] = (
    "sampling",
    "kept_mass",
    "kept",
    "routed_experts",
)


def completion_messages(response: Response) -> Messages:
    """The response as the one assistant message that goes into the conversation."""
    message = AssistantMessage.__new__(AssistantMessage)
    dict.__setitem__(message, "role", "assistant")
    for key, value in response["message"].items():
        if key not in _NOT_IN_THE_MESSAGE and (value is not None or key == "content"):
            dict.__setitem__(message, key, value)
    return [message]


def trajectory_step(
    prompt: Messages, response: Response, trajectory_id: str, max_seq_len: int | None = None
) -> TrajectoryStep:
    """One turn, without a reward or an advantage of its own."""
    tokens = step_tokens(response, max_seq_len)
    return TrajectoryStep(
        prompt=prompt,
        completion=completion_messages(response),
        response=response,
        tokens=tokens,
        reward=None,
        advantage=None,
        is_truncated=bool(response.message.is_truncated) or (tokens is not None and tokens["is_truncated"]),
        trajectory_id=trajectory_id,
        extras={},
    )


def step_tokens(response: Response, max_seq_len: int | None = None) -> TrajectoryStepTokens | None:
    """The tokens of the turn, of which at most `max_seq_len` of prompt and completion together are kept.

    A prompt that is too long by itself is cut and keeps no completion. None where the client gave no tokens.
    """
    tokens = response["message"].get("tokens")
    if tokens is None:
        return None
    prompt_ids, completion_ids = tokens["prompt_ids"], tokens["completion_ids"]
    step = TrajectoryStepTokens(
        prompt_ids=prompt_ids,
        prompt_mask=tokens["prompt_mask"],
        completion_ids=completion_ids,
        completion_mask=tokens["completion_mask"],
        completion_logprobs=tokens["completion_logprobs"],
        overlong_prompt=False,
        is_truncated=False,
        policy_version=tokens.get("policy_version") or [],
    )
    for name in _WHERE_KNOWN:
        if name in tokens:
            step[name] = tokens[name]
    if max_seq_len is None or len(prompt_ids) + len(completion_ids) <= max_seq_len:
        return step
    kept = max(0, max_seq_len - len(prompt_ids))
    step["is_truncated"] = True
    step["overlong_prompt"] = len(prompt_ids) > max_seq_len
    step["prompt_ids"] = prompt_ids[:max_seq_len]
    step["prompt_mask"] = step["prompt_mask"][:max_seq_len]
    step["completion_ids"] = completion_ids[:kept]
    step["completion_mask"] = step["completion_mask"][:kept]
    step["completion_logprobs"] = step["completion_logprobs"][:kept]
    step["policy_version"] = _first(step["policy_version"], kept)
    if "routed_experts" in step:
        step["routed_experts"] = step["routed_experts"][: max_seq_len - 1]
    if "kept_mass" in step:
        step["kept_mass"] = step["kept_mass"][:kept]
    if "kept" in step:
        step["kept"] = step["kept"].first(kept)
    return step


def _first(runs: list[list[int]], count: int) -> list[list[int]]:
    """Runs of (version, length) cut to the first `count` tokens."""
    kept: list[list[int]] = []
    for version, length in runs:
        if count <= 0:
            break
        kept.append([version, min(length, count)])
        count -= length
    return kept
