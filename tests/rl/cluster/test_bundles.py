from __future__ import annotations

from typing import Any

import pytest

from whet.rl.cluster.nodes import ClusterBundle, ClusterNode, bundles, fit, lacking
from whet.rl.config import RunConfig
from whet.rl.placement import placement

BASE = {"name": "r", "model": "whet/tiny", "runs_directory": "runs", "env": [{"id": "reverse-text"}]}


def config(inference: dict[str, Any] | None = None, **deployment: Any) -> RunConfig:
    found = {"ray_address": "auto", "threads": 2, **deployment}
    return RunConfig.model_validate({**BASE, "deployment": found, "inference": inference or {}})


def wanted(run: RunConfig, sampler: str, gpus: int = 0) -> list[tuple[str, dict[str, float]]]:
    placed = placement(run, {"learner": "cuda" if gpus else "cpu", "sampler": sampler}, gpus)
    return [(bundle.part, bundle.resources()) for bundle in bundles(run, placed)]


def node(address: str, cpus: float, problem: str = "") -> ClusterNode:
    return ClusterNode(address, cpus, 0.0, 1 << 30, problem=problem)


def test_nodes_of_one_address_are_counted_apart() -> None:
    wanted = [ClusterBundle("engine 1", 2, 0), ClusterBundle("engine 2", 2, 0)]
    nodes = [ClusterNode("10.0.0.1", 2, 0, 0, node=name) for name in ("a", "b")]
    assert fit(wanted, nodes) == {"engine 1": "10.0.0.1", "engine 2": "10.0.0.1"}
    assert fit(wanted, nodes[:1]) == {"engine 1": "10.0.0.1", "engine 2": None}


def test_an_embedded_engine_reserves_a_cpu_for_each_of_its_threads() -> None:
    assert wanted(config(), "cpu") == [("engine 1", {"CPU": 2.0})]


def test_several_embedded_engines_are_parts_of_their_own() -> None:
    found = wanted(config({"engine": "embedded", "servers": 2}), "cpu")
    assert [part for part, _ in found] == ["engine 1", "engine 2"]


def test_a_server_that_splits_its_layers_reserves_its_gpus_on_one_node() -> None:
    run = config({"engine": "vllm", "tensor_parallel_size": 4}, num_gpus=9, num_train_gpus=1)
    gpu_counts = [resources["GPU"] for part, resources in wanted(run, "cuda", 9) if "server" in part]
    assert gpu_counts == [4.0, 4.0]


def test_ranks_share_the_threads_and_the_first_is_on_the_node_of_the_run() -> None:
    deployment = {"ray_address": "auto", "threads": 4}
    run = RunConfig.model_validate({**BASE, "deployment": deployment, "learner": {"ranks": 2}})
    found = bundles(run, placement(run, {"learner": "cpu", "sampler": "cpu"}, 0), "10.0.0.1")
    assert [(bundle.part, bundle.resources()) for bundle in found] == [
        ("learner rank 0", {"CPU": 2.0, "node:10.0.0.1": 0.001}),
        ("learner rank 1", {"CPU": 2.0}),
        ("engine 1", {"CPU": 4.0}),
    ]
    assert fit(found, [node("10.0.0.2", 8), node("10.0.0.1", 2)]) == {
        "learner rank 0": "10.0.0.1",
        "learner rank 1": "10.0.0.2",
        "engine 1": "10.0.0.2",
    }
    assert fit(found, [node("10.0.0.2", 8), node("10.0.0.1", 1)])["learner rank 0"] is None


def test_servers_that_run_already_reserve_nothing() -> None:
    assert wanted(config({"base_url": ["http://10.0.0.9:8000"]}), "http://10.0.0.9:8000") == []


def test_parts_are_packed_on_few_nodes_and_none_is_on_two() -> None:
    run = config({"engine": "embedded", "servers": 3})
    three = bundles(run, placement(run, {"learner": "cpu", "sampler": "cpu"}, 0))
    assert fit(three, [node("a", 4), node("b", 3)]) == {"engine 1": "b", "engine 2": "a", "engine 3": "a"}
    assert lacking(three, [node("a", 4), node("b", 3)]) == []


def test_a_part_without_room_is_named_with_what_there_is() -> None:
    run = config({"engine": "embedded", "servers": 3})
    three = bundles(run, placement(run, {"learner": "cpu", "sampler": "cpu"}, 0))
    assert lacking(three, [node("a", 3), node("b", 3)]) == [
        "the cluster has no node with room for engine 3 (2 CPUs): 6 CPUs and 0 GPUs are needed in all, and its 2 "
        "nodes have 6 CPUs and 0 GPUs. Add nodes, or ask for less."
    ]


def test_a_node_that_does_not_answer_has_no_room() -> None:
    run = config()
    one = bundles(run, placement(run, {"learner": "cpu", "sampler": "cpu"}, 0))
    assert fit(one, [node("a", 8, problem="it did not answer")]) == {"engine 1": None}


@pytest.mark.parametrize(
    ("inference", "deployment", "says"),
    [
        ({}, {"colocate": True}, "colocate = true shares GPUs of one machine"),
        ({}, {"engine_process": False}, "deployment.engine_process has no effect with ray_address"),
        ({"engine": "embedded", "servers": 2}, {"ray_address": None}, "without ray_address there is one embedded"),
        ({"engine": "embedded", "min_healthy": 3, "servers": 2}, {}, "there are 2 servers"),
    ],
)
def test_a_key_that_contradicts_the_cluster_is_refused(
    inference: dict[str, Any], deployment: dict[str, Any], says: str
) -> None:
    with pytest.raises(ValueError, match=says):
        config(inference, **deployment)
