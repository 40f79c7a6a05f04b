"""The folder of a sweep: `sweep.json`, which is whole at any moment, and what trials printed, `trial_N.log`.

A trial is written down before its process starts, and its score once its process has ended. Between the two the run's
own folder says how far it is.
"""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

from whet.errors import RunError
from whet.parsing import parse_json
from whet.records.differences import differences, refuse
from whet.records.directory import SWEEP, OwnedDirectory
from whet.rl.sweep.search import SweepTrial
from whet.system.files import json_line, write_whole


class SweepDirectory(OwnedDirectory):
    """`runs/NAME/` of a sweep, locked by this process from `open` to `close`."""

    doing = "sweeping in"

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.file = path / SWEEP
        self.trials: list[SweepTrial] = []
        self._plan: dict[str, Any] = {}

    def open(self, plan: dict[str, Any], *, resume: bool) -> None:
        """Make the folder, or continue in it.

        `plan` is what makes the sweep this one, as JSON has it. Raises `RunError` where the folder is there already,
        or where it was begun with another plan.
        """
        self._plan = json.loads(json_line(plan))
        if not resume:
            if self.path.exists() and (self.file.exists() or any(self.path.iterdir())):
                raise RunError(f"{self.path} already exists. Continue it with --resume, or choose another --name.")
        elif not self.file.is_file():
            raise RunError(f"{self.path} is not a sweep: {self.file} is missing. Start it without --resume.")
        with self._taken(resume=True):
            if resume:
                self._read()
            else:
                self.save()

    def _read(self) -> None:
        try:
            state = parse_json(self.file.read_bytes())
            began, trials = state["plan"], [SweepTrial(**one) for one in state["trials"]]
        except (ValueError, TypeError, KeyError) as error:
            raise RunError(f"{self.file} cannot be read ({error}). Start a new sweep under another --name.") from None
        lines = [f"{path}: was {old!r}, is {new!r}" for path, (old, new) in differences(began, self._plan).items()]
        refuse(lines, f"{self.path} was started with another config:")
        self.trials = trials

    def save(self) -> None:
        state = {"plan": self._plan, "trials": [asdict(trial) for trial in self.trials]}
        write_whole(self.file, json.dumps(json.loads(json_line(state)), indent=1) + "\n")

    def log_of(self, trial: SweepTrial) -> Path:
        return self.path / f"trial_{trial.number}.log"
