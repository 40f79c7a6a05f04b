"""Resuming an evaluation: its directory, whether it is the same evaluation, and which of its rollouts are done.

The identity that `metadata.json` keeps is compared with that of the current config. How many tasks and rollouts there
are is no part of it, nor how fast they are run: those may change.

A rollout is known by its task and its attempt at that task. Of several rows for one rollout the last
counts. Where attempts are scored together, only a whole group counts: its rows stand one after another, in order, and
a group that was cut off by a kill is attempted again as a whole.
"""

from __future__ import annotations

import hashlib
import json
import re
import uuid
from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from whet.envs.environment import Environment
from whet.envs.identity.record import digest_of_files, identify
from whet.errors import RunError
from whet.evals.config import EvalConfig
from whet.records.differences import difference_lines, refuse
from whet.records.directory import METADATA, RESULTS, load_metadata
from whet.rollouts.row_log import read_rows
from whet.system.files import expanded
from whet.system.redaction import redacted

NOWHERE = -1
OWN = ("env_args", "extra_env_kwargs", "max_tokens", "temperature", "sampling_args", "seed", "shuffle", "dtype")
"""Settings that distinguish evaluations of one environment and model."""
IDENTITY, TASKS, STATE = "identity", "tasks", "state"
"""Keys of `metadata.json`: what the evaluation is, a digest of its tasks, and running, interrupted or finished."""


@dataclass(frozen=True, slots=True)
class Spots:
    """Where the row of each rollout begins in `results.jsonl`; rollouts are numbered by task and attempt."""

    offsets: array[int]  # NOWHERE: there is none
    failed: bytearray  # 1: it ended in an error

    @classmethod
    def none(cls, rollouts: int) -> Spots:
        return cls(array("q", [NOWHERE]) * rollouts, bytearray(rollouts))

    def put(self, number: int, offset: int, failed: bool) -> None:
        self.offsets[number], self.failed[number] = offset, failed

    def is_done(self, number: int) -> bool:
        """Whether the rollout need not be run again."""
        return self.offsets[number] != NOWHERE and not self.failed[number]

    def known(self) -> list[int]:
        """Where the rows begin, in the order of rollouts."""
        return [offset for offset in self.offsets if offset != NOWHERE]


def check_continues(
    directory: Path, identity: Mapping[str, Any], rows: Sequence[Mapping[str, Any]], rollouts_per_example: int
) -> dict[str, Any]:
    """The metadata of the evaluation in `directory`, once it is sure that it is the same evaluation.

    Raises `RunError` naming each difference with its old and its new value.
    """
    metadata = load_metadata(directory) if directory.is_dir() else None
    if metadata is None:
        raise RunError(f"--resume: {directory} is no evaluation: there is no {METADATA} in it.")
    if not isinstance(metadata.get(IDENTITY), dict):
        raise RunError(
            f"--resume: {directory} does not say enough of what was run; it was not written by this `whet eval run`. "
            "Begin a new evaluation."
        )
    lines = difference_lines(metadata[IDENTITY], identity)
    examples, attempts = int(metadata["num_examples"]), int(metadata["rollouts_per_example"])
    if len(rows) < examples:
        lines.append(f"num_examples (-n): was {examples}, is {len(rows)}, and may only grow")
    elif digest_of_tasks(rows[:examples]) != metadata.get(TASKS):
        lines.append(f"tasks: the first {examples} are not those that were attempted")
    if rollouts_per_example < attempts:
        lines.append(f"rollouts_per_example (-r): was {attempts}, is {rollouts_per_example}, and may only grow")
    refuse(
        lines,
        f"--resume: {directory} is another evaluation than the one to run now:",
        "Give the settings it had, or begin a new evaluation without --resume.",
    )
    return metadata


def find_rows(directory: Path, example_ids: Sequence[Any], rollouts_per_example: int, *, together: bool) -> Spots:
    """Where the rows of rollouts are that were run before. `together`: attempts at a task are scored as a group.

    Raises `RunError` for a line that is not a row of this evaluation.
    """
    path = directory / RESULTS
    spots = Spots.none(len(example_ids) * rollouts_per_example)
    if not path.exists():
        return spots
    task_of = {example_id: task for task, example_id in enumerate(example_ids)}
    rows = _keys(path, task_of, rollouts_per_example)
    for task, attempt, offset, failed in _whole_groups(rows, rollouts_per_example) if together else rows:
        spots.put(task * rollouts_per_example + attempt, offset, failed)
    return spots


def _keys(path: Path, task_of: Mapping[Any, int], rollouts: int) -> Iterator[tuple[int, int, int, bool]]:
    """Task, attempt, offset and whether it failed, of each row."""
    for offset, line in read_rows(path):
        try:
            row = json.loads(line)
            task, attempt = task_of[row["example_id"]], row["rollout"]
            if not 0 <= attempt < rollouts:
                raise ValueError(f"there is no rollout {attempt}")
        except (ValueError, KeyError, TypeError) as error:
            raise RunError(
                f"{path}: the line at byte {offset} is no row of this evaluation ({error!r}). Remove it, and resume."
            ) from None
        yield task, attempt, offset, row.get("error") is not None


def _whole_groups(rows: Iterator[tuple[int, int, int, bool]], size: int) -> Iterator[tuple[int, int, int, bool]]:
    """The rows of groups of which none is missing."""
    group: list[tuple[int, int, int, bool]] = []
    for row in rows:
        if group and (row[0] != group[0][0] or row[1] != len(group)):
            group = []
        if row[1] == len(group):
            group.append(row)
        if len(group) == size:
            yield from group
            group = []


def find_to_resume(configs: Sequence[EvalConfig]) -> list[Path | None]:
    """For each config the newest evaluation of its environment and model, with its settings; None where there is none.

    One alone takes the newest with other settings where none has its own: resuming reports what has changed.
    Raises `RunError` where none of them has any.
    """
    stored = [_stored(config) for config in configs]
    own = [
        [one for one in candidates if _is_of(config, one[1])]
        for config, candidates in zip(configs, stored, strict=True)
    ]
    if len(configs) > 1 or any(own):
        stored = own
    newest = [max(candidates, key=_date)[0] if candidates else None for candidates in stored]
    if configs and not any(newest):
        first = configs[0]
        others = f" and {len(configs) - 1} more" if len(configs) > 1 else ""
        raise RunError(
            f"--resume: there is no evaluation of {first.label} with {first.model}{others} in "
            f"{first.output_directory}. Name its directory (--resume=PATH), or leave --resume out to begin one."
        )
    return newest


def _stored(config: EvalConfig) -> list[tuple[Path, dict[str, Any]]]:
    folder = results_directory(config).parent
    evaluations = []
    for file in folder.glob(f"*/{METADATA}"):
        metadata = load_metadata(file.parent)
        if metadata is not None:
            evaluations.append((file.parent, metadata))
    return evaluations


def _is_of(config: EvalConfig, metadata: dict[str, Any]) -> bool:
    """Whether an evaluation was one of this config's arguments and sampling."""
    before, now = metadata.get("config"), redacted(config.model_dump(mode="json"))
    return isinstance(before, dict) and all(before.get(name) == now[name] for name in OWN)


def _date(stored: tuple[Path, dict[str, Any]]) -> tuple[str, float]:
    directory, metadata = stored
    return str(metadata.get("date") or ""), (directory / METADATA).stat().st_mtime


def results_directory(config: EvalConfig) -> Path:
    """`outputs/evals/<env>--<model>/<id>`, new every time."""
    return config.output_directory / f"{_slug(config.label)}--{_slug(config.model)}" / uuid.uuid4().hex[:8]


def _slug(name: str) -> str:
    return re.sub(r"[^\w.@-]+", "--", name).strip("-.") or "unnamed"


def identity_of(config: EvalConfig, env: Environment, sampling: Mapping[str, Any]) -> dict[str, Any]:
    """Everything that a resumed evaluation must have in common with the one before, as JSON values."""
    fields = {
        "environment": config.label,
        **environment_source(config.environment),
        "env_args": config.env_args,
        "extra_env_kwargs": config.extra_env_kwargs,
        "model": config.model,
        "model_runs": "here" if config.local else "behind an endpoint",
        "model_files": model_files(config.model) if config.local else None,
        "dtype": config.dtype if config.local else None,
        "sampling_args": sampling,
        "seed": config.resolved_seed,
        "shuffle": config.shuffle,
        "independent_scoring": config.independent_scoring,
        "state_columns": list(config.state_columns),
    }
    plain: dict[str, Any] = redacted(json.loads(json.dumps(fields, default=str)))
    return plain


def environment_source(environment: str) -> dict[str, Any]:
    """Version, owner, wheel and commit of the environment's package, and a digest of its files; None for what it does
    not have."""
    identity = identify(environment)
    return {
        "environment_version": identity.version,
        "environment_source": identity.content,
        "environment_owner": identity.owner,
        "environment_wheel": identity.wheel,
        "environment_commit": identity.commit,
    }


def model_files(model: str) -> str | None:
    """A digest of the files of a model in a directory; None for one that is known by its name alone."""
    directory = expanded(model)
    return digest_of_files(directory) if directory.is_dir() else None


def digest_of_tasks(rows: Iterable[Mapping[str, Any]]) -> str:
    """A short digest of tasks: prompts and answers."""
    digest = hashlib.sha256()
    for row in rows:
        known = [row.get(key) for key in ("example_id", "prompt", "answer", "info")]
        digest.update(json.dumps(known, sort_keys=True, default=str).encode() + b"\n")
    return digest.hexdigest()[:16]
