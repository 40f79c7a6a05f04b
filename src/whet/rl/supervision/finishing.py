"""What a run leaves when it ends: weights where people look for them, a report, and where it hung, why."""

from __future__ import annotations

import os
from dataclasses import replace
from multiprocessing import active_children
from pathlib import Path
from typing import NoReturn, Protocol

from whet.errors import WhetError
from whet.rl.learner.config import LoraConfig
from whet.rl.monitors.protocol import Monitor, Outcome
from whet.rl.report import write_report
from whet.rl.storage.run_directory import RunDirectory
from whet.system.files import replace_directory


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


def stall(failure: str | None, directory: RunDirectory, step: int) -> str | None:
    """Why the watchdog stopped a run, where it did, whatever else that has led to."""
    if failure is None:
        return None
    saved = (directory.checkpoints / f"step_{step}").is_dir()
    return f"{failure}." + (f" There is a checkpoint of step {step}." if saved else "")


def end_the_process(monitor: Monitor, outcome: Outcome) -> NoReturn:
    """Nothing else has helped: code that cannot be interrupted. The run can be resumed from its last checkpoint."""
    close_and_kill_children(monitor, outcome)
    os._exit(1)


def close_and_kill_children(monitor: Monitor, outcome: Outcome) -> None:
    """What is left to do before the process is ended from outside its event loop."""
    monitor.close(outcome)
    for child in active_children():  # a process that hangs does not see that its parent is gone
        child.kill()
