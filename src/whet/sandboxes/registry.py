"""Sandbox backends by name. Third parties add theirs through the entry point group `whet.sandboxes`.

The entry point names a class that is called without arguments and is a `SandboxBackend`. A built-in name cannot be
replaced.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import os
import shutil
import sys

from whet.errors import ConfigError
from whet.sandboxes.protocol import SandboxBackend

GROUP = "whet.sandboxes"
CHOICE = "WHET_SANDBOX_BACKEND"
_BUILT_IN = {
    "bubblewrap": "whet.sandboxes.bubblewrap.backend:BubblewrapBackend",
    "docker": "whet.sandboxes.docker:DockerBackend",
    "podman": "whet.sandboxes.registry:_podman",
    "subprocess": "whet.sandboxes.subprocess_backend:SubprocessBackend",
}


def default_backend() -> str:
    """What `WHET_SANDBOX_BACKEND` names; where it is not set, bubblewrap on Linux and docker elsewhere.

    subprocess, which is no boundary, only ever where it is named.
    """
    return os.environ.get(CHOICE) or ("bubblewrap" if sys.platform == "linux" else "docker")


def backend_names() -> list[str]:
    """Every name that `get_backend` takes."""
    return sorted({*_BUILT_IN, *(point.name for point in importlib.metadata.entry_points(group=GROUP))})


def get_backend(name: str | None = None) -> SandboxBackend:
    """The backend of that name. `await backend.check()` then says whether it can run here."""
    name = name or default_backend()
    if name in _BUILT_IN:
        module, _, attribute = _BUILT_IN[name].partition(":")
        made: SandboxBackend = getattr(importlib.import_module(module), attribute)()
        return made
    for point in importlib.metadata.entry_points(group=GROUP):
        if point.name == name:
            try:
                other: SandboxBackend = point.load()()
            except Exception as error:
                raise ConfigError(f"sandbox backend '{name}' ({point.value}) does not load: {error!r}.") from error
            return other
    raise ConfigError(f"there is no sandbox backend '{name}'. There are: {', '.join(backend_names())}.")


def _podman() -> SandboxBackend:
    from whet.sandboxes.docker import DockerBackend

    return DockerBackend("podman")


# The one command that installs what a backend needs, for the package manager that is there.

_MANAGERS = {
    "apt-get": "apt-get install -y {}",
    "dnf": "dnf install -y {}",
    "pacman": "pacman -S --noconfirm {}",
    "zypper": "zypper install -y {}",
    "apk": "apk add {}",
    "brew": "brew install {}",
}


def install_command(package: str) -> str:
    """The install command, such as `sudo apt-get install -y bubblewrap`."""
    for manager, template in _MANAGERS.items():
        if shutil.which(manager):
            command = template.format(package)
            as_root = sys.platform == "linux" and os.geteuid() != 0
            return f"sudo {command}" if as_root else command
    return f"install the package {package} of your system"
