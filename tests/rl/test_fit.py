"""What does not fit a machine is said with numbers and what to change, and refused before anything is loaded."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from whet.errors import ConfigError
from whet.rl import fit
from whet.rl.config import RunConfig
from whet.rl.memory import size_text
from whet.rl.plan import TrainingPlan, plan_training
from whet.rl.run import run_training
from whet.rl.sft.config import SftConfig
from whet.rl.sft.run import run_sft

QWEN3_30B_A3B = {
    "model_type": "qwen3_moe",
    "vocab_size": 151_936,
    "hidden_size": 2048,
    "intermediate_size": 6144,
    "moe_intermediate_size": 768,
    "num_hidden_layers": 48,
    "num_attention_heads": 32,
    "num_key_value_heads": 4,
    "head_dim": 128,
    "num_experts": 128,
    "num_experts_per_tok": 8,
    "max_position_embeddings": 40_960,
    "tie_word_embeddings": False,
}
LLAMA_70B = {
    "model_type": "llama",
    "vocab_size": 128_256,
    "hidden_size": 8192,
    "intermediate_size": 28_672,
    "num_hidden_layers": 80,
    "num_attention_heads": 64,
    "num_key_value_heads": 8,
    "max_position_embeddings": 131_072,
    "tie_word_embeddings": False,
}
CPU = {"learner": {"device": "cpu"}, "inference": {"device": "cpu"}}


def plan(model: dict[str, Any] | str, folder: Path, **keys: Any) -> TrainingPlan[RunConfig]:
    """Of a model of which nothing but its config.json is there."""
    if isinstance(model, dict):
        (folder / "config.json").write_text(json.dumps(model))
        model = str(folder)
    data = {"name": "r", "model": model, "env": [{"id": "reverse-text"}], "runs_directory": str(folder / "runs")}
    return plan_training(RunConfig.model_validate({"batch_size": 64, **data, **keys}))


def test_thirty_billion_parameters_do_not_fit_on_four_cards(tmp_path: Path) -> None:
    learner: dict[str, Any] = {"micro_batch_tokens": 2048}
    four = plan(QWEN3_30B_A3B, tmp_path, deployment={"num_train_gpus": 4, "num_infer_gpus": 4}, learner=learner)
    [short] = four.shortages
    assert not short.certain, "these GPUs are not here, so the plan is for another machine"
    rank = next(part for part in four.sized_placement.parts if part.role == "learner").bytes_per_device
    assert rank is not None
    assert 128 << 30 < rank < 148 << 30, "18 bytes of each of 30.5 billion parameters on four, and activations"
    needed = size_text(rank)
    begins = f"memory of GPUs 0 to 3, each: {needed} are needed (the learner {needed}), and H100 has 80.00 GiB."
    assert short.text.startswith(begins)
    assert "[lora]" in short.text
    assert "more GPUs that learn" in short.text
    assert f"does not fit: {short.text}" in four.lines()
    assert four.as_json()["does_not_fit"] == [short.text]
    eight = {"num_train_gpus": 8, "num_infer_gpus": 4}
    fits = plan(QWEN3_30B_A3B, tmp_path, deployment=eight, learner=learner | {"activation_checkpointing": True})
    assert fits.shortages == []


def test_an_adapter_of_seventy_billion_on_four_cards_beside_four_that_sample(tmp_path: Path) -> None:
    keys = {
        "deployment": {"num_gpus": 8},
        "inference": {"tensor_parallel_size": 4, "engine": "vllm"},
        "lora": {"rank": 16},
        "sampling": {"max_tokens": 2048},
    }
    [short] = plan(LLAMA_70B, tmp_path, **keys).shortages
    assert "GPUs 0 to 3, each" in short.text, "servers hold a fourth of 141 GB"
    assert "activation_checkpointing = true" in short.text
    learner = {"activation_checkpointing": True, "micro_batch_tokens": 2048}
    assert plan(LLAMA_70B, tmp_path, **keys, learner=learner).shortages == []


def with_free(monkeypatch: pytest.MonkeyPatch, size: int | None) -> None:
    monkeypatch.setattr(fit, "memory_available", lambda: size)


def test_a_run_that_cannot_fit_is_refused_before_anything_is_loaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tight = plan("whet/tiny", tmp_path, **CPU)
    needed = sum(tight.memory_by_process.values())
    with_free(monkeypatch, int(needed / 1.1))
    near = plan("whet/tiny", tmp_path, **CPU)
    assert [short.certain for short in near.shortages] == [False], "an estimate may be as wrong as that"
    near.check_memory()
    with_free(monkeypatch, needed // 2)
    with pytest.raises(ConfigError) as error:
        run_training(tight.config, json_output=True)
    text = str(error.value)
    assert f"{size_text(needed)} are needed (main {size_text(tight.memory_by_process['main'])}" in text
    assert f"{size_text(needed // 2)} are free" in text
    assert text.endswith("deployment.check_memory = false goes on regardless.")
    assert not tight.config.directory.exists()
    plan("whet/tiny", tmp_path, **CPU, deployment={"check_memory": False}).check_memory()


def test_where_what_is_free_is_not_known_all_of_the_machine_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with_free(monkeypatch, None)
    assert plan("whet/tiny", tmp_path, **CPU).shortages == []
    monkeypatch.setattr(fit, "memory_limit", lambda: 1 << 20)
    assert [short.certain for short in plan("whet/tiny", tmp_path, **CPU).shortages] == [True]


def test_three_files_of_weights_have_to_fit_into_shared_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fit, "shared_memory", lambda: fit.IN_MEMORY)
    full = os.statvfs(tmp_path)
    values = list(full)
    values[4] = (64 << 10) // full.f_frsize  # f_bavail
    monkeypatch.setattr(fit.os, "statvfs", lambda path: os.statvfs_result(values))
    [short] = plan("whet/tiny", tmp_path, **CPU).shortages
    assert short.certain
    assert short.text.startswith("/dev/shm: 3 files of new weights are 9.8 MiB, 0.1 MiB are free.")
    assert "--shm-size" in short.text


def test_a_gpu_that_is_here_and_too_small_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [["NVIDIA A10", "23028"], ["NVIDIA H100", "81559"]]
    monkeypatch.setattr(fit, "ask_nvidia", lambda *_: rows)
    with_free(monkeypatch, 1 << 50)
    there = plan(QWEN3_30B_A3B, tmp_path, deployment={"num_train_gpus": 4, "num_infer_gpus": 4})
    here = TrainingPlan(there.config, there.devices, gpus=8)
    texts = [short.text for short in here.shortages if short.certain]
    assert any("NVIDIA A10 has 22.49 GiB" in text for text in texts)
    with pytest.raises(ConfigError, match="memory of GPUs 0 to 7"):
        here.check_memory()
    monkeypatch.setattr(fit, "ask_nvidia", lambda *_: [])
    silent = TrainingPlan(there.config, there.devices, gpus=8)
    assert not [short for short in silent.shortages if "GPU" in short.text], "no driver says how large they are"


def test_fine_tuning_is_refused_once_its_data_is_known(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [{"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]}] * 4
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    data = {"name": "s", "data": {"path": str(tmp_path / "rows.jsonl")}, "runs_directory": str(tmp_path / "runs")}
    config = SftConfig.model_validate({**data, "learner": {"device": "cpu"}, "max_steps": 1, "batch_size": 2})
    with_free(monkeypatch, 1 << 26)
    with pytest.raises(ConfigError, match="memory of this machine"):
        run_sft(config, json_output=True)
    assert not config.directory.exists()
