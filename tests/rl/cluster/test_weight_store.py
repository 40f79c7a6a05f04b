"""How weights reach nodes, with real agents on both nodes of a cluster."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from whet.errors import ModelLoadError
from whet.inference.protocol import WeightUpdate
from whet.rl.cluster.run_cluster import begun_ray, node_agent
from whet.rl.cluster.weight_store import PIECE, WeightStore

pytestmark = pytest.mark.parts
SIZE = PIECE + 1000
"""Bytes: more than one object."""


@pytest.fixture
def nodes(cluster: Any) -> Iterator[list[str]]:
    """Ray's ids of two nodes."""
    import ray

    with begun_ray(cluster.address):
        alive = {node["NodeManagerAddress"]: node["NodeID"] for node in ray.nodes() if node["Alive"]}
        yield [alive["127.0.0.2"], alive["127.0.0.3"]]


@pytest.fixture
def update(tmp_path: Path) -> WeightUpdate:
    path = tmp_path / "weights-1.packed"
    path.write_bytes(bytes(range(250)) * (SIZE // 250 + 1))
    return WeightUpdate(1, path, "packed")


async def reached(store: WeightStore, update: WeightUpdate, nodes: list[str]) -> list[Path]:
    """Where three engines of each node find an update."""
    return [one.path for one in await asyncio.gather(*(store.on_node(update, node) for node in nodes * 3))]


def test_nodes_that_see_the_learner_s_directory_copy_nothing(nodes: list[str], update: WeightUpdate) -> None:
    store = WeightStore(update.path.parent, node_agent)
    assert set(asyncio.run(reached(store, update, nodes))) == {update.path}
    assert store.metrics() == {"weights/stored_bytes": 0.0, "weights/copied_bytes": 0.0}
    store.close()


def test_weights_are_stored_once_and_copied_once_for_a_node(nodes: list[str], update: WeightUpdate) -> None:
    store = WeightStore(update.path.parent, node_agent, always_copy=True)
    paths = set(asyncio.run(reached(store, update, nodes)))
    assert len(paths) == 2
    assert {path.read_bytes() for path in paths} == {update.path.read_bytes()}
    size = float(update.path.stat().st_size)
    assert store.metrics() == {"weights/stored_bytes": size, "weights/copied_bytes": 2 * size}
    store.close()
    assert not any(path.exists() for path in paths)


def test_an_adapter_is_copied_as_a_directory(nodes: list[str], tmp_path: Path) -> None:
    adapter = tmp_path / "adapter-1"
    adapter.mkdir()
    (adapter / "adapter_config.json").write_text("{}")
    (adapter / "adapter_model.safetensors").write_bytes(b"x" * 1000)
    store = WeightStore(tmp_path, node_agent, always_copy=True)
    found = asyncio.run(store.on_node(WeightUpdate(1, adapter, "adapter"), nodes[1])).path
    assert {file.name: file.read_bytes() for file in found.iterdir()} == {
        "adapter_config.json": b"{}",
        "adapter_model.safetensors": b"x" * 1000,
    }
    store.close()


def test_weights_that_the_learner_has_not_any_more_are_said_to_be_gone(nodes: list[str], tmp_path: Path) -> None:
    store = WeightStore(tmp_path, node_agent, always_copy=True)
    with pytest.raises(ModelLoadError, match=r"weights-0\.packed is missing"):
        asyncio.run(store.on_node(WeightUpdate(0, tmp_path / "weights-0.packed", "packed"), nodes[1]))
    store.close()
