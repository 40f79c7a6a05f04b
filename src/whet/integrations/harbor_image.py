"""What a Harbor task's Dockerfile makes: carried out once in a sandbox, kept as an archive, unpacked in others.

So the agent's box and the grading box have the same files, also where a RUN makes random ones, and no RUN is repeated
for each rollout. The archive is kept in a cache under a hash of the steps, the files that COPY takes, the packages and
this system's Python; of two processes that make it at once, the first that is done counts for both.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import re
import shlex
import time
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from pathlib import Path

from whet.envs.sandboxed import packages
from whet.envs.sandboxed.client import SandboxClient
from whet.envs.sandboxed.request import CreateSandboxRequest
from whet.errors import ConfigError, EnvError, SandboxFileError
from whet.integrations.harbor_dockerfile import Dockerfile, Step
from whet.integrations.harbor_task import HarborTask
from whet.sandboxes.bubblewrap import command as bubblewrap
from whet.sandboxes.bubblewrap.host import host
from whet.sandboxes.bubblewrap.layout import Layout, layout_of_image
from whet.sandboxes.protocol import GIB, HOME, ExecResult, Sandbox

LOGS, REWARDS = "/logs", "/logs/verifier"
INSIDE = "/opt/whet-image"
COMMAND_S = 120.0
SHOWN = 600  # characters of a command's output in an error
_FORMAT = 1  # of what is cached
_PROGRAMS = f"{HOME}/.local/bin"
_FIRST = (
    f"mkdir -p {LOGS}/artifacts {LOGS}/agent {REWARDS} {_PROGRAMS} && ln -s $(command -v python3) {_PROGRAMS}/python"
)
# Everything that can be written to is below /home; of shared memory nothing is kept.
_PACK = "cd /home && exec tar -cf - --exclude=./shm ."
_UNPACK = f"cd /home && exec tar --no-same-owner -xpf {INSIDE}/files.tar"
# Of the carried paths: removes what leads to the tests, the reward or nowhere, and what a verifier would wait for.
HARMLESS = """
[ $# -gt 0 ] || exit 0
export TESTS="$(readlink -f /tests)" REWARDS="$(readlink -f /logs/verifier)"
for follow in "" -H; do  # the paths themselves, then what is below: in bubblewrap they are links
    [ "$follow" ] && depth= || depth="-maxdepth 0"
    find $follow "$@" $depth ! -type d ! -type f ! -type l -exec rm -f -- {} + &&
    find $follow "$@" $depth -type l -exec sh -c 'for link; do
        case "$(readlink -f -- "$link" || echo /proc)/" in "$TESTS"/*|"$REWARDS"/*|/proc/*) rm -f -- "$link" ;; esac
    done' sh {} + || exit
done
"""
Lease = Callable[[CreateSandboxRequest], AbstractAsyncContextManager[Sandbox]]


@dataclass(frozen=True, slots=True)
class TaskImage:
    """Folders of the host that a box of a task is shown, and its environment variables."""

    read_only: dict[str, str]
    env: dict[str, str]
    verifying: dict[str, str] = field(default_factory=dict)  # variables of the grading box itself
    image: str = ""  # of a container, and its user
    user: str = ""

    def add_to(self, request: CreateSandboxRequest) -> None:
        request.docker_image = self.image or request.docker_image
        request.user = request.user or self.user
        request.read_only = {**request.read_only, **self.read_only}
        request.environment_vars = {**self.env, **(request.environment_vars or {})}


class TaskImages:
    """The images of one environment's tasks, by the Dockerfile of each."""

    def __init__(self, more_packages: str, client: SandboxClient, lease: Lease) -> None:
        """Raises ConfigError where `more_packages`, those besides a Dockerfile's, are no packages of Python."""
        self._more = packages.requirements_of(more_packages)
        self._client = client
        self._lease = lease
        self._images: dict[Path, asyncio.Future[TaskImage]] = {}

    def image(self, made: Dockerfile) -> TaskImage:
        """One that `prepare` has made."""
        return self._images[made.path].result()

    async def prepare(self, made: Dockerfile, request: CreateSandboxRequest, build_s: float) -> None:
        """Have the image of a Dockerfile, whose boxes are like `request`; to be awaited without a box in hand.

        Raises ConfigError with the line that fails.
        """
        known = self._images.get(made.path)
        here = asyncio.get_running_loop()
        if known is None or (known.done() and _failed(known)) or (not known.done() and known.get_loop() is not here):
            known = self._images[made.path] = asyncio.ensure_future(self._make(made, request, build_s))
        if not known.done():
            await asyncio.shield(known)
        known.result()

    async def _make(self, made: Dockerfile, request: CreateSandboxRequest, build_s: float) -> TaskImage:
        request = request.model_copy(deep=True)
        own = {_name(requirement) for requirement in made.requirements}
        more = [requirement for requirement in self._more if _name(requirement) not in own]
        try:
            await packages.Packages(shlex.join([*made.requirements, *more])).add_to(request, self._client)
        except ConfigError as error:
            why = str(error).removeprefix("pip_install_packages: ").rstrip(".")
            raise made.refuse(max(made.requirements.values(), default=1), why) from error
        python_path = [made.env.get("PYTHONPATH", ""), (request.environment_vars or {}).pop("PYTHONPATH", "")]
        image = TaskImage(
            dict(request.read_only),
            {
                "NPM_CONFIG_PREFIX": f"{HOME}/.local",
                **_resolved(made.env),
                "PYTHONPATH": ":".join(filter(None, python_path)),
                "PATH": _path(made),
            },
        )
        image.add_to(request)
        key = await asyncio.to_thread(_key, made, image, request.writable)

        async def build(folder: Path) -> None:
            async with self._lease(request) as box:
                archive = await _archive(box, made, build_s)
            await asyncio.to_thread((folder / "files.tar").write_bytes, archive)

        folder = await packages.filled(packages.cache_directory("harbor") / key, build, "harbor")
        return TaskImage({**image.read_only, INSIDE: str(folder)}, image.env)

    async def unpack(self, box: Sandbox) -> None:
        """Put what the Dockerfile made into a fresh box that is shown its image."""
        await done(box, ["sh", "-c", _UNPACK])

    async def carried(self, box: Sandbox, task: HarborTask) -> list[str]:
        """Paths of a box that the verifier is given; none lies in another."""
        return task.carried


def _name(requirement: str) -> str:
    """The name of a package as pip compares it."""
    return re.sub(r"[-_.]+", "-", re.split(r"[\[<>=!~]", requirement)[0]).lower()


def _failed(future: asyncio.Future[TaskImage]) -> bool:
    return future.cancelled() or future.exception() is not None


async def _archive(box: Sandbox, made: Dockerfile, build_s: float) -> bytes:
    """Do in a fresh sandbox what the Dockerfile says. Raises ConfigError with the line that fails."""
    ends = time.monotonic() + build_s
    await done(box, ["sh", "-c", _FIRST])
    for step in made.steps:
        if step.command:
            seconds = max(0.1, ends - time.monotonic())
            result = await box.exec(step.command, cwd=step.cwd, env=_resolved(step.env), timeout_s=seconds)
            if not result.ok:
                raise made.refuse(step.line, f"RUN failed with {said(result)}")
            continue
        try:
            await _copy_into(box, step, made.files)
        except SandboxFileError as error:
            raise made.refuse(step.line, f"COPY failed: {str(error).rstrip('.')}") from error
    packed = await box.exec(["sh", "-c", _PACK], timeout_s=COMMAND_S, output_bytes=4 * GIB)
    if packed.exit_code not in (0, 1) or packed.limit is not None:  # 1: it changed while it was read
        raise made.refuse(1, f"what it made cannot be kept: {said(packed, output=False)}")
    return packed.stdout_bytes


async def _copy_into(box: Sandbox, step: Step, files: list[str]) -> None:
    for file in step.files:
        path = step.to
        if file.is_file():
            is_folder = step.to.endswith("/") or (await box.exec(["test", "-d", step.to])).ok
            path = f"{step.to.rstrip('/')}/{file.name}" if is_folder else step.to
            if step.to in files:  # so far the folder that a link leads to
                path = step.to
                await done(box, ["sh", "-c", 'rmdir -- "$(readlink -f -- "$1")" || [ -f "$1" ]', "sh", path])
        await box.upload(file, path)
        mode = step.mode or ("+x" if file.is_file() and file.stat().st_mode & 0o100 else "")
        if mode:
            await done(box, ["chmod", "-R", mode, "--", path])


def _key(made: Dockerfile, image: TaskImage, writable: list[str]) -> str:
    """A hash of everything that decides what a Dockerfile makes, but for what its RUN reads elsewhere."""
    steps = []
    for step in made.steps:
        files = [content_of(file) for file in step.files]
        steps.append([step.cwd, sorted(step.env.items()), step.command, step.to, step.mode, files])
    about = [_FORMAT, repr(_layout(made)), sorted(image.read_only.items()), sorted(image.env.items()), writable, steps]
    return hashlib.sha256(json.dumps(about).encode()).hexdigest()[:24]


def content_of(file: Path) -> list[list[str]]:
    """Names, kinds, contents and modes of a file, or of all in a folder."""
    entries = []
    for path in sorted([file, *file.rglob("*")]) if file.is_dir() else [file]:
        kind = "link" if path.is_symlink() else "file" if path.is_file() else "folder"
        text = str(path.readlink()) if kind == "link" else ""
        if kind == "file":
            with path.open("rb") as opened:
                text = hashlib.file_digest(opened, "sha256").hexdigest()
        mode = "" if kind == "link" else oct(path.stat().st_mode)
        entries.append([str(path.relative_to(file.parent)), kind, text, mode])
    return entries


def _layout(made: Dockerfile) -> Layout:
    return layout_of_image(Path(made.root)) if made.root else host().layout


def _path(made: Dockerfile) -> str:
    """The task's PATH; packages' programs come before the system's, and `python` last."""
    usual = bubblewrap.environment(_layout(made), {})["PATH"]
    own = made.env.get("PATH", "$PATH")
    whole = own if "$PATH" in own else f"{own}:$PATH"
    return whole.replace("$PATH", f"{packages.INSIDE}/bin:{usual}:{_PROGRAMS}")


def _resolved(env: dict[str, str]) -> dict[str, str]:
    """Of a RUN: `PATH` and `PYTHONPATH` are those of every command of the box."""
    return {name: value for name, value in env.items() if name not in ("PATH", "PYTHONPATH")}


async def done(box: Sandbox, command: list[str]) -> ExecResult:
    """Raises EnvError when a command of ours fails."""
    result = await box.exec(command, timeout_s=COMMAND_S)
    if not result.ok:
        raise EnvError(f"sandbox {box.id}: {command[0]} failed: {said(result)}")
    return result


def said(result: ExecResult, *, output: bool = True) -> str:
    """How a command ended, and the end of what it wrote."""
    text = (f"{result.stdout}\n{result.stderr}" if output else result.stderr).strip()
    return f"{result.describe()}: {text[-SHOWN:]}" if text else result.describe()
