"""From a claimed run to the plan of its shim: the submission on disk, environments, command, what it may see."""

from __future__ import annotations

import contextlib
import hashlib
import os
import secrets
import shutil
import sys
import tempfile
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path, PurePosixPath
from typing import Any

from whet.errors import ConfigError
from whet.hub.storage.store import FileStore
from whet.records.directory import METADATA, RUN_CONFIG
from whet.service.runner import isolation as isolating
from whet.service.runner import network
from whet.service.runner.environments import Builder, RunPackages
from whet.service.runner.folders import CACHE, RUN, SUBMISSION, RunFolder
from whet.service.runner.isolation import Isolation, View
from whet.service.runner.limits import RunLimits
from whet.service.runner.progress import Watch
from whet.service.runner.shim import GATE_HERE, ShimPlan
from whet.system import untrusted
from whet.system.files import write_whole

BEGUN = {"training": RUN_CONFIG, "sft": RUN_CONFIG, "search": METADATA}
"""The file that a run directory has from its beginning, for the kinds that can be continued in it."""
SECRETS_INSIDE = "/dev/shm/whet-secrets.json"


@dataclass(frozen=True, slots=True)
class PreparedRun:
    """What a run is, taken out of its row."""

    run: str
    kind: str
    config: str
    files: Mapping[str, str]
    resume_step: int | None
    resume: bool
    number: int
    fence: int
    needs: Mapping[str, Any] = field(default_factory=dict)


Command = Callable[[Path, PreparedRun, RunFolder], Sequence[str]]
"""The seam for tests: (interpreter, job, folder) -> the words of the run's process, in place of `command_of`."""


@dataclass(frozen=True, slots=True)
class Workshop:
    """What preparing needs of a runner."""

    data: Path
    blobs: FileStore
    packages: FileStore
    isolation: Isolation
    readable: Sequence[Path] = ()
    database: Path | None = None  # of SQLite, in a folder that may not be shown
    command: Command | None = None
    patience_s: float = 600.0
    network: Sequence[str] | None = ()
    """What isolated runs may reach besides public addresses; None: they have the machine's network."""
    leaving: threading.Event = field(default_factory=threading.Event)
    """Set when the runner ends, which does not wait for packages to be installed."""
    upstream: str | None = None  # the index of packages that are not on the hub; None: pip's

    def plan(
        self, job: PreparedRun, packages: RunPackages, values: Mapping[str, str], devices: Sequence[str] | None
    ) -> ShimPlan:
        """Everything is on disk when this returns. Raises `ConfigError` with the reason why the run cannot start."""
        folder = RunFolder.of(self.data, job.run)
        user = self.isolation.user_of(job.run)
        materialise(folder, job, self.blobs)
        builder = Builder(self.data, self.packages, self.isolation, self._hidden, self.upstream, self.leaving)
        python = builder.python_with(packages, user)
        (folder.path / "attempts").mkdir(exist_ok=True)
        if not untrusted.is_folder(folder.path, RUN) or (job.kind in BEGUN and not _begun(job, folder)):
            # An attempt was killed before its directory could be continued, or something else is in its place.
            untrusted.remove(folder.path, RUN)
        words = list((self.command or command_of)(python, job, folder))
        isolated = self.isolation.bubblewrap is not None
        variables = isolating.environment(isolating.HOME if isolated else str(Path.home()))
        variables["PATH"] = f"{python.parent}:{variables['PATH']}"
        variables["PYTHONPATH"] = str(folder.submission / "modules")
        variables["WANDB_DIR"] = str(folder.path)
        own_network = isolated and self.network is not None
        variables |= network.variables() if own_network else {}
        if devices is not None:
            variables["CUDA_VISIBLE_DEVICES"] = ",".join(devices)
        limits = RunLimits.of(job.needs)
        view = replace(self._view(folder, python, user), own_network=own_network, memory=limits.memory // 2)
        return ShimPlan(
            command=self.isolation.command(view, [GATE_HERE, *words]),
            directory=str(folder.submission) if not isolated else "/",
            environment=variables,
            secrets=dict(values),
            secrets_file=SECRETS_INSIDE if isolated else _place_for_secrets(),
            sweep=not isolated,
            patience_s=self.patience_s,
            limits=limits.as_dict(),
            network=list(self.network or ()) if own_network else None,
            facts={
                "before": Watch(folder.run, job.kind).mark(),
                "run_id": job.run,
                "number": job.number,
                "fence": job.fence,
                "devices": list(devices or ()),
            },
        )

    @property
    def _hidden(self) -> list[Path]:
        return [self.data, *([self.database.parent] if self.database is not None else [])]

    def _view(self, folder: RunFolder, python: Path, user: int | None) -> View:
        caches = {}
        if self.isolation.bubblewrap is not None:
            for inside, shared in isolating.model_caches().items():
                added = folder.cache / inside.rpartition("/")[2]
                for path in (added, Path(f"{added}.work"), added / ".locks"):
                    path.mkdir(parents=True, exist_ok=True)
                if shared.is_dir():
                    caches[inside] = (shared, added)
            if user is not None:
                for name in (CACHE, RUN):
                    untrusted.give(folder.path, name, user)
                # The run adds names of its own, and can neither move nor replace those of the runner (sticky).
                with untrusted.open_folder(folder.path) as descriptor:
                    os.fchown(descriptor, os.geteuid(), user)
                    os.fchmod(descriptor, 0o1775)
        environment = [python.parents[1]] if python != Path(sys.executable) else []
        return View(
            writable=[folder.path],
            readable=[folder.submission, *environment, *self.readable],
            empty=[folder.path / "attempts", folder.cache],
            hidden=self._hidden,
            caches=caches,
            user=user,
            directory=folder.submission,
        )


def tidy(folder: RunFolder) -> None:
    """Remove what a run that has ended had added to its view of the model caches: a restart fetches it again."""
    with contextlib.suppress(OSError):
        untrusted.remove(folder.path, CACHE)


def materialise(folder: RunFolder, job: PreparedRun, blobs: FileStore) -> None:
    """`submission/`: the config and the files that it names, with their hashes verified. Whole or absent."""
    if untrusted.is_folder(folder.path, SUBMISSION):
        return
    folder.path.mkdir(mode=0o755, parents=True, exist_ok=True)
    untrusted.remove(folder.path, SUBMISSION)
    aside = Path(tempfile.mkdtemp(prefix=".submission.", dir=folder.path))
    try:
        write_whole(aside / RUN_CONFIG, job.config)
        for name, sha256 in job.files.items():
            inside = PurePosixPath(name)
            if inside.is_absolute() or ".." in inside.parts or not inside.parts or inside == PurePosixPath(RUN_CONFIG):
                raise ConfigError(f"the submission has a file '{name}', which is no path inside of it.")
            _copy(blobs, sha256, aside / inside, name)
        for above, _, files in os.walk(aside):  # the run's user may be another one, and only reads
            os.chmod(above, 0o755)
            for one in files:
                os.chmod(Path(above, one), 0o644)
        aside.rename(folder.submission)
    finally:
        shutil.rmtree(aside, ignore_errors=True)


def _copy(blobs: FileStore, sha256: str, target: Path, name: str) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    digest = hashlib.sha256()
    try:
        with blobs.open(sha256) as source, target.open("xb") as copy:
            while piece := source.read(1 << 20):
                digest.update(piece)
                copy.write(piece)
    except FileNotFoundError:
        raise ConfigError(f"the file '{name}' of the submission is not in the store. Submit the run again.") from None
    if digest.hexdigest() != sha256:
        raise ConfigError(f"the file '{name}' of the submission is damaged in the store. Submit the run again.")


def _begun(job: PreparedRun, folder: RunFolder) -> bool:
    """Whether an attempt before has left something to continue."""
    return job.resume and job.kind in BEGUN and untrusted.is_file(folder.path, f"{RUN}/{BEGUN[job.kind]}")


def command_of(python: Path, job: PreparedRun, folder: RunFolder) -> list[str]:
    """The command of each kind (docs/design/service.md), which continues a run directory that there is."""
    begun = _begun(job, folder)
    own = ["--name", folder.run.name]
    whet = [str(python), "-m", "whet.cli.main"]
    if job.kind in ("training", "sft"):
        if begun and job.resume_step is not None:
            return [*whet, "train", "resume", str(folder.run), "--step", str(job.resume_step)]
        verb = "run" if job.kind == "training" else "sft"
        more = ["--resume"] if begun else []
        return [*whet, "train", verb, RUN_CONFIG, *own, "--runs_directory", str(folder.path), *more]
    if job.kind == "evaluation":
        more = ["--resume"] if untrusted.names(folder.path, RUN, most=1) else []
        return [*whet, "eval", "run", RUN_CONFIG, "--output-directory", str(folder.run), *more]
    if begun:
        return [*whet, "gepa", "run", "--resume", str(folder.run)]
    return [*whet, "gepa", "run", RUN_CONFIG, *own, "--runs-directory", str(folder.path)]


def _place_for_secrets() -> str:
    """A path in memory, where the system has that, for a file that the run makes and removes."""
    memory = Path("/dev/shm")
    folder = memory if memory.is_dir() and os.access(memory, os.W_OK) else Path(tempfile.gettempdir())
    return str(folder / f"whet-secrets-{secrets.token_hex(16)}.json")
