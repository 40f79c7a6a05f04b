"""How GPUs are divided between learning and sampling, and which numbers are refused with the arithmetic."""

from __future__ import annotations

from typing import Any

import pytest

from whet.config import validate
from whet.errors import ConfigError
from whet.rl.config import RunConfig

MINIMAL: dict[str, Any] = {"name": "r", "batch_size": 8, "env": [{"id": "a"}]}


LEARNER = {"device": "learner", "ranks": "ranks"}


def config(deployment: dict[str, Any], **inference: Any) -> RunConfig:
    learner = {key: value for key in ("device", "ranks") if (value := inference.pop(LEARNER[key], None))}
    data = {**MINIMAL, "deployment": deployment, "inference": inference, "learner": learner}
    return validate(RunConfig, data, "run.toml")


def split(deployment: dict[str, Any], **inference: Any) -> tuple[int, int, int, str]:
    """GPUs that learn, GPUs that sample, servers (or the one engine), and the engine."""
    found = config(deployment, **inference)
    return found.gpus.train, found.gpus.infer, found.gpus.servers, found.engine


def refused(deployment: dict[str, Any], **inference: Any) -> str:
    with pytest.raises(ConfigError) as caught:
        config(deployment, **inference)
    return str(caught.value)


@pytest.mark.parametrize(
    ("deployment", "inference", "expected"),
    [
        ({}, {}, (1, 1, 1, "embedded")),
        ({"num_gpus": 1, "num_train_gpus": 1, "num_infer_gpus": 1}, {}, (1, 1, 1, "embedded")),
        ({"num_gpus": 2}, {}, (1, 1, 1, "embedded")),
        ({"num_gpus": 8}, {}, (4, 4, 4, "vllm")),
        ({"num_gpus": 8}, {"engine": "embedded"}, (7, 1, 1, "embedded")),
        ({"num_gpus": 7}, {}, (4, 3, 3, "vllm")),
        ({"num_gpus": 8}, {"tensor_parallel_size": 4}, (4, 4, 1, "vllm")),
        ({"num_gpus": 8}, {"tensor_parallel_size": 3}, (5, 3, 1, "vllm")),
        ({"num_gpus": 3}, {"pipeline_parallel_size": 2}, (1, 2, 1, "vllm")),
        ({"num_gpus": 8}, {"servers": 7}, (1, 7, 7, "vllm")),
        ({"num_gpus": 8, "num_train_gpus": 2}, {"tensor_parallel_size": 2}, (2, 6, 3, "vllm")),
        ({"num_infer_gpus": 4}, {"tensor_parallel_size": 2, "pipeline_parallel_size": 2}, (1, 4, 1, "vllm")),
        ({"num_train_gpus": 4}, {}, (4, 1, 1, "embedded")),
        ({"num_gpus": 2}, {"base_url": "http://h:8000"}, (2, 0, 0, "vllm")),
        ({}, {"device": "cpu", "servers": 3}, (1, 0, 3, "vllm")),
        ({}, {"device": "cpu", "tensor_parallel_size": 2}, (1, 0, 1, "vllm")),
        ({"num_gpus": 4}, {"learner": "cpu"}, (0, 4, 4, "vllm")),
        ({"num_gpus": 4, "colocate": True}, {"tensor_parallel_size": 2}, (4, 4, 2, "vllm")),
    ],
)
def test_what_the_numbers_leave_out_follows_from_the_others(
    deployment: dict[str, Any], inference: dict[str, Any], expected: tuple[int, int, int, str]
) -> None:
    assert split(deployment, **inference) == expected


@pytest.mark.parametrize(
    ("deployment", "inference", "says"),
    [
        ({"num_gpus": 8}, {"tensor_parallel_size": 8}, "num_gpus = 8, but the other keys ask for 9: 1 to learn and 8"),
        ({"num_gpus": 1}, {"tensor_parallel_size": 2}, "num_gpus = 1, but the other keys ask for 3"),
        ({"num_gpus": 8, "num_train_gpus": 4, "num_infer_gpus": 2}, {}, "ask for 6: 4 to learn and 2 to sample"),
        ({"num_infer_gpus": 3}, {"tensor_parallel_size": 2}, "3 GPUs that sample are not whole servers"),
        ({"num_infer_gpus": 4}, {"servers": 3}, "and servers = 3 need 3"),
        ({"num_gpus": 8, "num_train_gpus": 3}, {"tensor_parallel_size": 4}, "5 GPUs that sample are not whole servers"),
        ({"num_infer_gpus": 2}, {"engine": "embedded"}, "num_infer_gpus = 2: the embedded engine computes on one GPU"),
        (
            {"num_infer_gpus": 2},
            {"device": "cpu"},
            'num_infer_gpus = 2 would have no effect with inference.device = "cpu"',
        ),
        ({"num_infer_gpus": 2}, {"base_url": "http://h"}, "num_infer_gpus = 2 would have no effect with base_url"),
        ({"num_train_gpus": 2}, {"learner": "cpu"}, 'no effect with learner.device = "cpu"'),
        ({"num_gpus": 2}, {"learner": "cpu", "device": "cpu"}, "num_gpus = 2 would have no effect"),
        ({"num_gpus": 4, "num_train_gpus": 2, "colocate": True}, {}, "num_gpus = 4, num_train_gpus = 2"),
        ({"colocate": True}, {"base_url": "http://h"}, "colocate contradicts base_url"),
    ],
)
def test_numbers_that_do_not_fit_are_refused_with_the_arithmetic(
    deployment: dict[str, Any], inference: dict[str, Any], says: str
) -> None:
    assert says in refused(deployment, **inference)


def test_taking_turns_is_not_for_asynchronous_training() -> None:
    data = {**MINIMAL, "max_async_level": 1, "deployment": {"colocate": True}}
    with pytest.raises(ConfigError, match="colocate = true takes turns, and max_async_level > 0"):
        validate(RunConfig, data, "run.toml")


def test_taking_turns_is_on_one_device() -> None:
    data = {**MINIMAL, "learner": {"device": "cuda"}, "inference": {"device": "cpu"}, "deployment": {"colocate": True}}
    with pytest.raises(ConfigError, match=r'learner\.device = "cuda" and inference\.device = "cpu" are two'):
        validate(RunConfig, data, "run.toml")
    assert not config({"colocate": True}).gpus.demanded


@pytest.mark.parametrize("form", ["packed", "nf4"])
def test_taking_turns_is_not_for_a_quantised_base(form: str) -> None:
    data = {**MINIMAL, "lora": {"base": form}, "deployment": {"colocate": True}}
    with pytest.raises(ConfigError, match=rf'with lora\.base = "{form}" both have'):
        validate(RunConfig, data, "run.toml")


def test_only_what_cannot_run_on_one_device_demands_gpus() -> None:
    for key in ("num_gpus", "num_train_gpus", "num_infer_gpus"):
        assert not config({key: 1}).gpus.demanded
    assert not config({}, servers=2).gpus.demanded
    assert not config({}, device="cpu", tensor_parallel_size=2).gpus.demanded
    assert config({}, tensor_parallel_size=2).gpus.demanded
    assert config({"num_gpus": 2}).gpus.demanded


@pytest.mark.parametrize(
    ("deployment", "others", "expected"),
    [
        ({}, {}, 1),
        ({"num_train_gpus": 4}, {}, 4),
        ({"num_gpus": 8}, {}, 4),
        ({"num_gpus": 8}, {"ranks": 4}, 4),
        ({}, {"learner": "cpu", "ranks": 3}, 3),
        ({"num_gpus": 4}, {"learner": "cpu", "ranks": 2}, 2),
        ({}, {"ranks": 2}, 2),
    ],
)
def test_each_gpu_that_learns_is_a_rank_and_a_cpu_has_as_many_as_are_asked_for(
    deployment: dict[str, Any], others: dict[str, Any], expected: int
) -> None:
    assert config(deployment, **others).ranks == expected


def test_ranks_that_do_not_fit_are_refused_with_the_arithmetic() -> None:
    says = "learner.ranks = 3, but 4 of the 8 GPUs learn, and each rank has one"
    assert says in refused({"num_gpus": 8}, ranks=3)
    assert "ranks compute on CUDA devices or CPUs" in refused({}, learner="mps", ranks=2)


@pytest.mark.parametrize(
    ("learner", "more", "says"),
    [
        ({"ranks": 2, "rank_timeout_seconds": 600}, {}, r"= 600 has to be less than watchdog.act_seconds = 600"),
        ({"ranks": 2}, {"watchdog": {"act_seconds": 200}}, r"= 300 has to be less than watchdog.act_seconds = 200"),
        ({"rank_timeout_seconds": 20}, {}, "rank_timeout_seconds would have no effect: the learner is one rank"),
        ({"max_restarts": 1}, {}, "max_restarts would have no effect: the learner computes in the run's own process"),
    ],
)
def test_keys_of_ranks_have_an_effect_or_are_refused(learner: dict[str, Any], more: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        validate(RunConfig, {**MINIMAL, "learner": learner, **more}, "run.toml")
    validate(RunConfig, {**MINIMAL, "learner": {"max_restarts": 1}, "max_async_level": 1}, "run.toml")
