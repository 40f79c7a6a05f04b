"""The one command that installs what a backend needs, for the package manager that is there."""

from __future__ import annotations

import os
import shutil
import sys

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
