"""The hub's index of 10,000 packages: requests a second that one server process answers on one core.

    python benchmarks/hub_index.py [--seconds 5]

The server (`whet hub serve`'s application under uvicorn) is held to one core; the client runs on another one where
there is one. On a machine that is not idle the requests per second of the server's processor time are the figure.
Measured are the list of all packages, packed and not, an answer of 304, and the page of one package.
"""

from __future__ import annotations

import argparse
import http.client
import multiprocessing
import os
import socket
import tempfile
import time
from pathlib import Path

PACKAGES = 10_000


def fill(data: Path) -> str:
    """A hub with that many environments; returns a token."""
    from whet.hub.opening import open_hub
    from whet.hub.storage.tables import Account, EnvironmentRow, StoredFile, Version

    with open_hub(data) as (hub, token):
        assert token is not None
        with hub.database.write() as session:
            owner = session.query(Account).one()
            for number in range(PACKAGES):
                row = EnvironmentRow(
                    owner_id=owner.id,
                    name=f"environment-{number:05d}",
                    visibility="PUBLIC",
                    summary="",
                    created_at=1.0,
                    updated_at=1.0,
                )
                session.add(row)
                session.flush()
                name = f"environment_{number:05d}-1.0.0-py3-none-any.whl"
                file = StoredFile(kind="wheel", filename=name, size=1, sha256=f"{number:064x}")
                fields = dict.fromkeys(("summary", "readme", "readme_type", "requires_python", "yanked_reason"), "")
                session.add(
                    Version(
                        environment_id=row.id,
                        version="1.0.0",
                        requires_dist=[],
                        core_metadata=b"",
                        pushed_by="x",
                        created_at=1.0,
                        downloads=0,
                        files=[file],
                        **fields,
                    )
                )
    return token


def serve(data: Path, listening: socket.socket, core: int) -> None:
    import uvicorn

    from whet.hub.api.app import create_app
    from whet.hub.opening import open_hub

    os.sched_setaffinity(0, {core})
    with open_hub(data) as (hub, _):
        config = uvicorn.Config(create_app(hub), http="h11", ws="none", log_level="warning", lifespan="off")
        uvicorn.Server(config).run(sockets=[listening])


def processor_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def measure(port: int, pid: int, path: str, headers: dict[str, str], seconds: float) -> tuple[float, float, int, int]:
    """Requests a second, requests per second of the server's processor time, the status, and the bytes of a body."""
    connection = http.client.HTTPConnection("127.0.0.1", port)
    count, size, status = 0, 0, 0
    started, used = time.perf_counter(), processor_seconds(pid)
    while (now := time.perf_counter()) - started < seconds:
        connection.request("GET", path, headers=headers)
        answer = connection.getresponse()
        size, status = len(answer.read()), answer.status
        count += 1
    return count / (now - started), count / (processor_seconds(pid) - used), status, size


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=5.0)
    seconds = parser.parse_args().seconds
    cores = sorted(os.sched_getaffinity(0))
    with tempfile.TemporaryDirectory() as folder, socket.socket() as listening:
        data = Path(folder, "hub")
        token = fill(data)
        listening.bind(("127.0.0.1", 0))
        listening.listen(128)
        port = listening.getsockname()[1]
        server = multiprocessing.get_context("fork").Process(target=serve, args=(data, listening, cores[0]))
        server.start()
        assert server.pid is not None
        os.sched_setaffinity(0, {cores[-1]})
        auth = {"Authorization": f"Bearer {token}"}
        packed = {"Accept-Encoding": "gzip"}
        index = "/index/hub-admin/simple/"
        connection = http.client.HTTPConnection("127.0.0.1", port)
        connection.request("GET", index, headers=packed)
        etag = connection.getresponse().headers["ETag"]
        cases = {
            "list of packages, gzip": (index, packed),
            "list of packages, gzip, with a token": (index, packed | auth),
            "list of packages, plain": (index, {}),
            "list of packages, 304": (index, packed | {"If-None-Match": etag}),
            "one package": (f"{index}environment-05000/", packed),
        }
        print(f"{PACKAGES} packages, {len(cores)} cores here, load {os.getloadavg()[0]:.1f}")
        try:
            for name, (path, headers) in cases.items():
                rate, own, status, size = measure(port, server.pid, path, headers, seconds)
                print(f"{name:<38} {rate:6.0f} requests/s, {own:6.0f} per processor second  {status}  {size:>7} bytes")
        finally:
            server.terminate()
            server.join()


if __name__ == "__main__":
    main()
