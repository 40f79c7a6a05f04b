"""The run directory of a search: its files, its lock, its metadata, and the identity that a resume checks.

gepa.toml                                  the resolved config
metadata.json                              what the run is, how far it is, how it ended
calls.jsonl, rollouts/, reflections.jsonl  what was begun and what came of it: with these, a run is continued
candidates.jsonl, pareto_frontier.jsonl, report.html, best_prompt.txt, best_components.json    for users
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, is_dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from whet.errors import GepaError
from whet.evals.config import EvalConfig
from whet.evals.sessions.resume import digest_of_tasks, environment_source, model_files
from whet.gepa.config import GepaConfig
from whet.gepa.splits import Splits
from whet.gepa.types import Candidate
from whet.records.differences import difference_lines, refuse
from whet.records.directory import METADATA, SEARCH_CONFIG, OwnedDirectory, load_metadata, write_metadata
from whet.system.files import json_line, write_whole
from whet.system.redaction import KNOWN, redacted

IDENTITY = "identity"
MAX_CALLS = "max_calls"
FIXED = {
    "sampling",
    "reflection_sampling",
    "seed",
    "num_train",
    "num_val",
    "minibatch_size",
    "perfect_score",
    "state_columns",
    "components",
    "timeout",
}
"""Fields that a resume may not change."""
FREE_IN_SEARCH = {"held_out", "confirm_calls", "max_retries", "retry_delay", "max_unusable"}
"""Fields of `[gepa]` that a resume may change."""


class SearchDirectory(OwnedDirectory):
    """`runs/<name>/`, locked by this process from `open` to `close`."""

    doing = "searching in"

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self._metadata: dict[str, Any] = {}

    def check(self, identity: Mapping[str, Any], max_calls: int, *, resume: bool) -> None:
        """Whether `open` would be refused. Raises `RunError` that names every key that is not as it was."""
        if not resume:
            self.check_new()
            return
        metadata = self._load()
        lines = difference_lines(metadata.get(IDENTITY) or {}, json.loads(json_line(identity)))
        before = metadata.get(MAX_CALLS)
        if isinstance(before, int) and max_calls < before:
            lines.append(f"{MAX_CALLS}: was {before}, is {max_calls}, and may only grow")
        refuse(
            lines,
            f"--resume: {self.path} holds a search with other settings:",
            "Give the settings it had, or begin a new run without --resume.",
        )

    def check_new(self) -> None:
        """Raise `GepaError` where the directory of a new search exists."""
        if self.path.exists():
            raise GepaError(
                f"{self.path} already exists. Continue it with --resume {self.path}, or choose another --name."
            )

    def open(self, config: GepaConfig, identity: Mapping[str, Any], *, resume: bool) -> None:
        """Make the directory, or open that of the search to resume, and lock it.

        Raises what `check` raises, and `RunError` where another process searches in it or it cannot be made.
        """
        self.check(identity, config.max_calls, resume=resume)
        with self._taken(resume=resume):
            if resume:
                self._metadata = self._load()
            write_whole(self.path / SEARCH_CONFIG, config.to_toml())
            self.write(
                state="running",
                config=redacted(config.model_dump(mode="json", exclude={"env_file"})),
                max_calls=config.max_calls,
                identity=dict(identity),
            )

    @property
    def seconds(self) -> float:
        """Seconds that earlier processes searched, as last saved."""
        return float(self._metadata.get("time") or 0.0)

    def write(self, **fields: Any) -> None:
        """Update these fields of `metadata.json`; the others stay."""
        plain = {name: _plain(value) for name, value in fields.items()}
        self._metadata |= {**plain, "date": datetime.now().isoformat(timespec="seconds")}
        write_metadata(self.path, self._metadata)

    def write_files(self, files: Mapping[str, str]) -> None:
        for name, text in files.items():
            write_whole(self.path / name, KNOWN.text(text))

    def _load(self) -> dict[str, Any]:
        metadata = load_metadata(self.path)
        if metadata is None:
            raise GepaError(f"--resume {self.path}: this is no run of whet gepa; {METADATA} is missing in it.")
        return metadata


def _plain(value: Any) -> Any:
    return asdict(value) if is_dataclass(value) and not isinstance(value, type) else value


def identity_of(
    config: GepaConfig, policy: EvalConfig, reflector: EvalConfig, seed: Candidate, splits: Splits
) -> dict[str, Any]:
    """What a resumed search has in common with the search before it, as JSON values.

    Left out: the number of calls, their rate and concurrency, and the address of the model.
    """
    fields = {
        "env": {
            section.label: {
                "environment": section.label,
                **environment_source(section.id),
                "args": section.loader_args(),
                "weight": section.weight,
            }
            for section in config.env
        },
        "model": _model(config, policy),
        "reflection_model": _model(config, reflector),
        **config.model_dump(include=FIXED),
        "gepa": config.gepa.model_dump(mode="json", exclude=FREE_IN_SEARCH),
        "seed_candidate": dict(seed),
        "tasks": {
            "train": digest_of_tasks(example.row for example in splits.train),
            "val": digest_of_tasks(example.row for example in splits.val),
        },
    }
    plain: dict[str, Any] = redacted(json.loads(json.dumps(fields, default=str)))
    return plain


def _model(config: GepaConfig, model: EvalConfig) -> dict[str, Any]:
    return {
        "name": model.model,
        "runs": "here" if model.local else "behind an endpoint",
        "files": model_files(model.model) if model.local else None,
        "dtype": config.dtype if model.local else None,
    }
