"""The folder of one deployment, and how a checkpoint's files come into it.

    DATA/deployments/{id}/source.json       what is deployed: base model, [lora] of the run, step
    DATA/deployments/{id}/checkpoint/       the weights' file and the manifest, until they are exported
    DATA/deployments/{id}/weights/          the adapter or the model that is served
    DATA/deployments/{id}/base.sha256       of the model that the adapter belongs to

A run's directory is written by the run, which executes packages of others. So nothing in it is followed that is a
link, and what is served is a copy that the run cannot write to.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import shutil
import stat
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from whet.errors import ConfigError
from whet.inference.model_names import ADAPTER_CONFIG, ADAPTER_WEIGHTS, resolve_model
from whet.parsing import parse_json, parse_toml
from whet.rl.storage.checkpoints import ADAPTER, MANIFEST, WEIGHTS
from whet.service.runner.folders import RUN, SUBMISSION
from whet.system import untrusted
from whet.system.files import sync, write_whole

_STEP = re.compile(r"step_(\d{1,18})")


@dataclass(frozen=True, slots=True)
class DeploymentSource:
    """What a deployment is made from."""

    base: str  # as the run's config names it; a directory where that is in the submission
    lora: dict[str, Any] | None
    step: int
    own_base: bool  # the base is in the run's folder, which may be deleted: the weights are served whole
    data: str  # DATA, for the check that no other directory below it is read
    run: str
    checkpoint: bool = True  # else the adapter that the run wrote: of an older step that is all it keeps

    @property
    def adapter(self) -> bool:
        """Whether an adapter is served, with the base of others."""
        return self.lora is not None and not self.own_base

    @property
    def file(self) -> str:
        """What a checkpoint has of the weights."""
        return WEIGHTS if self.lora is None else ADAPTER

    @property
    def files(self) -> tuple[str, str]:
        return (MANIFEST, self.file) if self.checkpoint else (ADAPTER_CONFIG, ADAPTER_WEIGHTS)

    @property
    def directory(self) -> tuple[str, str]:
        """Of the step, below the run directory."""
        return "checkpoints" if self.checkpoint else "adapters", f"step_{self.step}"


class DeploymentFolder:
    """`DATA/deployments/{id}/`."""

    def __init__(self, data: Path, deployment: str) -> None:
        self.path = data / "deployments" / deployment
        self.source_file = self.path / "source.json"
        self.checkpoint = self.path / "checkpoint"
        self.weights = self.path / "weights"
        self.base_digest = self.path / "base.sha256"

    def source(self) -> DeploymentSource:
        """Raises `ConfigError` where the folder is gone or damaged."""
        try:
            return DeploymentSource(**json.loads(self.source_file.read_text(encoding="utf-8")))
        except (OSError, ValueError, TypeError) as error:
            raise ConfigError(
                f"the files of the deployment are gone or damaged ({self.source_file.name}: {error}). Deploy it again."
            ) from None

    def base_of_weights(self, *, search: bool = True) -> Path | None:
        """The directory of the model that the weights are an adapter of; None for a whole model.

        Where it is somewhere else than at the export, as after an update of Python or of a cache, `search` finds it,
        and the adapter names that from then on. Raises `WhetError` where it is gone, or another one has its name.
        """
        if not self.weights.is_dir():
            raise ConfigError("the files of the deployment are gone: it has no weights. Deploy it again")
        source, config = self.source(), self.weights / ADAPTER_CONFIG
        if not source.adapter:
            return None
        described = parse_json(config.read_bytes())
        recorded = Path(described["base_model_name_or_path"])
        if not recorded.is_dir():
            if not search:
                raise ConfigError(f"the base model {source.base} is not where it was")
            recorded = base_directory(source)
            if digest_of(recorded) != self.base_digest.read_text(encoding="utf-8"):
                raise ConfigError(
                    f"the base model {source.base} is another one than the adapter was trained on: its files differ"
                )
            write_whole(config, json.dumps({**described, "base_model_name_or_path": str(recorded)}))
        return recorded.resolve()

    def remove(self) -> None:
        shutil.rmtree(self.path, ignore_errors=True)


def source_of(data: Path, run: str, base: str, config: str, step: int | None) -> DeploymentSource | list[int]:
    """What a checkpoint of a run (None: the newest) is made from: its model `base` and its config, as TOML.

    Where there is none of that step: the steps there are.
    """
    lora = parse_toml(config).get("lora")
    submission = data / "runs" / run / SUBMISSION
    inside = (submission / base).resolve()
    own = inside.is_relative_to(submission.resolve()) and inside.is_dir()
    checkpoints = steps_of(data, run)
    # An adapter that was written is no more than that: it cannot be merged into a base of the run's own.
    adapters = steps_of(data, run, "adapters") if isinstance(lora, dict) and not own else set()
    steps = sorted(checkpoints | adapters)
    if not steps or (step is not None and step not in steps):
        return steps
    step = steps[-1] if step is None else step
    return DeploymentSource(
        base=str(inside) if own else base,
        lora=dict(lora) if isinstance(lora, dict) else None,
        step=step,
        own_base=own,
        data=str(data),
        run=run,
        checkpoint=step in checkpoints,
    )


def steps_of(data: Path, run: str, kind: str = "checkpoints") -> set[int]:
    """The steps of which a run has these."""
    try:
        with _opened(data, run, kind) as folder:
            return {int(match[1]) for name in os.listdir(folder) if (match := _STEP.fullmatch(name))}
    except OSError:
        return set()


def base_directory(source: DeploymentSource) -> Path:
    """The directory of the model that the run began with.

    A name may be a path, and a path that of another owner's weights. So below DATA only the run's submission counts,
    which the run cannot write to.
    """
    directory = resolve_model(source.base).resolve()
    data = Path(source.data).resolve()
    if directory.is_relative_to(data) and not directory.is_relative_to(data / "runs" / source.run / SUBMISSION):
        raise ConfigError(f"the base model {source.base} is in the folder of the service, which no run may begin with.")
    return directory


def digest_of(model: Path) -> str:
    """The SHA-256 of a model's configuration and weights."""
    from whet.inference.weights.gguf_tensors import complete

    complete(model)
    digest = hashlib.sha256()
    for path in (model / "config.json", *sorted(model.glob("*.safetensors"))):
        with path.open("rb") as file:
            digest.update(hashlib.file_digest(file, "sha256").digest())
    return digest.hexdigest()


def take(data: Path, deployment: str, source: DeploymentSource) -> DeploymentFolder:
    """Make the folder, with the checkpoint's files in it: the run may delete its checkpoints from then on.

    They are linked, or copied where that cannot be, and verified when they are exported. Raises `FileNotFoundError`
    where there is no such checkpoint, and other `OSError`s.
    """
    folder = DeploymentFolder(data, deployment)
    aside = folder.path.with_name(f".{deployment}.tmp")
    shutil.rmtree(aside, ignore_errors=True)
    try:
        with _opened(data, source.run, *source.directory) as checkpoint:
            (aside / "checkpoint").mkdir(mode=0o700, parents=True)
            for name in source.files:
                _take_file(checkpoint, name, aside / "checkpoint" / name)
        write_whole(aside / folder.source_file.name, json.dumps(asdict(source)))
        sync(aside / "checkpoint")
        sync(aside)
        os.rename(aside, folder.path)
        sync(folder.path.parent)
    finally:
        shutil.rmtree(aside, ignore_errors=True)
    return folder


def _take_file(directory: int, name: str, target: Path) -> None:
    if not stat.S_ISREG(os.stat(name, dir_fd=directory, follow_symlinks=False).st_mode):
        raise FileNotFoundError(f"{name} is not a file")
    try:
        os.link(name, target, src_dir_fd=directory, follow_symlinks=False)
    except OSError:  # another file system, or one without links
        descriptor = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=directory)
        with os.fdopen(descriptor, "rb") as file, target.open("xb") as copy:
            shutil.copyfileobj(file, copy, 1 << 20)
        sync(target)
    if not stat.S_ISREG(target.lstat().st_mode):  # it was exchanged meanwhile
        raise FileNotFoundError(f"{name} is not a file")


@contextlib.contextmanager
def _opened(data: Path, run: str, *names: str) -> Iterator[int]:
    """A directory below a run's; a link among its names is as if it was not there."""
    with contextlib.ExitStack() as stack:
        try:
            opened = untrusted.open_folder(data / "runs", os.path.join(run, RUN, *names))
            descriptor = stack.enter_context(opened)
        except OSError as error:
            raise FileNotFoundError(error.errno, "there is no such directory", names[-1]) from None
        yield descriptor
