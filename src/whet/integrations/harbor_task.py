"""Folders of Harbor's task format: `task.toml`, `instruction.md`, `environment/Dockerfile`, `tests/`, `solution/`.

Read strictly: a key of `task.toml` that has no effect here is an error that names it. The format is that of Harbor 0.26
(https://pypi.org/project/harbor, `harbor.models.task.config`), of which this is a part.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import (
    AliasChoices,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationError,
    ValidationInfo,
    field_validator,
    model_validator,
)

from whet.errors import ConfigError, EnvironmentLoadError
from whet.integrations.harbor_dockerfile import RESERVED, Dockerfile, read_dockerfile, writable_root
from whet.parsing import parse_toml
from whet.system.files import expanded


class _Table(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, populate_by_name=True)


def _only(*allowed: Any) -> Any:
    """Accept what has no effect here, and nothing else."""

    def check(value: Any) -> Any:
        if value not in allowed:
            raise ValueError(f"without Docker only {' or '.join(map(repr, allowed))} is possible")
        return value

    return BeforeValidator(check)


def _megabytes(value: Any) -> Any:
    """MiB of an older form such as '2G'."""
    match = re.fullmatch(r"([\d.]+)([GMK])", value.strip().upper()) if isinstance(value, str) else None
    return int(float(match[1]) * {"G": 1024, "M": 1, "K": 1 / 1024}[match[2]]) if match else value


_DESCRIBES = re.compile(
    r"author_(name|email)|category|difficulty|tags|\w+_explanation|(expert|junior)_time_estimate_\w+"
)
IN_CONTAINER = "in_container"  # of what a table is validated for
Network = Literal["public", "no-network"]


def _check_user(value: Any, info: ValidationInfo) -> Any:
    if value not in (None, "root", 0) and not (info.context or {}).get(IN_CONTAINER):
        raise ValueError("without Docker only None or 'root' or 0 is possible")
    return value


User = Annotated[str | int | None, BeforeValidator(_check_user)]
Megabytes = Annotated[int, BeforeValidator(_megabytes)]


class AgentTable(_Table):
    timeout_sec: float = Field(3600, gt=0, description="Seconds after which the model has no further turn.")
    network_mode: Network | None = Field(None, description="In place of the environment's.")
    user: User = Field(None, description="In a container the user of the model's commands, else root, if any.")


class CollectTable(_Table):
    command: str = Field(description="A command of the shell, run in WORKDIR once the agent is done.")
    service: Annotated[str, _only("main")] = Field("main", description="The task's own box: there is no other.")
    timeout_sec: float = Field(60, gt=0, description="Seconds that it may take.")
    user: Annotated[str | int | None, _only(None, "root", 0)] = Field(None, description="Root, if any.")


class VerifierTable(_Table):
    timeout_sec: float = Field(600, gt=0, description="Seconds that tests/test.sh may take.")
    network_mode: Network | None = Field(None, description="In place of the environment's.")
    user: User = Field(None, description="In a container the user of tests/test.sh, else root, if any.")
    collect: list[CollectTable] = Field([], description="Commands before artifacts are carried away.")
    env: dict[str, str] = Field({}, description="Environment variables of tests/test.sh.")
    environment_mode: Literal["shared", "separate"] = Field(
        "shared", description="Whether the verifier is given the task's folders, or artifacts alone."
    )


class BoxTable(_Table):
    build_timeout_sec: float = Field(600, gt=0, description="Seconds that the Dockerfile may take.")
    docker_image: str | None = Field(None, description="In a container, in place of what the Dockerfile makes.")
    os: Annotated[str, _only("linux")] = Field("linux", description="Linux.")
    cpus: float = Field(1, gt=0, description="Processor cores.")
    memory_mb: Megabytes = Field(
        2048, gt=0, validation_alias=AliasChoices("memory_mb", "memory"), description="Memory in MiB."
    )
    storage_mb: Megabytes = Field(
        5120, gt=0, validation_alias=AliasChoices("storage_mb", "storage"), description="Disk in MiB."
    )
    gpus: Annotated[int | None, _only(None, 0)] = Field(None, description="None.")
    gpu_types: Annotated[list[str] | None, _only(None, [])] = Field(None, description="None.")
    mcp_servers: Annotated[list[Any], _only([])] = Field([], description="None.")
    env: dict[str, str] = Field({}, description="Environment variables of every command.")
    workdir: str | None = Field(None, description="In place of the Dockerfile's WORKDIR.")
    network_mode: Network = Field("public", description="Whether `network` applies.")
    allow_internet: bool | None = Field(None, description="Older form of `network_mode`.")

    @field_validator("env")
    @classmethod
    def _check_env(cls, env: dict[str, str]) -> dict[str, str]:
        if any("${" in value for value in env.values()):
            raise ValueError("variables of this machine are not passed to a task")
        return env

    def has_network(self, instead: Network | None) -> bool:
        """Whether `network` applies to the agent or the verifier, which may have a mode of its own."""
        if instead is None and self.allow_internet is not None:
            return self.allow_internet
        return (instead or self.network_mode) == "public"


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

    @model_validator(mode="before")
    @classmethod
    def _leave_descriptions_out(cls, table: dict[str, Any]) -> dict[str, Any]:
        """Of [metadata], which some tasks have at the top."""
        return {key: value for key, value in table.items() if not _DESCRIBES.fullmatch(key)}

    @field_validator("artifacts", mode="before")
    @classmethod
    def _check_artifacts(cls, listed: list[Any]) -> list[str]:
        paths = [
            one["source"] if isinstance(one, dict) and {*one} <= {"source", "destination"} else one for one in listed
        ]
        if not all(isinstance(path, str) for path in paths):
            raise ValueError("an artifact is a path, or a table with source and destination")
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
        folders = [*self.dockerfile.writable, *self.dockerfile.others, self.dockerfile.workdir] if shared else []
        paths = sorted({*folders, *self.table.artifacts, "/logs/artifacts"})
        paths = [path for path in paths if path not in self.dockerfile.files]
        return [path for path in paths if not any(path.startswith(f"{other}/") for other in paths)]


SHOWN = 20


def find_tasks(
    target: str, *, one_user: bool = False, roots: Mapping[str, str] | None = None, in_container: bool = False
) -> tuple[list[HarborTask], dict[str, str]]:
    """The tasks of DIR, a task or a folder of tasks, or the one of DIR#NAME; and why others cannot be played, by name.

    With `in_container` a container engine reads the Dockerfiles, and whet does not.
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
            task = read_task(one, roots, in_container=in_container)
            if task.dockerfile.user is not None and not one_user:
                line, user = task.dockerfile.user
                raise task.dockerfile.refuse(
                    line,
                    f"USER {user} is not possible without Docker: all files belong to one user, so the agent can "
                    "change what was made for root alone; one_user = true plays the task even so",
                )
            tasks.append(task)
        except ConfigError as error:
            refused[one.name] = str(error)
    return tasks, refused


def read_task(folder: Path, roots: Mapping[str, str] | None = None, *, in_container: bool = False) -> HarborTask:
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
        text = parse_toml((folder / "task.toml").read_text("utf-8"))
        table = TaskTable.model_validate(text, context={IN_CONTAINER: in_container})
    except ValidationError as error:
        raise ConfigError(f"{folder / 'task.toml'}: {'; '.join(map(_problem, error.errors()))}.") from error
    except ValueError as error:
        raise ConfigError(f"{folder / 'task.toml'} cannot be read: {error}.") from error
    if table.verifier.environment_mode == "separate" and (folder / "tests/Dockerfile").exists():
        raise ConfigError(f"{folder / 'tests/Dockerfile'}: whet grades in the box of the task's own Dockerfile only.")
    instruction, file = (folder / "instruction.md").read_text("utf-8"), folder / "environment/Dockerfile"
    if in_container:
        image, workdir = table.environment.docker_image or "", table.environment.workdir or ""
        return HarborTask(folder.name, folder, instruction, table, Dockerfile(file, image=image, workdir=workdir))
    dockerfile = read_dockerfile(file, table.environment.workdir, roots)
    for path in table.artifacts:
        if path.startswith("/logs/artifacts/"):
            continue
        top = writable_root(path)
        if top is None or top in RESERVED:
            raise ConfigError(f"{folder / 'task.toml'}: artifacts={path!r} is where a sandbox cannot write.")
        dockerfile.writable += [] if top in dockerfile.writable else [top]
    return HarborTask(folder.name, folder, instruction, table, dockerfile)


def _problem(error: Any) -> str:
    name = ".".join(map(str, error["loc"]))
    if error["type"] == "extra_forbidden":
        return f"'{name}' is no key of the format, or one that whet does not support"
    return f"{name}={error['input']!r:.80}: {error['msg'].lower()}"
