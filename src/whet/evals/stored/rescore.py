"""Stored rollouts scored again by the rubric that their environment has today; a new evaluation, beside the old one.

A rollout's conversation and state columns are those that were stored, its task is today's of the same `example_id`.
What its state held beside them was not stored: a reward that reads more of it fails that rollout by name, instead of
scoring what is not there. Rollouts that had failed before they were scored stay as they are.
"""

from __future__ import annotations

import asyncio
import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import datetime
from itertools import groupby, islice
from pathlib import Path
from typing import Any, cast

from whet import __version__
from whet.calls import describe
from whet.clients.usage import JUDGE_USAGE
from whet.envs.env_group import held_out_rows, member_names
from whet.envs.environment import Environment
from whet.envs.identity.record import identify
from whet.envs.loading import load_environment
from whet.errors import ConfigError, Error, RewardError, RunError
from whet.evals.analysis.summary import SummaryBuilder, varied_of
from whet.evals.environment import OF_GROUPS, apply_settings, needs_groups
from whet.evals.report import write_report
from whet.evals.stored.stored import StoredEval, open_stored
from whet.messages import content_text, copy_value, normalize_messages
from whet.records.directory import RESULTS, free_path, write_metadata
from whet.records.lock import evaluation_state
from whet.rollouts.groups import score_states
from whet.rollouts.results import error_message, row_line, state_to_output
from whet.rollouts.states import new_state
from whet.system.redaction import redacted, redacted_keys
from whet.types import ROW_FIELDS, RolloutOutput, State

AT_ONCE = 32  # tasks
NOT_KEPT = ("client", "usage", "final_env_response", "sampling_args")
"""Fields of a new state that are not those of the rollout."""
OF_WHET = frozenset({JUDGE_USAGE, "sandbox_failure", "steps_with_own_advantage", "steps_with_own_reward"})
"""Keys that scoring looks for and that a rollout need not have."""
SCORES = ("reward", "metrics", "error", "error_chain", "long_error_chain", "advantage", "parse_failed", JUDGE_USAGE)


@dataclass(frozen=True, slots=True)
class ChangedReward:
    """A rollout with another reward than before; None: it has none, for it failed."""

    example_id: Any
    rollout: int | None
    before: float | None
    after: float | None


@dataclass(slots=True)
class Rescored:
    """What scoring again came to."""

    source: Path
    saved: Path
    environment: str
    rollouts: int = 0
    scored: int = 0
    failed_before: int = 0  # rollouts that failed before they were scored, then as now
    reward_before: float | None = None
    reward: float | None = None
    changed: list[ChangedReward] = field(default_factory=list)
    unscored: dict[str, list[Any]] = field(default_factory=dict)  # why, and the example_ids

    def as_dict(self) -> dict[str, Any]:
        return {**asdict(self), "source": str(self.source), "saved": str(self.saved)}


class StoredState(State):
    """The state of a stored rollout. `absent`: keys that were looked for, and that neither results nor scoring set."""

    def __init__(self, *args: Any, **fields: Any) -> None:
        super().__init__(*args, **fields)
        self.absent: set[str] = set()

    def __missing__(self, key: str) -> Any:
        self._look_for(key)
        return super().__missing__(key)

    def __contains__(self, key: object) -> bool:
        self._look_for(key)
        return super().__contains__(key)

    def get(self, key: str, default: Any = None) -> Any:
        self._look_for(key)
        return super().get(key, default)

    def __setitem__(self, key: str, value: Any) -> None:
        self.absent.discard(key)
        super().__setitem__(key, value)

    def _look_for(self, key: object) -> None:
        if isinstance(key, str) and key not in (*OF_WHET, *self.INPUT_FIELDS) and not dict.__contains__(self, key):
            self.absent.add(key)


def rescore(path: Path, environment: str | None = None, env_args: Mapping[str, Any] | None = None) -> Rescored:
    """Score the rollouts of a saved evaluation again, into a new directory beside it.

    Args:
        path: The evaluation: its directory or results file.
        environment: Id or path of the environment, by default the one that was evaluated.
        env_args: Arguments of load_environment, by default those it had.

    Raises `RunError` where there is no evaluation that has ended, or a row cannot be read; `ConfigError` where a secret
    among the arguments was not stored; and what loading the environment raises.
    """
    stored = open_stored(path)
    metadata = stored.metadata
    if evaluation_state(stored.directory, metadata) != "finished":
        raise RunError(
            f"{stored.directory} has not ended. Continue it with --resume first; `whet eval list` shows how."
        )
    config = metadata.get("config")
    config = config if isinstance(config, dict) else {}
    label = environment or str(config.get("environment") or metadata.get("env_id") or "")
    args = dict(metadata.get("env_args") or {}) if env_args is None else dict(env_args)
    if hidden := list(redacted_keys(args)):
        raise ConfigError(
            f"{stored.directory} does not keep the secret {hidden[0]}. Give all arguments: --env-args JSON"
        )
    env = load_environment(label, **args)
    apply_settings(env, config.get("extra_env_kwargs") or {})
    return asyncio.run(_rescore_and_close(stored, env, label, args))


async def _rescore_and_close(stored: StoredEval, env: Environment, label: str, args: dict[str, Any]) -> Rescored:
    target = free_path(stored.directory.parent, f"{stored.directory.name}-rescored")
    temporary = target.with_name(f".{target.name}.{os.getpid()}.tmp")
    try:
        temporary.mkdir()
        result = await rescore_into(stored, env, temporary, Rescored(stored.directory, target, label))
        write_metadata(temporary, _metadata(result, stored, env, args, temporary))
        write_report(temporary)
        temporary.rename(target)
    except OSError as error:
        raise RunError(f"{target}: cannot write results ({error.strerror or error}).") from error
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
        await env.close()
    return result


async def rescore_into(stored: StoredEval, env: Environment, directory: Path, result: Rescored) -> Rescored:
    """Write the rows, in their order, with today's scores; count them in `result`."""
    tasks = {row["example_id"]: row for row in held_out_rows(env)}
    columns = list(stored.metadata.get("state_columns") or ())
    together = needs_groups(env) or any(column in OF_GROUPS for column in columns)
    numbered = enumerate(stored.rows())
    groups = (
        [row for _, row in group]
        for _, group in groupby(numbered, lambda item: item[1]["example_id"] if together else item[0])
    )

    async def score(rows: list[RolloutOutput]) -> list[RolloutOutput]:
        return await _score_again(env, tasks.get(rows[0]["example_id"]), rows, not together, stored.metadata)

    before, after = list[float](), list[float]()
    with (directory / RESULTS).open("w", encoding="utf-8") as file:
        while some := list(islice(groups, AT_ONCE)):
            for olds, news in zip(some, await asyncio.gather(*map(score, some)), strict=True):
                for old, new in zip(olds, news, strict=True):
                    file.write(row_line(new))
                    _count(result, old, new)
                    before += [old["reward"]] if old.get("error") is None else []
                    after += [new["reward"]] if new.get("error") is None else []
    result.reward_before = sum(before) / len(before) if before else None
    result.reward = sum(after) / len(after) if after else None
    return result


def _count(result: Rescored, old: RolloutOutput, new: RolloutOutput) -> None:
    result.rollouts += 1
    was, now = (row["reward"] if row.get("error") is None else None for row in (old, new))
    if was != now:
        result.changed.append(ChangedReward(old["example_id"], old.get("rollout"), was, now))
    if now is not None:
        result.scored += 1
    elif _failed_before(old):
        result.failed_before += 1
    else:
        result.unscored.setdefault(error_message(new) or "", []).append(old["example_id"])


def _failed_before(row: Mapping[str, Any]) -> bool:
    """Whether a rollout failed for another reason than its scoring."""
    error = row.get("error")
    return error is not None and error.get("error") != RewardError.__name__


async def _score_again(
    env: Environment,
    task: Mapping[str, Any] | None,
    rows: Sequence[RolloutOutput],
    independent: bool,
    metadata: Mapping[str, Any],
) -> list[RolloutOutput]:
    states: list[State | Exception] = [_state_or_error(env, task, row, metadata) for row in rows]
    if readable := [state for state in states if isinstance(state, State)]:
        await score_states(env, readable, independent)
    return [_row_of(env, row, state) for row, state in zip(rows, states, strict=True)]


def _row_of(env: Environment, row: RolloutOutput, state: State | Exception) -> RolloutOutput:
    """The row with the scores of its state, or with why there are none."""
    if _failed_before(row):
        return row
    if isinstance(state, StoredState) and state.absent:
        names = ", ".join(sorted(state.absent))
        state = RewardError(
            f"scoring reads {names} of the rollout's state, which results do not keep; evaluate again, with "
            f"--state-columns for what JSON can hold"
        )
    if isinstance(state, Exception):
        empty = new_state({"prompt": []}, cast(Any, None), "", {})  # the row may be what is wrong
        state = State(empty, error=state)
    scored = state_to_output(state)
    if "advantage" in row:
        scored["advantage"] = state.get("advantage")
    failed = env.parse_failed(state) if state.get("error") is None else None
    if failed is not None:
        scored["parse_failed"] = failed
    kept = {key: value for key, value in row.items() if key not in SCORES}
    if "answer" in scored:
        kept["answer"] = scored["answer"]
    return RolloutOutput({**kept, **{key: scored[key] for key in SCORES if key in scored}})


def _state_or_error(
    env: Environment, task: Mapping[str, Any] | None, row: RolloutOutput, metadata: Mapping[str, Any]
) -> State | Exception:
    """The state of a stored rollout, or why it cannot be had."""
    try:
        return _state_of(env, task, row, metadata)
    except (TypeError, ValueError, KeyError, AttributeError) as error:  # rows are what others may have written
        return RewardError(f"the stored rollout cannot be read: {describe(error)}")
    except RewardError as error:
        return error


def _state_of(
    env: Environment, task: Mapping[str, Any] | None, row: RolloutOutput, metadata: Mapping[str, Any]
) -> StoredState:
    if task is None:
        raise RewardError("the environment has no task of this example_id any more")
    prompt = normalize_messages(row["prompt"], field_name="prompt")
    completion = normalize_messages(row.get("completion") or [], field_name="completion")
    if _asked(prompt) != _asked(normalize_messages(task["prompt"], field_name="prompt")):
        raise RewardError("the environment's task of this example_id has another prompt than the rollout")
    given = {**copy_value(dict(task)), "prompt": prompt}
    state = StoredState(new_state(given, cast(Any, None), str(metadata.get("model") or ""), {}, env.tool_defs or ()))
    for name in NOT_KEPT:
        dict.pop(state, name)
    state["completion"] = completion
    state["trajectory"] = list(_steps(prompt, completion, row))
    for name in ("is_completed", "is_truncated", "stop_condition"):
        state[name] = row.get(name)
    for name in metadata.get("state_columns") or ():
        if name in row and name not in ROW_FIELDS:
            state[name] = row[name]
    state["error"] = Error(error_message(row)) if _failed_before(row) else None
    timing = row.get("timing") or {}
    for name in ("setup", "generation"):
        span = timing.get(name) or {}
        state["timing"][name].start, state["timing"][name].end = (float(span.get(key) or 0) for key in ("start", "end"))
    return state


def _asked(prompt: Sequence[Any]) -> list[tuple[str, str]]:
    """What a prompt says, without system messages: those may change while the task stays."""
    said = [(message["role"], content_text(message.get("content"))) for message in prompt]
    return [one for one in said if one[0] != "system"]


def _steps(prompt: Sequence[Any], completion: Sequence[Any], row: RolloutOutput) -> Iterator[dict[str, Any]]:
    """A turn for each message of the model, with all that was said before as its prompt."""
    for index, message in enumerate(completion):
        if message["role"] == "assistant":
            yield {
                "prompt": [*prompt, *completion[:index]],
                "completion": [message],
                "response": None,
                "tokens": None,
                "reward": None,
                "advantage": None,
                "is_truncated": bool(row.get("is_truncated")) and index == len(completion) - 1,
                "trajectory_id": "",
                "extras": {},
            }


def _metadata(
    result: Rescored, stored: StoredEval, env: Environment, args: dict[str, Any], directory: Path
) -> Mapping[str, Any]:
    """That of the old evaluation, without what `--resume` continues: no rollout was run here."""
    old = {key: value for key, value in stored.metadata.items() if key not in ("config", "identity", "tasks")}
    members = member_names(env)
    fields = {
        **old,
        "state": "finished",
        "env_id": env.env_id or old.get("env_id"),
        "env_args": args,
        "date": datetime.now().isoformat(timespec="seconds"),
        "pass_threshold": env.pass_threshold,
        **({"members": members} if members else {}),
        "version_info": {"whet": __version__},
        "environment": identify(result.environment).as_dict(),
        "rescored": {
            "from": str(stored.directory),
            "date": old.get("date"),
            "changed": len(result.changed),
            "unscored": sum(map(len, result.unscored.values())),
        },
    }
    if varied := varied_of(stored.metadata):
        fields["config"] = {"varied": varied}
    builder = SummaryBuilder.of(fields)
    for row in StoredEval(directory, fields).rows():
        builder.add(row)
    plain: Mapping[str, Any] = redacted({**fields, **builder.averages()})
    return plain
