"""What a run leaves when it ends: weights where people look for them, and a report."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Protocol

from whet.errors import WhetError
from whet.files import replace_directory
from whet.rl.learner.config import LoraConfig
from whet.rl.monitors.protocol import Monitor, Outcome
from whet.rl.report import write_report
from whet.rl.run_directory import RunDirectory


class Exports(Protocol):
    """A learner as far as its weights go."""

    def export(self, directory: Path) -> None: ...
    def export_merged(self, directory: Path) -> None: ...


def export_weights(learner: Exports, directory: RunDirectory, step: int, lora: LoraConfig | None) -> Path:
    """The trained weights: an adapter (and the whole model, if it is to be merged), or a model with its tokenizer."""
    if lora is not None and lora.merge:
        replace_directory(directory.model, learner.export_merged)
    target = directory.model if lora is None else directory.adapters / f"step_{step}"
    return replace_directory(target, learner.export)


def with_report(outcome: Outcome, directory: RunDirectory, monitor: Monitor) -> Outcome:
    """The same outcome with its report; a report that cannot be written is said, and takes nothing else down."""
    try:
        return replace(outcome, report=write_report(directory.path))
    except (OSError, WhetError) as error:
        monitor.note(f"no report was written: {error}")
        return outcome
