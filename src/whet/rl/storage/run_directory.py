"""A run is a directory: where each of its files is, and which process may write in it.

One process at a time owns a run (an advisory lock that the kernel drops when the process dies). Making the directory
is refused when it exists; resuming is refused when the config differs in anything that would change what is trained,
and the message says exactly in what.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any, Protocol

from whet.config import read_toml
from whet.errors import RunError
from whet.rl.learner.config import OptimizerConfig
from whet.system.files import write_whole
from whet.system.redaction import redacted

LOCK = ".lock"
FREE_ON_RESUME = (
    "name",
    "runs_directory",
    "env_file",
    "eval",
    "checkpointing",
    "deployment",
    "max_concurrent",
    "wandb",
    "trackio",
    "budget",
    "early_stop",
    "watchdog",
)
"""Keys that may differ on resume: they change neither what is sampled nor what is learned. So may `max_steps` grow."""


LENGTH = ("max_steps", "num_epochs")
"""Keys that say when a run ends. They may differ where nothing that was done so far depends on them."""


class RunSettings(Protocol):
    """The part of a config that a run directory uses."""

    @property
    def optimizer(self) -> OptimizerConfig: ...
    def to_toml(self) -> str:
        """The resolved config; reading it back gives an equal config."""
        ...

    def model_dump(self, *, mode: str, exclude_none: bool) -> dict[str, Any]: ...


class RunDirectory:
    """`runs/<name>/`, locked by this process from `open` to `close`."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lock: IO[str] | None = None

    @property
    def config(self) -> Path:
        return self.path / "config.toml"

    @property
    def status(self) -> Path:
        return self.path / "status.json"

    @property
    def metrics(self) -> Path:
        return self.path / "metrics.jsonl"

    @property
    def errors(self) -> Path:
        return self.path / "errors.jsonl"

    @property
    def rollouts(self) -> Path:
        return self.path / "rollouts"

    @property
    def checkpoints(self) -> Path:
        return self.path / "checkpoints"

    @property
    def adapters(self) -> Path:
        return self.path / "adapters"

    @property
    def model(self) -> Path:
        return self.path / "model"

    @property
    def ledger(self) -> Path:
        return self.path / "ledger.jsonl"

    @property
    def logs(self) -> Path:
        return self.path / "logs"

    @property
    def report(self) -> Path:
        return self.path / "report.html"

    def check(self, config: RunSettings, *, resume: bool) -> None:
        """Whether `open` would be refused, found out before anything expensive is loaded. Raises `RunError`."""
        if not resume:
            if self.path.exists():
                raise RunError(
                    f"{self.path} already exists. Continue it with --resume, or choose another name: "
                    f"--name {self.path.name}-2 (--name auto takes the first free one)."
                )
            return
        if not self.config.is_file():
            raise RunError(f"{self.path} is not a run: {self.config} is missing. Start it without --resume.")
        differences = config_differences(read_toml(self.config), config)
        if differences:
            raise RunError(
                f"{self.path} was started with another config:\n" + "\n".join(f"  {line}" for line in differences)
            )

    def open(self, config: RunSettings, *, resume: bool) -> None:
        """Make the directory, or take an existing one to resume in, and lock it. Raises `RunError`."""
        self.check(config, resume=resume)
        try:
            self.path.mkdir(parents=True, exist_ok=resume)
            self._acquire()
            write_whole(self.config, config.to_toml())
        except OSError as error:
            raise RunError(f"cannot make the run directory {self.path}: {error.strerror}") from error

    def _acquire(self) -> None:
        lock = (self.path / LOCK).open("w")
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            lock.close()
            raise RunError(f"{self.path} is in use: another process is training in it") from None
        lock.write(str(os.getpid()))
        lock.flush()
        self._lock = lock

    def close(self) -> None:
        if self._lock is not None:
            self._lock.close()
            self._lock = None


def config_differences(saved: Mapping[str, Any], config: RunSettings) -> list[str]:
    """What would make a resumed run another run, a line each; empty when there is nothing."""
    saved, now = redacted(saved), redacted(config.model_dump(mode="json", exclude_none=True))
    lines = []
    for key in sorted({*saved, *now} - {*FREE_ON_RESUME, *LENGTH}):
        for path, before, after in _differences(key, saved.get(key), now.get(key)):
            lines.append(f"{path}: was {before!r}, is {after!r}")
    for key in LENGTH:
        before, after = saved.get(key), now.get(key)
        if before != after and config.optimizer.schedule != "constant":
            lines.append(f"{key}: was {before!r}, is {after!r}, and optimizer.schedule depends on it")
    return lines


def _differences(path: str, before: Any, after: Any) -> list[tuple[str, Any, Any]]:
    if isinstance(before, Mapping) and isinstance(after, Mapping):
        found = []
        for key in sorted({*before, *after}):
            found += _differences(f"{path}.{key}", before.get(key), after.get(key))
        return found
    if isinstance(before, list) and isinstance(after, list) and len(before) == len(after):
        found = []
        for index, (old, new) in enumerate(zip(before, after, strict=True)):
            found += _differences(f"{path}.{index}", old, new)
        return found
    return [] if before == after else [(path, before, after)]
