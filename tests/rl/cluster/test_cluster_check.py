"""`whet cluster check` and the checks before a run, against a real cluster of two nodes."""

from __future__ import annotations

import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from whet.errors import ConfigError
from whet.rl.cluster import check

pytestmark = pytest.mark.parts
Whet = Callable[..., tuple[int, Any, str]]
CONFIG = """
name = "run"
model = "whet/tiny"
[[env]]
id = "reverse-text"
[inference]
engine = "embedded"
servers = 3
[deployment]
threads = 1
"""


def test_nodes_are_said_and_a_config_is_placed_or_what_is_missing_is_said(
    cluster: Any, whet_json: Whet, tmp_path: Path
) -> None:
    (tmp_path / "c.toml").write_text(CONFIG)
    command = ("cluster", "check", str(tmp_path / "c.toml"), "--address", cluster.address, "--json")
    code, found, _ = whet_json(*command)
    nodes = found["cluster"]["nodes"]
    assert (code, found["missing"]) == (0, [])
    assert sorted((node["address"], node["cpus"], node["is_here"]) for node in nodes) == [
        ("127.0.0.2", 1.0, True),
        ("127.0.0.3", 3.0, False),
    ]
    assert all(node["versions"] == check.versions() for node in nodes)
    assert [bundle["part"] for bundle, _ in found["placed"]] == ["engine 1", "engine 2", "engine 3"]
    assert [node for _, node in found["placed"]] == ["127.0.0.2", "127.0.0.3", "127.0.0.3"]
    code, found, _ = whet_json(*command, "--inference.servers", "5")
    assert code == 1
    assert "no node with room for engine 5 (1 CPU)" in found["missing"][0]


def test_a_run_that_has_no_room_ends_before_it_begins(cluster: Any, train: Any) -> None:
    run = train("--deployment.ray_address", cluster.address, "--inference.servers", "9")
    assert run.process.wait() == 2
    assert "the cluster has no node with room for engine 5 (1 CPU) and 4 more" in run.output
    assert not run.directory.exists()


def test_a_cluster_that_takes_connections_and_does_not_answer_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("ray", reason="the extra 'ray' is not installed")
    monkeypatch.setattr(check, "WITHIN_S", 8.0)
    with socket.socket() as silent:
        silent.bind(("127.0.0.2", 0))
        silent.listen()
        with pytest.raises(ConfigError, match="did not answer within 8 s"):
            check.survey(f"127.0.0.2:{silent.getsockname()[1]}")
