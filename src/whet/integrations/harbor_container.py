"""Harbor tasks in containers, `backend = "docker"` or `"podman"`: the engine builds the Dockerfile and runs its image.

A box is a container of the image as it is: its users, programs and variables, and files that may all be written to. So
any Dockerfile can be played, and `user` of task.toml. The image is tagged by a hash of `environment/` and built once;
`[environment] docker_image` takes its place. Without a `network` of `["*"]` no box reaches anything.

What is carried to the grading box is what the agent changed in folders of the task's own, never a system's: what runs
the tests there is what the image has.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import posixpath
import re
from typing import Any

from whet.envs.sandboxed.request import CreateSandboxRequest
from whet.errors import SandboxFileError
from whet.integrations.harbor_dockerfile import Dockerfile
from whet.integrations.harbor_image import LOGS, REWARDS, SHOWN, TaskImage, TaskImages, content_of, done
from whet.integrations.harbor_task import HarborTask
from whet.sandboxes import processes
from whet.sandboxes.docker import DockerBackend, DockerSandbox
from whet.sandboxes.pool import shared_pool
from whet.sandboxes.protocol import Sandbox

MOST_CARRIED = 50
_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_SYSTEM = re.compile(r"(/(bin|boot|dev|etc|home|lib\w*|logs|proc|root|run|sbin|solution|sys|tests|tmp|usr|var)?)?")
_HOMES = ("/root", "/home/", "/tmp/")  # carried where they are WORKDIR
_NESTED = ("/media/", "/mnt/", "/opt/", "/srv/")  # in which each folder is carried by itself


class ContainerImages(TaskImages):
    """The images of one environment's tasks, which docker or podman build."""

    async def _make(self, made: Dockerfile, request: CreateSandboxRequest, build_s: float) -> TaskImage:
        await self._client.check()
        engine, context = self._engine(), made.path.parent
        key = await asyncio.to_thread(lambda: hashlib.sha256(json.dumps(content_of(context)).encode()).hexdigest())
        tag = made.image or f"whet-harbor:{key[:24]}"
        config = await _config(engine, tag)
        if config is None:
            command = ["pull", tag] if made.image else ["build", "--tag", tag, str(context)]
            end = bytearray()

            def take(chunk: bytes) -> None:
                end.extend(chunk)
                del end[:-SHOWN]

            try:
                code = await processes.read([engine, *command], build_s, take)
            except TimeoutError:
                raise made.refuse(1, f"{engine} {command[0]} did not end in {build_s:g} s") from None
            config = await _config(engine, tag) if code == 0 else None
            if config is None:
                said = end.decode(errors="replace").strip()
                raise made.refuse(1, f"{engine} {command[0]} ended with exit code {code}: {said}")
        made.workdir = made.workdir or config.get("WorkingDir") or "/"
        variables = dict(entry.partition("=")[::2] for entry in config.get("Env") or [])
        user = config.get("User") or "root"
        return TaskImage({}, {"PATH": variables.get("PATH") or _PATH}, {"PATH": _PATH}, image=tag, user=user)

    def _engine(self) -> str:
        backend = shared_pool(self._client.backend).backend
        assert isinstance(backend, DockerBackend)
        return backend.program()

    async def unpack(self, box: Sandbox) -> None:
        """Make the task's own folders: all else is in the image."""
        await done(box, ["mkdir", "-p", f"{LOGS}/artifacts", f"{LOGS}/agent", REWARDS])

    async def carried(self, box: Sandbox, task: HarborTask) -> list[str]:
        """Paths that the verifier is given, none in another: folders of the task's own in which anything changed."""
        assert isinstance(box, DockerSandbox)
        paths = {*task.table.artifacts, f"{LOGS}/artifacts"}
        if task.table.verifier.environment_mode == "shared":
            workdir = posixpath.normpath(task.dockerfile.workdir)
            paths |= {workdir} if workdir.startswith(_HOMES) else set()
            changed = map(_own_folder, [workdir, *await box.changed_paths()])
            paths |= {*filter(None, changed)} - {*map(_own_folder, box.spec.read_only)}  # engines make those as well
        if len(paths) > MOST_CARRIED:
            raise SandboxFileError(f"{len(paths)} folders cannot be shown to the verifier; at most {MOST_CARRIED} can")
        return [path for path in sorted(paths) if not any(path.startswith(f"{other}/") for other in paths)]


async def _config(engine: str, image: str) -> dict[str, Any] | None:
    """User, WORKDIR and variables of an image; None where this machine does not have it."""
    ask = [engine, "image", "inspect", "--format", "{{json .Config}}", image]
    code, said, _ = await processes.run(ask, timeout_s=60.0)
    return json.loads(said) if code == 0 else None


def _own_folder(path: str) -> str | None:
    """The folder of a task's own that a changed path is in: /app of /app/src; None for a system's."""
    top = "/".join(path.split("/")[: 3 if path.startswith(_NESTED) else 2])
    return None if _SYSTEM.fullmatch(top) or f"{top}/" in _NESTED else top
