"""`[inference]`: which engine a config asks for, and every key of one engine refused by the other."""

from __future__ import annotations

from typing import Any

import pytest

from whet.config import validate
from whet.errors import ConfigError
from whet.rl.config import RunConfig
from whet.rl.sections.inference import NEUTRAL, OF_STARTED, SET_BY_WHET
from whet.rl.sft.config import SftConfig

MINIMAL: dict[str, Any] = {"name": "r", "batch_size": 8, "env": [{"id": "a"}]}
OF_VLLM: dict[str, Any] = {
    "base_url": "http://h:8000",
    "servers": 2,
    "python": "/opt/vllm/bin/python",
    "tensor_parallel_size": 2,
    "pipeline_parallel_size": 2,
    "gpu_memory_utilization": 0.5,
    "max_model_len": 512,
    "server_args": {"enforce_eager": True},
    "min_healthy": 2,
    "max_restarts": 1,
}
"""A value of each key that only vLLM has."""


def config(inference: dict[str, Any] | None = None, **more: Any) -> RunConfig:
    return validate(RunConfig, {**MINIMAL, "inference": inference or {}, **more}, "run.toml")


def refused(inference: dict[str, Any] | None = None, **more: Any) -> str:
    with pytest.raises(ConfigError) as caught:
        config(inference, **more)
    return str(caught.value)


def vllm(**inference: Any) -> dict[str, Any]:
    return {"engine": "vllm", **inference}


def test_values_cover_the_keys_of_vllm() -> None:
    assert OF_VLLM.keys() == NEUTRAL.keys()


@pytest.mark.parametrize("key", sorted(OF_VLLM))
def test_a_key_of_vllm_chooses_it_and_is_refused_by_the_embedded_engine(key: str) -> None:
    enough = {"servers": 2} if key == "min_healthy" else {}
    assert config({key: OF_VLLM[key], **enough}).engine == "vllm"
    assert f"{key} would have no effect" in refused({"engine": "embedded", key: OF_VLLM[key]})


@pytest.mark.parametrize("key", sorted(key for key, value in NEUTRAL.items() if value is not None))
def test_what_is_done_anyway_is_accepted_with_either_engine(key: str) -> None:
    assert config({key: NEUTRAL[key]}).engine == "embedded"
    assert config({"engine": "embedded", key: NEUTRAL[key]}).engine == "embedded"
    assert config(vllm(**{key: NEUTRAL[key]})).engine == "vllm"


def test_an_endpoint_is_no_engine_to_learn_from() -> None:
    assert "gives no token ids and takes no new weights" in refused({"engine": "openai"})


def test_an_unknown_engine_names_the_known() -> None:
    assert "Use 'auto', 'embedded' or 'vllm'" in refused({"engine": "sglang"})


@pytest.mark.parametrize("key", OF_STARTED)
def test_servers_that_run_already_have_flags_of_their_own(key: str) -> None:
    assert f"{key} contradicts base_url" in refused({"base_url": "http://h:8000", key: OF_VLLM[key]})


def test_addresses_are_those_of_servers() -> None:
    assert config({"base_url": "http://h:8000/v1/"}).inference.base_url == ("http://h:8000",)
    assert config({"base_url": ["http://h:8000", "http://h:8001"]}).inference.base_url[1] == "http://h:8001"
    assert "is there twice" in refused({"base_url": ["http://h:8000", "http://h:8000/v1"]})
    assert "Write it as http://host:8000" in refused({"base_url": "h:8000"})


@pytest.mark.parametrize("flag", [*sorted(SET_BY_WHET), "data_parallel_rank", "no_enable_lora"])
def test_a_flag_that_whet_sets_is_refused_by_name(flag: str) -> None:
    assert f"'{flag}' is set by whet" in refused({"server_args": {flag: 1}})


def test_a_flag_has_one_value() -> None:
    assert "server_args.max_num_seqs" in refused({"server_args": {"max_num_seqs": [1]}})
    flags = {"enforce_eager": True, "max_num_seqs": 64, "swap_space": 0.5, "kv_cache_dtype": "auto"}
    assert config({"server_args": flags}).inference.server_args == flags


def test_flags_are_written_in_snake_case() -> None:
    assert "'max-num-seqs' is not a flag in snake_case" in refused({"server_args": {"max-num-seqs": 1}})


def test_more_servers_cannot_be_healthy_than_there_are() -> None:
    assert "min_healthy = 3, but there are 2" in refused({"servers": 2, "min_healthy": 3})
    assert config({"base_url": ["http://a", "http://b"], "min_healthy": 2}).inference.min_healthy == 2


@pytest.mark.parametrize("cut", ["top_p", "top_k", "min_p"])
def test_vllm_refuses_sampling_whose_logprobs_would_be_wrong(cut: str) -> None:
    value = 5 if cut == "top_k" else 0.5
    said = refused(vllm(), sampling={"temperature": 0.7, cut: value})
    assert f"sampling.temperature with sampling.{cut} would give wrong logprobs" in said
    schedule = {"start": 1, "end": 0.5}
    assert "sampling.temp_scheduler with" in refused(vllm(), sampling={"temp_scheduler": schedule, cut: value})
    assert config(vllm(), sampling={cut: value}).logprobs_mode == "raw_logprobs"
    assert config(sampling={"temperature": 0.7, cut: value}).engine == "embedded"


def test_logprobs_are_those_of_the_temperature() -> None:
    assert config(vllm()).logprobs_mode == "processed_logprobs"
    assert config(vllm(), sampling={"temperature": 0.7}).logprobs_mode == "processed_logprobs"
    assert config(vllm(), sampling={"temp_scheduler": {"start": 1, "end": 1}}).logprobs_mode == "processed_logprobs"


def test_logprobs_of_evaluations_fit_too() -> None:
    assert config(vllm(), eval={"sampling": {"temperature": 0.7}}).logprobs_mode == "processed_logprobs"
    assert config(vllm(), eval={"sampling": {"top_p": 0.9}}).logprobs_mode == "raw_logprobs"
    assert config(vllm(), eval={"sampling": {"temperature": 0, "top_p": 0.9}}).logprobs_mode == "processed_logprobs"
    said = refused(vllm(), sampling={"top_p": 0.9}, eval={"sampling": {"temperature": 0.7}})
    assert "eval.sampling.temperature with sampling.top_p would give wrong logprobs" in said


def test_vllm_does_not_report_which_tokens_were_left() -> None:
    assert "renormalise_cuts needs the embedded engine" in refused(vllm(), algorithm={"renormalise_cuts": True})
    assert config(vllm(), algorithm={"router_replay": True}).algorithm.router_replay


def test_vllm_servers_are_processes_anyway() -> None:
    for wanted in (True, False):
        more = {"max_async_level": 1, "deployment": {"engine_process": wanted}}
        assert "engine_process has no effect with vLLM" in refused(vllm(), **more)
    assert not config(vllm(), max_async_level=1).engine_process


def test_vllm_does_not_compute_on_mps() -> None:
    assert "vLLM computes on CUDA devices or CPUs" in refused(vllm(device="mps"))


def test_fine_tuning_takes_one_of_each() -> None:
    data = {"name": "r", "data": {"path": "x.jsonl"}}
    for count in ("num_gpus", "num_train_gpus", "num_infer_gpus"):
        validate(SftConfig, {**data, "deployment": {count: 1}}, "run.toml")
