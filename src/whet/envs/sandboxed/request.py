"""What an environment asks of a sandbox, in the words of the 0.1 contract, and what that means for whet's sandboxes.

Fields that only a hosted sandbox service has are accepted where an unmodified 0.1 environment still does the same
without them, and named by `without_meaning`; asking for a GPU is refused, because such code would not.
"""

from __future__ import annotations

import math
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from whet.errors import ConfigError
from whet.sandboxes.protocol import GIB, SandboxSpec

WITHOUT_IMAGES = ("bubblewrap", "subprocess")
_IDLE = ("tail -f /dev/null", "sleep infinity")  # keep a container alive; whet's sandboxes stay by themselves


class CreateSandboxRequest(BaseModel):
    """One sandbox. Not frozen: `get_sandbox_request` of an environment may change its copy for one rollout."""

    model_config = ConfigDict(extra="forbid", validate_assignment=True, from_attributes=True)

    name: str = Field("sandbox-env", description="What the sandbox is for; shown in logs.")
    docker_image: str | None = Field(None, description="Container image; without meaning for bubblewrap.")
    root: str = Field("", description="Folder whose system is shown in place of the host's; bubblewrap only.")
    user: str = Field("", description="User of the image, who may write to all its files; docker and podman only.")
    start_command: str | None = Field(None, description="Run in the background once the sandbox is there.")
    cpu_cores: float = Field(1, gt=0, description="Processor cores.")
    memory_gb: float = Field(2, gt=0, description="Memory in GiB.")
    disk_size_gb: float = Field(5, gt=0, description="Home, /tmp and /dev/shm together, in GiB.")
    gpu_count: int = Field(0, ge=0, description="No sandbox of whet has a GPU: more than 0 is refused.")
    gpu_type: str | None = Field(None, description="Of a hosted service; without meaning here.")
    vm: bool = Field(False, description="Of a hosted service; without meaning here.")
    timeout_minutes: float = Field(60, gt=0, description="The sandbox is closed so long after its creation.")
    environment_vars: dict[str, str] | None = Field(None, description="Environment variables of every command.")
    network: list[str] = Field([], description="Hosts that may be reached; none by default.")
    origin: str | None = Field(None, description="Address and port that http://127.0.0.1:3128 inside leads to.")
    network_idle_s: float = Field(60, gt=0, description="Seconds without a byte before a connection is ended.")
    read_only: dict[str, str] = Field({}, description="Absolute path inside: folder of the host shown there.")
    writable: list[str] = Field([], description="Absolute paths of empty folders inside that can be written to.")
    team_id: str | None = Field(None, description="Of a hosted service; without meaning here.")
    advanced_configs: Any = Field(None, description="Of a hosted service; without meaning here.")
    labels: list[str] = Field([], description="Kept with the request; whet's sandboxes have no labels.")


def as_request(value: Any) -> CreateSandboxRequest:
    """`value` as a request; a hosted client's own request class is read by its attributes."""
    try:
        return CreateSandboxRequest.model_validate(value)
    except ValidationError as error:
        raise invalid_request(error) from error


def invalid_request(error: ValidationError) -> ConfigError:
    first = error.errors()[0]
    field = ".".join(map(str, first["loc"]))
    return ConfigError(f"sandbox: {field}={first['input']!r} is not possible: {first['msg'].lower()}.")


def spec_of(request: CreateSandboxRequest, timeout_s: float, output_bytes: int) -> SandboxSpec:
    """The limits that whet's sandboxes keep. A slow model is no idleness: only `timeout_minutes` ends a sandbox."""
    if request.gpu_count:
        raise ConfigError(f"sandbox: gpu_count={request.gpu_count} asks for a GPU, and no sandbox of whet has one.")
    lifetime_s = request.timeout_minutes * 60
    disk_bytes = int(request.disk_size_gb * GIB)
    return SandboxSpec(
        image=request.docker_image,
        root=request.root,
        user=request.user,
        cpus=request.cpu_cores,
        memory_bytes=int(request.memory_gb * GIB),
        disk_bytes=disk_bytes,
        file_bytes=disk_bytes,
        output_bytes=output_bytes,
        timeout_s=timeout_s,
        cpu_time_s=math.ceil(lifetime_s * max(1.0, request.cpu_cores)),
        idle_s=lifetime_s,
        lifetime_s=lifetime_s,
        network=tuple(request.network),
        origin=request.origin,
        network_idle_s=request.network_idle_s,
        env=dict(request.environment_vars or {}),
        read_only=dict(request.read_only),
        writable=tuple(request.writable),
    )


def without_meaning(request: CreateSandboxRequest, backend: str) -> list[str]:
    """What of the request this backend cannot heed, each with the reason."""
    said = []
    if request.docker_image and backend in WITHOUT_IMAGES:
        said.append(
            f"docker_image={request.docker_image!r} (the {backend} sandbox shows this system's own programs; "
            "backend='docker' runs images)"
        )
    for name in ("team_id", "advanced_configs", "gpu_type", "vm"):
        if getattr(request, name):
            said.append(f"{name} (of a hosted sandbox service)")
    return said


def background_command(request: CreateSandboxRequest) -> str | None:
    """The start command, unless all it does is to keep a container alive."""
    command = (request.start_command or "").strip()
    return None if not command or command in _IDLE else command
