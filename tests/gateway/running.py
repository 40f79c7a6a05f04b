"""A gateway on loopback, run by uvicorn in a thread of its own."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import uvicorn

from whet.gateway.app import Gateway
from whet.gateway.serve import listen


@contextmanager
def running(gateway: Gateway, *, send_buffer: int | None = None) -> Iterator[str]:
    """The address at which `gateway` answers; `send_buffer` bytes wait in the system for a client to read them."""
    listening = listen("127.0.0.1", 0)
    if send_buffer is not None:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, send_buffer)
    server = uvicorn.Server(uvicorn.Config(gateway.app, log_level="warning", lifespan="off"))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]}, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{listening.getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join()  # requests of the next test must not meet this event loop
        listening.close()
