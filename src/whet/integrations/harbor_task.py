"""Folders of Harbor's task format: `task.toml`, `instruction.md`, `environment/Dockerfile`, `tests/`, `solution/`.

Read strictly: a key of `task.toml` that has no effect here is an error that names it. The format is that of Harbor 0.26
(https://pypi.org/project/harbor, `harbor.models.task.config`), of which this is a part.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from whet.errors import ConfigError, EnvironmentLoadError
from whet.integrations.harbor_dockerfile import RESERVED, Dockerfile, read_dockerfile, writable_root
from whet.parsing import parse_toml
from whet.system.files import expanded


class _Table(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class AgentTable(_Table):
    timeout_sec: float = Field(3600, gt=0, description="Seconds after which the model has no further turn.")


class VerifierTable(_Table):
    timeout_sec: float = Field(600, gt=0, description="Seconds that tests/test.sh may take.")
    env: dict[str, str] = Field({}, description="Environment variables of tests/test.sh.")
    environment_mode: Literal["shared", "separate"] = Field(
        "shared", description="Whether the verifier is given the task's folders, or artifacts alone."
    )


class BoxTable(_Table):
    build_timeout_sec: float = Field(600, gt=0, description="Seconds that the Dockerfile may take.")
    cpus: float = Field(1, gt=0, description="Processor cores.")
    memory_mb: int = Field(2048, gt=0, description="Memory in MiB.")
    storage_mb: int = Field(5120, gt=0, description="Disk in MiB.")
    network_mode: Literal["public", "no-network"] = Field("public", description="Whether `network` applies.")
    allow_internet: bool | None = Field(None, description="Older form of `network_mode`.")

    @property
    def has_network(self) -> bool:
        return self.network_mode == "public" if self.allow_internet is None else self.allow_internet


class SolutionTable(_Table):
    env: dict[str, str] = Field({}, description="Environment variables of solution/solve.sh.")


class TaskTable(_Table):
    """What `task.toml` may say."""

    schema_version: str = Field("1.4", description="Version of the format.")
    version: str | None = Field(None, description="Older name of `schema_version`.")
    task: dict[str, Any] = Field({}, description="Name, authors and keywords of the package.")
    metadata: dict[str, Any] = Field({}, description="Free.")
    source: str | None = Field(None, description="Where the task comes from.")
    agent: AgentTable = AgentTable()
    verifier: VerifierTable = VerifierTable()
    environment: BoxTable = BoxTable()
    solution: SolutionTable = SolutionTable()
    artifacts: list[str] = Field([], description="Absolute paths that are carried to the grading box.")

    @field_validator("artifacts")
    @classmethod
    def _check_artifacts(cls, paths: list[str]) -> list[str]:
        if any(not path.startswith("/") or ".." in path.split("/") for path in paths):
            raise ValueError("artifacts should be absolute paths without '..'")
        return [path.rstrip("/") for path in paths]


@dataclass(frozen=True, slots=True)
class HarborTask:
    """A task that can be attempted here."""

    name: str
    folder: Path
    instruction: str
    table: TaskTable
    dockerfile: Dockerfile

    @property
    def carried(self) -> list[str]:
        """Paths of the agent's sandbox that the verifier is given; none lies in another."""
        shared = self.table.verifier.environment_mode == "shared"
        folders = [*self.dockerfile.writable, self.dockerfile.workdir] if shared else []
        paths = sorted({*folders, *self.table.artifacts, "/logs/artifacts"})
        return [path for path in paths if not any(path.startswith(f"{other}/") for other in paths)]


SHOWN = 20


def find_tasks(target: str) -> tuple[list[HarborTask], dict[str, str]]:
    """The tasks of DIR, a task or a folder of tasks, or the one of DIR#NAME; and why others cannot be played, by name.

    Raises EnvironmentLoadError where there are none at all.
    """
    text, _, name = (target, "", "") if expanded(target).is_dir() else target.partition("#")
    folder = expanded(text).resolve()
    if not folder.is_dir():
        raise EnvironmentLoadError(f"'harbor:{target}': there is no folder {folder}.")
    folders = [folder] if (folder / "task.toml").is_file() else sorted(p.parent for p in folder.glob("*/task.toml"))
    chosen = [one for one in folders if name in ("", one.name)]
    if not chosen:
        known = ", ".join(one.name for one in folders[:SHOWN]) or "none"
        what = f"no task '{name}'" if name else "no task.toml, in itself or in the folders below"
        raise EnvironmentLoadError(f"'harbor:{target}': {folder} has {what}. Tasks there: {known}.")
    tasks, refused = [], {}
    for one in chosen:
        try:
            tasks.append(read_task(one))
        except ConfigError as error:
            refused[one.name] = str(error)
    return tasks, refused


def read_task(folder: Path) -> HarborTask:
    """Raises ConfigError for what the task lacks, or needs and cannot have here."""
    needed = ("instruction.md", "environment/Dockerfile", "tests/test.sh")
    for name in ("task.toml", *needed):
        file = folder / name
        if not file.is_file() or not file.resolve().is_relative_to(folder.resolve()):
            raise ConfigError(f"{file}: a task of Harbor needs this file, and whet plays no task without it.")
    for name in ("environment/docker-compose.yaml", "trajectory.json", "steps"):
        if (folder / name).exists():
            raise ConfigError(f"{folder / name} is of a kind of task that whet does not play.")
    try:
        table = TaskTable.model_validate(parse_toml((folder / "task.toml").read_text("utf-8")))
    except ValidationError as error:
        raise ConfigError(f"{folder / 'task.toml'}: {'; '.join(map(_problem, error.errors()))}.") from error
    except ValueError as error:
        raise ConfigError(f"{folder / 'task.toml'} cannot be read: {error}.") from error
    if table.verifier.environment_mode == "separate" and (folder / "tests/Dockerfile").exists():
        raise ConfigError(f"{folder / 'tests/Dockerfile'}: whet grades in the box of the task's own Dockerfile only.")
    dockerfile = read_dockerfile(folder / "environment/Dockerfile")
    for path in table.artifacts:
        if path.startswith("/logs/artifacts/"):
            continue
        top = writable_root(path)
        if top is None or top in RESERVED:
            raise ConfigError(f"{folder / 'task.toml'}: artifacts={path!r} is where a sandbox cannot write.")
        dockerfile.writable += [] if top in dockerfile.writable else [top]
    return HarborTask(folder.name, folder, (folder / "instruction.md").read_text("utf-8"), table, dockerfile)


def _problem(error: Any) -> str:
    name = ".".join(map(str, error["loc"]))
    if error["type"] == "extra_forbidden":
        return f"'{name}' is no key of the format, or one that whet does not support"
    return f"{name}={error['input']!r:.80}: {error['msg'].lower()}"
