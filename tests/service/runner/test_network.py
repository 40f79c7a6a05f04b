"""The network of a run: public addresses and what the operator names, never the machine."""

from __future__ import annotations

import http.server
import json
import os
import threading
from collections.abc import Iterator
from typing import Any

import pytest

pytest.importorskip("sqlalchemy")

from whet.errors import ConfigError
from whet.service.runner.network import allowed


@pytest.fixture
def database_url() -> None:
    """The kind of the database plays no part here."""


@pytest.fixture
def engine() -> Iterator[int]:
    """The port of a server on the machine's loopback that answers `pong`."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("Content-Length", "4")
            self.end_headers()
            self.wfile.write(b"pong")

        def log_message(self, *_: object) -> None:
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield server.server_address[1]
        server.shutdown()
        thread.join()


FETCH = "import sys, urllib.request; print(urllib.request.urlopen(sys.argv[1]).read().decode())"


def fetching(port: int, before: str = "") -> Any:
    return lambda python, job, folder: [str(python), "-I", "-c", before + FETCH, f"http://engine.test:{port}/"]


def test_an_address_that_the_operator_names_is_reached(isolated: Any, engine: int) -> None:
    run = isolated.queue.submit()
    runner = isolated.runner(fetching(engine), network=(f"engine.test=127.0.0.1:{engine}",))
    assert isolated.end(runner, run).state == "finished", isolated.said()
    assert isolated.output(run) == "pong\n"


def test_the_network_of_a_run_outlives_its_shim(isolated: Any, engine: int) -> None:
    run = isolated.queue.submit()
    wait = "import os, time\nwhile not os.path.exists('../go'): time.sleep(0.05)\n"
    runner = isolated.runner(fetching(engine, wait), network=(f"engine.test=127.0.0.1:{engine}",))
    before = isolated.running(runner, run)
    os.kill(before["shim"]["pid"], 9)
    identity = isolated.attempt(run).identity
    isolated.until(runner, lambda: json.loads(identity.read_text())["shim"] != before["shim"])
    (isolated.folder(run).path / "go").touch()
    isolated.until(runner, lambda: isolated.queue.run(run).attempt == 2 or isolated.queue.run(run).ended_at)
    assert isolated.attempt(run, 1).output.read_text() == "pong\n"


def test_runs_share_the_machines_network_where_the_operator_says_so(isolated: Any, engine: int) -> None:
    run = isolated.queue.submit()
    words = lambda python, job, folder: [str(python), "-I", "-c", FETCH, f"http://127.0.0.1:{engine}/"]  # noqa: E731
    assert isolated.end(isolated.runner(words, network=None), run).state == "finished", isolated.said()
    assert isolated.output(run) == "pong\n"


def test_public_hosts_and_entries_are_allowed_and_private_addresses_are_not() -> None:
    hosts = allowed(("10.0.0.5:8000", "engine.test=10.0.0.6:9000"))
    assert hosts is not None
    for host, port in (("example.com", 443), ("example.com", 8443), ("8.8.8.8", 53), ("2606:4700::1111", 443)):
        assert hosts.rule_for(host, port) is not None
    refused = ("127.0.0.1", "::1", "10.0.0.7", "192.168.0.1", "169.254.169.254", "100.64.0.1", "fd00::1", "0.0.0.0")
    assert [host for host in refused if hosts.rule_for(host, 80)] == []
    assert hosts.rule_for("10.0.0.5", 8000)
    assert not hosts.rule_for("10.0.0.5", 8001)
    pinned = hosts.rule_for("engine.test", 9000)
    assert pinned is not None
    assert str(pinned.address) == "10.0.0.6"
    assert allowed(("machine",)) is None


def test_an_entry_that_is_no_address_is_refused() -> None:
    with pytest.raises(ConfigError, match="without a scheme"):
        allowed(("http://10.0.0.5/v1",))
