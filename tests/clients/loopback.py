"""A real HTTP server on loopback that gives scripted answers and records requests."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


class Server:
    """Answers every request with `status`, `body` (JSON, or bytes) and `reply_headers`.

    `plan` holds (status, body) to answer first.
    """

    def __init__(self) -> None:
        server = self
        self.status, self.body = 200, {}
        self.reply_headers: dict[str, str] = {}
        self.plan: list[tuple[int, Any]] = []
        self.requests: list[dict[str, Any]] = []
        self.headers: list[Any] = []
        self.paths: list[str] = []

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                server.headers.append(self.headers)
                server.paths.append(self.path)
                server.requests.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
                status, body = server.plan.pop(0) if server.plan else (server.status, server.body)
                payload = body if isinstance(body, bytes) else json.dumps(body).encode()
                self.send_response(status)
                headers = {
                    "Content-Type": "application/json",
                    "Content-Length": str(len(payload)),
                    **server.reply_headers,
                }
                for name, value in headers.items():
                    self.send_header(name, value)
                self.end_headers()
                self.wfile.write(payload)

            def log_message(self, *args: Any) -> None:
                pass

        self.http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.origin = f"http://127.0.0.1:{self.http.server_port}"
        self.url = f"{self.origin}/v1"
        threading.Thread(target=self.http.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()

    def close(self) -> None:
        self.http.shutdown()
        self.http.server_close()


@contextmanager
def serving() -> Iterator[Server]:
    server = Server()
    try:
        yield server
    finally:
        server.close()
