"""What `RLMEnv` counts: turns and tokens of the root model and of sub-models, calls of functions, time in the REPL."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from whet.rubrics.rubric import Rubric
from whet.types import State, TrajectoryStep

SIMPLE_METRICS = (
    "sub_llm_call_count", "sub_llm_total_turns", "sub_llm_prompt_tokens", "sub_llm_completion_tokens",
    "sub_llm_total_tool_calls", "sub_llm_batch_count", "sub_llm_max_batch_size", "sub_llm_mean_batch_size",
    "root_llm_turns", "root_llm_prompt_tokens", "root_llm_completion_tokens", "repl_total_time_seconds",
    "repl_call_count", "repl_mean_time_seconds", "root_tool_call_count", "llm_batch_mean_time_seconds",
    "root_tool_non_llm_mean_time_seconds", "sub_llm_max_turns_reached_frac", "max_turns_in_context_stopped",
)  # fmt: skip


class RLMMonitorRubric(Rubric):
    """Records what the state counts, and calls and seconds of each function of the code."""

    def __init__(self, root_tool_names: Sequence[str] | None = None, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        for name in SIMPLE_METRICS:
            self.add_metric(_metric(name, None, name))
        for name in root_tool_names or ():
            self.add_metric(_metric(f"{name}_root_calls", "root_tool_calls", name))
            self.add_metric(_metric(f"{name}_root_time_seconds", "root_tool_times", name))


def _metric(name: str, field: str | None, key: str) -> Callable[[State], float]:
    """A number of the state, or of a dict in it."""

    def metric(state: State) -> float:
        return float((state if field is None else state.get(field, {})).get(key) or 0)

    metric.__name__ = name
    return metric


def count_step(state: State, step: TrajectoryStep | None, *, out_of_turns: bool = False) -> None:
    """Count a turn of the root model or of a sub-model; without a step, the end of a sub-model's call."""
    if step is None:
        ends = state["_sub_ends"] = [*state.get("_sub_ends", []), out_of_turns]
        state["sub_llm_max_turns_reached_frac"] = sum(ends) / len(ends)
        return
    extras, usage = step["extras"], step["response"].get("usage")
    whose = "sub" if extras.get("is_sub_llm_call") else "root"
    _add(state, "sub_llm_total_turns" if whose == "sub" else "root_llm_turns", 1)
    for name in ("prompt_tokens", "completion_tokens"):
        _add(state, f"{whose}_llm_{name}", 0 if usage is None else usage[name])
    if whose == "sub" and not extras["sub_turn"]:
        batches = state.setdefault("_sub_batches", {})
        batches[extras["batch_id"]] = batches.get(extras["batch_id"], 0) + 1
        _add(state, "sub_llm_call_count", 1)
        state["sub_llm_batch_count"], state["sub_llm_max_batch_size"] = len(batches), max(batches.values())
        state["sub_llm_mean_batch_size"] = sum(batches.values()) / len(batches)
    if whose == "sub":
        _add(state, "sub_llm_total_tool_calls", extras["tool_call_count"])


def count_root_call(state: State, name: str, seconds: float) -> None:
    """Count a call of a function by the code in the sandbox."""
    calls, times = state.setdefault("root_tool_calls", {}), state.setdefault("root_tool_times", {})
    calls[name], times[name] = calls.get(name, 0) + 1, times.get(name, 0.0) + seconds
    state["root_tool_call_count"] = sum(calls.values())
    others = [other for other in calls if other != "llm_batch"]
    for metric, names in (("llm_batch", ["llm_batch"]), ("root_tool_non_llm", others)):
        count = sum(calls.get(one, 0) for one in names)
        if count:
            state[f"{metric}_mean_time_seconds"] = sum(times.get(one, 0.0) for one in names) / count


def _add(state: State, name: str, amount: int) -> None:
    state[name] = state.get(name, 0) + amount
