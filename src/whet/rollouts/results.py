"""Results on disk: a rollout as a JSON row, `results.jsonl` and `metadata.json`.

Rows are appended as rollouts finish. A process that is killed while it writes leaves at most one torn line, which is
dropped when the file is read or appended to again. Rows of `whet eval run` say which attempt at their task they are
(`rollout`, from 0); of two rows for the same attempt the later one counts.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import date, datetime
from pathlib import Path
from typing import Any, cast

from whet.calls import place_of
from whet.clients.usage import JUDGE_USAGE, UsageTotals, context_tokens, usage_of
from whet.errors import ConfigError, RunError
from whet.records.directory import METADATA, RESULTS
from whet.system.files import count_lines, json_line, write_whole
from whet.system.redaction import redacted
from whet.types import RolloutOutput, State

ANOTHER_PATH = "Make room or choose another results_path, then run the same command to continue."
LONGEST_MESSAGE = 1000
"""Characters that are kept of what an error says: a model or an environment may have written it."""


def state_to_output(state: State, state_columns: Sequence[str] | None = None) -> RolloutOutput:
    """The row of a rollout. Raises `ConfigError` for a state column that JSON cannot hold."""
    output = RolloutOutput(
        example_id=state.get("example_id", 0),
        prompt=output_messages(state.get("prompt")),
        completion=output_messages(state.get("completion")),
        reward=state.get("reward"),
        timing=state["timing"].model_dump(),
        is_completed=state.get("is_completed", False),
        is_truncated=state.get("is_truncated", False),
        stop_condition=state.get("stop_condition"),
        metrics=dict(state.get("metrics") or {}),
        error=None,
        tool_defs=[
            {key: value for key, value in tool.items() if value is not None} for tool in state.get("tool_defs") or ()
        ],
    )
    if state.get("answer") not in (None, "", [], {}):  # 0 and False are answers
        output["answer"] = state["answer"]
    if state.get("info"):
        output["info"] = state["info"]
    usage = _token_usage(state)
    if usage is not None:
        output["token_usage"] = usage
    judges = state.get(JUDGE_USAGE)
    if isinstance(judges, UsageTotals):
        output[JUDGE_USAGE] = dict(judges)
    if state.get("error") is not None:
        output["error"] = error_info(state["error"])
        output["error_chain"] = output["error"]["error_chain_repr"]
        output["long_error_chain"] = output["error"]["error_chain_str"]
    for column in state_columns or ():
        if column in output:
            continue
        value = state.get(column)
        problem = not_json(value)
        if problem is not None:
            raise ConfigError(
                f"state column '{column}' holds {problem}, which is not JSON-serializable; leave it out of "
                "state_columns."
            )
        output[column] = value
    return output


def output_messages(messages: Any) -> Any:
    """Messages for a row: empty fields left out, each tool call as JSON text (so that columns keep one type)."""
    if messages is None or isinstance(messages, str):
        return messages
    rows = []
    for message in messages:
        row = {key: value for key, value in message.items() if value is not None}
        if row.get("tool_calls"):
            row["content"] = row.get("content") or ""
            row["tool_calls"] = [json.dumps(call) for call in row["tool_calls"]]
        rows.append(row)
    return rows


def error_info(error: BaseException) -> dict[str, str]:
    """An error and its causes: the class, the chain as `repr` and as class names, and `message`, one sentence.

    The message has the file and line where the environment's code raised the error.
    """
    chain: list[BaseException] = []
    cause: BaseException | None = error
    while cause is not None:
        chain.append(cause)
        cause = cause.__cause__
    return {
        "error": type(error).__name__,
        "error_chain_repr": " -> ".join(map(repr, chain)),
        "error_chain_str": " -> ".join(type(link).__name__ for link in chain),
        "message": _message(chain),
    }


def _message(chain: Sequence[BaseException]) -> str:
    said: list[str] = []
    for link in chain[:4]:
        text = " ".join(str(link).split())[:LONGEST_MESSAGE]
        if text and not any(text in other for other in said):
            said.append(text)
    raised_at = place_of(chain[0])
    text = ": ".join(said) or type(chain[0]).__name__
    return text if not raised_at or raised_at in text else f"{text} ({raised_at})"


def error_message(row: Mapping[str, Any]) -> str | None:
    """What went wrong with the rollout of a row, in one sentence; None where nothing did.

    Rows that have no message, which older versions wrote, give their chain.
    """
    error = row.get("error")
    if not isinstance(error, Mapping):
        return None if error is None else str(error)[:LONGEST_MESSAGE]
    return str(error.get("message") or error.get("error_chain_repr") or error.get("error"))[:LONGEST_MESSAGE]


def save_metadata(directory: Path, metadata: Mapping[str, Any]) -> None:
    """Replace `metadata.json`, without secrets. Raises `RunError` where it cannot be written."""
    fields = redacted({key: value for key, value in metadata.items() if key != "path_to_save"})
    path = directory / METADATA
    try:
        write_whole(path, json.dumps(json.loads(json_line(fields, _plain)), indent=2) + "\n", durable=False)
    except OSError as error:
        kept = what_is_kept(directory / RESULTS)
        raise RunError(f"{path}: cannot write results ({error.strerror or error}); {kept}. {ANOTHER_PATH}") from error


def what_is_kept(path: Path) -> str:
    """What a file holds of the rows before one that could not be written, for people."""
    try:
        rows = count_lines(path)
    except OSError:
        rows = 0
    if not rows:
        return "no row is saved"
    return f"the {rows} rows before are kept" if rows > 1 else "the row before is kept"


def row_line(output: RolloutOutput) -> str:
    """A row as stored in `results.jsonl`: valid JSON on one line, with its newline."""
    return json_line(output, _plain)


def row_key(row: Mapping[str, Any]) -> tuple[Any, int] | None:
    """Task and attempt of a row; None for a row that does not say which attempt it is."""
    rollout = row.get("rollout")
    return (row.get("example_id"), rollout) if isinstance(rollout, int) else None


def _token_usage(state: State) -> dict[str, float] | None:
    usage = state.get("usage")
    seen = usage.snapshot() if isinstance(usage, UsageTotals) else None
    trajectory = state.get("trajectory") or []
    if seen is not None:
        totals = cast(dict[str, float], seen)
    else:
        counts = [tokens for step in trajectory if (tokens := usage_of(step.get("response"))) is not None]
        if not counts:
            return None
        totals = {
            "input_tokens": float(sum(first for first, _ in counts)),
            "output_tokens": float(sum(second for _, second in counts)),
        }
    if trajectory:
        totals.update(context_tokens(trajectory))
    return totals


def not_json(value: Any) -> str | None:
    """What in `value` JSON cannot hold; None where it can hold it all."""
    if value is None or isinstance(value, str | int | float | bool | date | datetime | Path | BaseException):
        return None
    if isinstance(value, Mapping):
        odd = next((key for key in value if not isinstance(key, str)), None)
        if odd is not None:
            return f"a dict with the key {odd!r}"
        value = value.values()
    elif hasattr(value, "model_dump"):
        return None
    elif not isinstance(value, list | tuple):
        return f"a {type(value).__name__}"
    return next((problem for item in value if (problem := not_json(item)) is not None), None)


def _plain(value: Any) -> Any:
    if hasattr(value, "model_dump"):
        return value.model_dump()
    if isinstance(value, date | datetime):
        return value.isoformat()
    if isinstance(value, BaseException):
        return repr(value)
    return dict(value) if isinstance(value, Mapping) else str(value)
