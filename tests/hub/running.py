"""A hub in this process, and what a client does with it."""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from starlette.testclient import TestClient

from whet.hub.api.app import create_app
from whet.hub.opening import open_hub


class Running:
    """A hub's application, its parts, and tokens of its users."""

    def __init__(self, hub: Any, admin: str | None) -> None:
        self.hub = hub
        self.app = create_app(hub)
        self.client = TestClient(self.app, base_url="http://hub.test", raise_server_exceptions=True)
        self.tokens = {"hub-admin": admin}
        self.ahead = 0.0
        clock = hub.clock
        hub.clock = lambda: clock() + self.ahead

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


def announced(filename: str, data: bytes) -> dict[str, Any]:
    return {"filename": filename, "size": len(data), "sha256": hashlib.sha256(data).hexdigest()}


@contextlib.contextmanager
def running(data: Path, database: str | None = None, **more: Any) -> Iterator[Running]:
    with open_hub(data, database, **more) as (hub, token):
        yield Running(hub, token)
