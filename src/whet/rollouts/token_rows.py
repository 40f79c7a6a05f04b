"""One rollout as a row with its tokens: the format of a training run's `rollouts/`, and of evaluations during training.

    {"group": "17", "environment": "calculator", "example_id": 3, "prompt": [...], "completion": [...], "answer": "12",
     "reward": 1.0, "metrics": {...}, "advantage": 0.4, "stop_condition": "no_tools_called", "error": null,
     "is_truncated": false, "parse_failed": false, "turns": [...]}

`parse_failed` is present where a parser looks for an answer, `judge_usage` where a judge was called, `tools` (names)
where the model had tools.

Tokens are stored per turn. The prompt of a turn mostly repeats the turn before, so only its new end is stored:

    turn 1   "prompt_start": 0, "prompt_ids": [a b],  "completion_ids": [c d]    prompt = a b
    turn 2   "prompt_start": 4, "prompt_ids": [e],    "completion_ids": [f]      prompt = (a b c d)[:4] + e
    turn 3   "prompt_start": 2, "prompt_ids": [x],    "completion_ids": [y]      prompt = (a b c d e f)[:2] + x

With `[learner] keep_token_details` a row also has the learner's values per token (`turn_details`). `sampling` is
the turn's temperature, and those of top_p, top_k and min_p that truncated the distribution; `kept_mass` is then the
probability mass that remained. `reward` and `advantage` are present where the environment set one for the turn.
`completion_mask` is present where it is not all ones. `read_rollouts` returns complete turns, as the trainer saw them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from whet.lazy_ids import unread
from whet.rollouts.results import state_to_output
from whet.rubrics.rubric import own_step_advantages, own_step_rewards
from whet.system.files import read_lines
from whet.types import State, TrajectoryStep

Turns = Sequence[Mapping[str, Sequence[Any]]]
"""Values of each turn of a rollout, each as long as its `completion_ids`."""

OUTPUT_FIELDS = (
    "example_id",
    "prompt",
    "completion",
    "answer",
    "reward",
    "metrics",
    "stop_condition",
    "error",
    "is_truncated",
)
"""Fields of a result row (`results.jsonl`) that a rollout row has under the same name."""


def rollout_row(
    state: State,
    *,
    group: str,
    environment: str,
    advantage: float | None,
    tokens: bool = True,
    details: Turns | None = None,
) -> dict[str, Any]:
    """One rollout as a row: JSON values only. Without `tokens`, only what was said and what it earned.

    `details` is what the learner made of its tokens, turn by turn.
    """
    output = state_to_output(state)
    row: dict[str, Any] = {
        "group": group,
        "environment": environment,
        **{name: output.get(name) for name in OUTPUT_FIELDS},
    }
    row["advantage"] = advantage
    if "parse_failed" in state:
        row["parse_failed"] = state["parse_failed"]
    if "judge_usage" in output:
        row["judge_usage"] = output["judge_usage"]
    if output["tool_defs"]:
        row["tools"] = [tool["name"] for tool in output["tool_defs"]]
    if tokens:
        turns = list(_turns(state["trajectory"]))
        for name, values_of in (("reward", own_step_rewards(state)), ("advantage", own_step_advantages(state))):
            for number, own in values_of.items():
                if (turn := turns[number]) is not None:
                    turn[name] = own
        for turn, values in zip(turns, details or (), strict=False):
            if turn is not None:
                turn.update(values)
        row["turns"] = turns
    return row


def _turns(trajectory: Sequence[TrajectoryStep]) -> Iterator[dict[str, Any] | None]:
    """The tokens of each turn, its prompt from where it leaves the turn before; None where no tokens are known."""
    before: list[int] = []
    for step in trajectory:
        tokens = step.get("tokens")
        if not tokens:
            yield None
            continue
        prompt_ids, completion_ids = list(unread(tokens, "prompt_ids")), list(tokens["completion_ids"])
        start = _common_prefix(before, prompt_ids)
        turn: dict[str, Any] = {
            "prompt_start": start,
            "prompt_ids": prompt_ids[start:],
            "completion_ids": completion_ids,
            "completion_logprobs": list(tokens["completion_logprobs"]),
            "policy_version": [list(run) for run in tokens.get("policy_version") or []],
        }
        for name in ("sampling", "kept_mass"):
            if (value := tokens.get(name)) is not None:
                turn[name] = value
        if not all(tokens["completion_mask"]):
            turn["completion_mask"] = list(tokens["completion_mask"])
        yield turn
        before = prompt_ids + completion_ids


def _common_prefix(left: list[int], right: list[int]) -> int:
    if right[: len(left)] == left:
        return len(left)
    return next(index for index, (a, b) in enumerate(zip([*left, -1], [*right, -2], strict=False)) if a != b)


def read_rollouts(path: Path) -> Iterator[dict[str, Any]]:
    """The rows of a file, their turns whole: prompt_ids, prompt_mask, completion_ids, completion_mask, ..."""
    for row in read_lines(path):
        before: list[int] = []
        for turn in row.get("turns") or ():
            if turn is None:
                continue
            turn["prompt_ids"] = before[: turn.pop("prompt_start")] + turn["prompt_ids"]
            turn["prompt_mask"] = [0] * len(turn["prompt_ids"])
            turn.setdefault("completion_mask", [1] * len(turn["completion_ids"]))
            before = turn["prompt_ids"] + turn["completion_ids"]
        yield row
