"""A hub in this process, and what a client does with it."""

from __future__ import annotations

import contextlib
import hashlib
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import uvicorn
from starlette.testclient import TestClient

from whet.hub.api.app import create_app
from whet.hub.opening import open_hub


class Asking:
    """What users ask of a hub, whose client is one of httpx; `tokens` are theirs."""

    def __init__(self, client: Any, admin: str | None) -> None:
        self.client = client
        self.tokens = {"hub-admin": admin}

    def ask(self, method: str, path: str, user: str | None = None, **more: Any) -> Any:
        headers = dict(more.pop("headers", {}))
        if user is not None:
            headers["Authorization"] = f"Bearer {self.tokens[user]}"
        path = path if path.startswith(("/index", "/files", "/api")) else f"/api/v1{path}"
        return self.client.request(method, path, headers=headers, follow_redirects=False, **more)

    def ok(self, method: str, path: str, user: str | None = None, **more: Any) -> Any:
        answer = self.ask(method, path, user, **more)
        assert answer.status_code < 300, (answer.status_code, answer.text)
        return answer.json() if answer.content and "json" in answer.headers["content-type"] else answer

    def refused(self, status: int, code: str, method: str, path: str, user: str | None = None, **more: Any) -> Any:
        answer = self.ask(method, path, user, **more)
        assert (answer.status_code, answer.json()["error"]["code"]) == (status, code), answer.text
        return answer.json()["error"]

    def user(self, name: str) -> str:
        """A new user, whose token `ask` uses."""
        self.tokens[name] = self.ok("POST", "/users", "hub-admin", json={"name": name})["token"]
        return name

    def organisation(self, name: str, owner: str, **members: str) -> str:
        self.ok("POST", "/organisations", owner, json={"name": name})
        for user, role in members.items():
            self.ok("PUT", f"/owners/{name}/members/{user}", owner, json={"role": role})
        return name

    def token(self, user: str, scope: str, days: int = 90) -> dict[str, Any]:
        """A further token of a user, as `user:scope`."""
        made = self.ok("POST", "/tokens", user, json={"name": f"for {scope}", "scope": scope, "days": days})
        self.tokens[f"{user}:{scope}"] = made["token"]
        return made

    def begin(self, user: str, owner: str, wheel: Any, sdist: bytes | None = None, **more: Any) -> Any:
        """The answer to the first request of a push."""
        body = {"version": wheel.version, "wheel": announced(wheel.filename, wheel.bytes()), **more}
        if sdist is not None:
            body["sdist"] = announced(f"{wheel.module}-{wheel.version}.tar.gz", sdist)
        return self.ask("POST", f"/environments/{owner}/{wheel.name}/pushes", user, json=body)

    def upload(self, user: str, push: Any, kind: str, data: bytes, offset: int = 0) -> Any:
        headers = {"Upload-Offset": str(offset)}
        return self.ask("PATCH", f"/pushes/{push['id']}/files/{kind}", user, content=data, headers=headers)

    def push(self, user: str, owner: str, wheel: Any, sdist: bytes | None = None, **more: Any) -> Any:
        """The answer to the last request of a push that is expected to begin well."""
        begun = self.begin(user, owner, wheel, sdist, **more)
        assert begun.status_code == 201, begun.text
        push = begun.json()
        assert self.upload(user, push, "wheel", wheel.bytes()).status_code == 200
        if sdist is not None:
            assert self.upload(user, push, "sdist", sdist).status_code == 200
        return self.ask("POST", f"/pushes/{push['id']}/commit", user)


class Running(Asking):
    """A hub's application and its parts, in this process."""

    def __init__(self, hub: Any, admin: str | None) -> None:
        self.hub = hub
        self.app = create_app(hub)
        super().__init__(TestClient(self.app, base_url="http://hub.test", raise_server_exceptions=True), admin)
        self.ahead = 0.0
        clock = hub.clock
        hub.clock = lambda: clock() + self.ahead


class Served(Asking):
    """`whet hub serve` in a process of its own."""

    def __init__(self, data: Path, *more: str, token: str | None = None) -> None:
        command = [sys.executable, "-m", "whet.cli.main", "hub", "serve", "--data", str(data), "--port", "0", *more]
        self.process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
        self.lines: list[str] = []
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self.lines.append(line)
            if "shown only now" in line:
                token = line.split()[-1]
            if "hub at" in line:
                self.address = line.split()[2].rstrip(";")
                break
        else:
            raise AssertionError("".join(self.lines))
        super().__init__(httpx.Client(base_url=self.address, timeout=60.0), token)

    def end(self, number: int = signal.SIGTERM) -> int:
        """Send a signal; the exit code."""
        self.client.close()
        self.process.send_signal(number)
        code = self.process.wait(120)
        assert self.process.stderr is not None
        self.lines += self.process.stderr.readlines()
        self.process.stderr.close()
        return code


def announced(filename: str, data: bytes) -> dict[str, Any]:
    return {"filename": filename, "size": len(data), "sha256": hashlib.sha256(data).hexdigest()}


@contextlib.contextmanager
def listening(app: Any) -> Iterator[str]:
    """The application on a loopback port; yields its address."""
    server = uvicorn.Server(uvicorn.Config(app, log_level="warning", lifespan="off", ws="none", http="h11"))
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen(128)
        thread = threading.Thread(target=server.run, kwargs={"sockets": [taken]})
        thread.start()
        try:
            yield f"http://127.0.0.1:{taken.getsockname()[1]}"  # connections wait until it accepts them
        finally:
            server.should_exit = True
            thread.join()


@contextlib.contextmanager
def running(data: Path, database: str | None = None, **more: Any) -> Iterator[Running]:
    with open_hub(data, database, **more) as (hub, token):
        yield Running(hub, token)
