"""What a dry run says a run will take, against what models and learners really hold."""

from __future__ import annotations

import json
import subprocess
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

pytest.importorskip("torch")

import torch
from tests.inference.weights import gguf_files
from transformers import AutoModelForCausalLM, LlamaConfig, Qwen3Config, Qwen3MoeConfig

from whet.cli.main import main
from whet.inference.architecture import read_architecture
from whet.inference.model_names import resolve_model
from whet.inference.rendering.vocabulary import Vocabulary
from whet.rl.config import RunConfig
from whet.rl.data.batch import TokenSequence, pack
from whet.rl.estimate import Estimate, lines, longest_prompt
from whet.rl.learner.config import LearnerConfig, OptimizerConfig
from whet.rl.learner.make import make_learner
from whet.rl.loop.group_runner import TrainingEnv
from whet.rl.memory import (
    ENGINE_PROCESS,
    IN_TURN,
    LEARNER_PROCESS,
    PROCESSES,
    WITH_LEARNER,
    WORKER,
    memory_parts,
    parameter_count,
)
from whet.rl.plan import plan_training
from whet.rl.sections.algorithm import AlgorithmConfig

SIZES: dict[str, Any] = {
    "vocab_size": 512,
    "hidden_size": 64,
    "intermediate_size": 192,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
}
MODELS = {
    "qwen3": Qwen3Config(**SIZES, tie_word_embeddings=True),
    "llama": LlamaConfig(**SIZES, tie_word_embeddings=False, attention_bias=True),
    "qwen3_moe": Qwen3MoeConfig(**SIZES, num_experts=4, num_experts_per_tok=2, moe_intermediate_size=32),
}
CONFIG = {"name": "r", "env": [{"id": "a"}], "batch_size": 8, "rollouts_per_example": 4}


def estimate(config: RunConfig) -> Estimate:
    """What a dry run of the config estimates."""
    return plan_training(config).estimate


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    def models(kind: str) -> Path:
        path = tmp_path_factory.mktemp(kind)
        torch.manual_seed(0)
        AutoModelForCausalLM.from_config(MODELS[kind]).save_pretrained(path)
        return path

    return models


def config(model: Path | str, **more: Any) -> RunConfig:
    return RunConfig.model_validate({**CONFIG, "model": str(model), **more})


@pytest.mark.parametrize("kind", sorted(MODELS))
def test_parameters_are_counted_as_the_model_has_them(kind: str, models: Callable[[str], Path]) -> None:
    path = models(kind)
    model = AutoModelForCausalLM.from_pretrained(path)
    assert parameter_count(read_architecture(path)) == sum(p.numel() for p in model.parameters())


@pytest.mark.parametrize(
    "section",
    [
        {},
        {"optimizer": {"type": "sgd"}},
        {"optimizer": {"type": "muon"}},
        {"lora": {"rank": 4}},
        {"lora": {"rank": 4, "target_modules": ["q_proj", "down_proj"]}},
    ],
)
def test_gradients_and_optimiser_are_as_large_as_the_learner_s(
    section: dict[str, Any], models: Callable[[str], Path], tmp_path: Path
) -> None:
    path = models("qwen3")
    made = config(path, **section)
    learner = make_learner(
        path, optimizer=made.optimizer, lora=made.lora, max_steps=2, seed=0, publish_directory=tmp_path
    )
    parts = memory_parts(read_architecture(path), made)
    assert parts["learner: gradients"] == 4 * learner.trained_parameters
    assert parts["learner: weights"] == 4 * learner.parameters
    learner.forward_backward(batch(2, 20), AlgorithmConfig())
    learner.optimizer.step(1e-3, 1.0)
    held = sum(tensor.numel() * 4 for tensor in tensors(learner.optimizer.state_dict()) if tensor.dim() > 0)
    assert parts["learner: optimiser"] == pytest.approx(held, rel=0.02)


@pytest.mark.parametrize(
    ("kind", "checkpointing", "dtype"),
    [
        ("qwen3", False, "float32"),
        ("qwen3", True, "float32"),
        ("llama", False, "float32"),
        ("llama", True, "float32"),
        ("llama", False, "bfloat16"),
        ("qwen3_moe", False, "float32"),
    ],
)
def test_activations_are_what_autograd_keeps(
    kind: str, checkpointing: bool, dtype: str, models: Callable[[str], Path], tmp_path: Path
) -> None:
    path = models(kind)
    tokens, length = 512, 64
    learning = {"micro_batch_tokens": tokens, "activation_checkpointing": checkpointing, "dtype": dtype}
    made = config(path, learner=learning, sampling={"max_tokens": length})
    learner = make_learner(
        path,
        optimizer=made.optimizer,
        lora=None,
        max_steps=1,
        seed=0,
        publish_directory=tmp_path,
        computation=made.learner,
    )
    weights = {p.untyped_storage().data_ptr() for p in learner.weights.model.parameters()}
    kept: dict[int, int] = {}

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in weights:
            kept[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        learner.forward_backward(batch(tokens // length, length), AlgorithmConfig())
    expected = memory_parts(read_architecture(path), made)["learner: activations"]
    if checkpointing:  # the one layer that is computed again is not there while these are kept
        expected -= tokens * 4 * (4 * 64 + 4 * 192 + 4 * 64 + 3 * 32 + 4 * length)
    assert sum(kept.values()) == pytest.approx(expected, rel=0.1)


def batch(count: int, length: int) -> Any:
    rng = np.random.default_rng(0)
    some = [
        TokenSequence(
            ids=rng.integers(0, 512, length).astype(np.int32),
            trained=np.arange(length) >= 4,
            logprobs=np.full(length, -6, np.float32),
            versions=np.zeros(length, np.int32),
            rollout=str(number),
        )
        for number in range(count)
    ]
    return pack(some, [1.0] * count)


def tensors(value: Any) -> list[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        return [value]
    items = value.values() if isinstance(value, dict) else value if isinstance(value, list | tuple) else ()
    return [tensor for item in items for tensor in tensors(item)]


def test_what_is_not_known_is_said_and_nothing_is_downloaded(tmp_path: Path) -> None:
    found = estimate(config("nobody/such-a-model", runs_directory=str(tmp_path)))
    assert (found.total, found.step_seconds) == (None, None)
    assert any("nobody/such-a-model is not on this machine" in line for line in found.unknown)
    assert sum(line.startswith("unknown: ") for line in lines(found)) == 2


def test_a_step_takes_what_it_took_a_run_of_the_same_work(tmp_path: Path) -> None:
    made = config("whet/tiny", runs_directory=str(tmp_path)).settled()
    run = tmp_path / "before"
    run.mkdir()
    (run / "config.toml").write_text(made.to_toml())
    times = (9.0, 0.4, 0.5, 0.6, 0.5)
    (run / "metrics.jsonl").write_text(
        "".join(json.dumps({"step": step, "time/step": seconds}) + "\n" for step, seconds in enumerate(times, 1))
    )
    found = estimate(made)
    assert found.step_seconds == 0.5
    assert str(run) in (found.source or "")
    assert estimate(config("whet/tiny", runs_directory=str(tmp_path), seed=7).settled()).step_seconds == 0.5
    assert estimate(config("whet/tiny", runs_directory=str(tmp_path), batch_size=16)).step_seconds is None


def test_memory_lines_name_the_device_that_each_part_computes_on(machine: Any) -> None:
    machine(count=2)
    found = estimate(config("whet/tiny", inference={"device": "cuda:1"}, learner={"device": "cpu"}))
    assert found.devices == {"learner": "cpu", "sampler": "cuda:1"}
    shown = lines(found)
    assert "the learner computes on cpu, the sampler computes on cuda:1" in shown
    for part, device in found.devices.items():
        named = [line for line in shown if line.startswith(f"{part}: ")]
        assert named
        assert all(line.endswith(device) for line in named)


def test_a_base_in_bfloat16_is_counted_with_half_the_bytes() -> None:
    exact, half = (
        estimate(config("whet/tiny", lora={"rank": 4}, learner={"dtype": "bfloat16", "base_dtype": base}))
        for base in ("float32", "bfloat16")
    )
    assert exact.parameters is not None
    assert exact.memory["learner: weights"] - half.memory["learner: weights"] == 2 * exact.parameters


def test_groups_of_ranks_that_hold_the_same_are_counted() -> None:
    learner = {"device": "cpu", "ranks": 6}
    divided, grouped = (
        estimate(config("whet/tiny", learner={**learner, **more})).memory for more in ({}, {"shard_ranks": 2})
    )
    held = sum(size for name, size in divided.items() if name.startswith("learner: ") and "activations" not in name)
    assert {**divided, "other groups of ranks": 2 * held} == grouped


def test_masters_are_counted_beside_weights_in_bfloat16() -> None:
    exact, half = (
        estimate(
            config(
                "whet/tiny",
                learner={"device": "cpu", "dtype": "bfloat16", "weights_dtype": dtype},
                algorithm={"kl_coef": 0.1, "reference": "initial"},
            )
        ).memory
        for dtype in ("float32", "bfloat16")
    )
    learner = make_learner(
        resolve_model("whet/tiny"),
        optimizer=OptimizerConfig(),
        lora=None,
        max_steps=1,
        seed=0,
        publish_directory=Path("unused"),
        computation=LearnerConfig(device="cpu", dtype="bfloat16", weights_dtype="bfloat16"),
    )
    computed, trained = list(learner.weights.model.parameters()), [p for _, p in learner.weights.parameters()]
    assert half["learner: weights"] == pytest.approx(sum(p.nbytes for p in computed), rel=0.01)
    assert half["learner: masters"] == sum(p.nbytes for p in trained)
    assert "learner: masters" not in exact
    assert half["learner: weights"] * 2 == exact["learner: weights"]
    assert half["learner: reference"] * 2 == exact["learner: reference"]
    assert half["learner: gradients"] == exact["learner: gradients"]


def test_on_a_gpu_an_estimate_is_of_bfloat16(machine: Any) -> None:
    machine()
    on_gpu = estimate(config("whet/tiny")).memory
    on_cpu = estimate(config("whet/tiny", learner={"device": "cpu"}, inference={"device": "cpu"})).memory
    for part in ("learner: weights", "sampler: weights", "sampler: KV cache"):
        assert on_gpu[part] * 2 == on_cpu[part]
    assert "learner: masters" in on_gpu


def test_a_gguf_file_that_was_never_read_is_estimated_from_its_metadata(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    file = tmp_path / "model.gguf"
    gguf_files.write(file, "llama")
    made = estimate(RunConfig.model_validate({**CONFIG, "model": str(file)}))
    model = AutoModelForCausalLM.from_pretrained(tmp_path, gguf_file=file.name)
    assert made.parameters == sum(parameter.numel() for parameter in model.parameters())
    assert not list((tmp_path / "cache").rglob("*.safetensors"))


def test_a_dry_run_prints_a_config_file_with_the_estimate_in_comments(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("r.toml").write_text('[[env]]\nid = "arithmetic"\n')
    assert main(["train", "run", "r.toml", "--dry-run"]) == 0
    out = capsys.readouterr().out
    assert RunConfig.model_validate(tomllib.loads(out)).name == "r"
    assert "# learner: optimiser" in out
    assert "# the learner computes on" in out
    assert "# unknown: time of a step" in out
    assert main(["train", "run", "r.toml", "--dry-run", "--json"]) == 0
    said = json.loads(capsys.readouterr().out)["estimate"]
    assert said["total"] == sum(said["memory"].values())


def test_the_longest_prompt_of_the_training_tasks_is_counted_with_its_tools(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    tool = {"name": "look", "description": "Look.", "parameters": {"type": "object", "properties": {}}}
    rows = [{"prompt": [{"role": "user", "content": "ab " * length}], "answer": ""} for length in (1, 200, 3)]
    made = f"whet.SingleTurnEnv(dataset={rows!r}, tool_defs=tools)"
    (tmp_path / "long_prompts.py").write_text(f"import whet\ndef load_environment(tools=()):\n    return {made}\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.chdir(tmp_path)

    def cache(tools: list[dict[str, Any]], max_tokens: int) -> int:
        env = {"id": "long_prompts", "args": {"tools": tools}}
        Path("r.toml").write_text(config("whet/tiny", env=[env], sampling={"max_tokens": max_tokens}).to_toml())
        assert main(["train", "run", "r.toml", "--dry-run", "--json"]) == 0
        size: int = json.loads(capsys.readouterr().out)["estimate"]["memory"]["sampler: KV cache"]
        return size

    vocabulary = Vocabulary("whet/tiny")
    of_a_token = cache([], 9) - cache([], 8)
    prompt = vocabulary.count("ab " * 200)
    assert cache([], 8) == (prompt + 8) * of_a_token
    assert cache([tool], 8) == (vocabulary.count("ab " * 200 + json.dumps([tool])) + 8) * of_a_token


def test_a_prompt_without_a_tokenizer_counts_by_its_characters() -> None:
    rows = [{"prompt": [{"role": "user", "content": "ab " * 20}], "example_id": 0}]
    env = SimpleNamespace(tool_defs=None)
    assert longest_prompt("nobody/such-a-model", [TrainingEnv("a", cast(Any, env), cast(Any, rows))]) == 20
    assert longest_prompt("nobody/such-a-model", []) == 0


def test_taking_turns_counts_the_larger_phase_and_one_file_of_weights() -> None:
    def of(**deployment: bool) -> Any:
        data = {"name": "r", "batch_size": 8, "env": [{"id": "reverse-text"}], "deployment": deployment}
        return estimate(RunConfig.model_validate(data | {"learner": {"device": "cpu"}, "inference": {"device": "cpu"}}))

    alone, turns = of(colocate=False), of(colocate=True)
    held, apart = turns.memory, {name: size for name, size in alone.memory.items() if name != IN_TURN}
    assert (apart["handed over"], held) == (apart["sampler: weights"], apart | {"handed over": 0})
    heaps = apart["working memory of the engine"], apart["kept free in the learner's heap"]
    assert alone.memory[IN_TURN] == -min(held["sampler: KV cache"] + heaps[0], held["learner: activations"] + heaps[1])
    passing = held["learner: gradients"] + held["learner: activations"]
    sampling = held["sampler: weights"] + held["sampler: KV cache"]
    assert turns.total == sum(held.values()) - min(passing, sampling)


MEASURE = """
import sys
from pathlib import Path
from whet.rl.config import load_run_config
from whet.rl.plan import plan_training
from whet.rl.run import run_training

config = load_run_config(Path(sys.argv[1]))
said = plan_training(config).estimate.total
assert run_training(config, json_output=True).state == "finished"
peak = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM"))
print(said, int(peak.split()[1]) * 1024)
"""


def test_processes_and_what_an_adapter_is_merged_from_are_counted() -> None:
    first = estimate(config("whet/tiny")).memory[PROCESSES]
    asynchronous = estimate(config("whet/tiny", max_async_level=1, workers_per_env=2)).memory[PROCESSES]
    assert asynchronous == first - WITH_LEARNER + LEARNER_PROCESS + ENGINE_PROCESS + 2 * WORKER
    held = estimate(
        config("whet/tiny", lora={"rank": 4}, inference={"device": "cpu"}, learner={"device": "cpu"})
    ).memory
    file = (resolve_model("whet/tiny") / "model.safetensors").stat().st_size
    assert held["base, mapped"] == file
    assert held["sampler: next weights"] == held["sampler: weights"]
    assert 0 < held["adapter merged in"] < held["sampler: weights"]


@pytest.mark.parametrize("stored", [2, 4])
def test_ranks_share_nothing_of_an_adapters_base(stored: int, tmp_path: Path, models: Callable[[str], Path]) -> None:
    """The base is larger than what is copied; its file has as many bytes for a parameter as are `stored`."""
    wide = {"hidden_size": 1024, "intermediate_size": 2048, "head_dim": 64, "num_attention_heads": 16}
    saved = json.loads((models("qwen3") / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(saved | wide))
    arch = read_architecture(tmp_path)
    with (tmp_path / "model.safetensors").open("wb") as file:
        file.truncate(stored * parameter_count(arch))
    alone, divided = (
        memory_parts(arch, config(str(tmp_path), lora={"rank": 4}, learner={"device": "cpu", "ranks": ranks}))
        for ranks in (1, 2)
    )
    base = 4 * parameter_count(arch)
    assert (alone["sampler: weights"], alone.get("base, mapped", 0)) == (0, 0)
    assert (divided["sampler: weights"], divided.get("base, mapped", 0)) == ((0, base) if stored == 4 else (base, 0))


@pytest.mark.parts
@pytest.mark.parametrize("lora", ["", "[lora]\nrank = 4\n"])
def test_a_run_takes_about_the_memory_that_is_said(lora: str, tmp_path: Path) -> None:
    (tmp_path / "run.toml").write_text(
        f'name = "r"\nmax_steps = 2\nbatch_size = 8\nrollouts_per_example = 4\nruns_directory = "{tmp_path}"\n'
        '[[env]]\nid = "reverse-text"\n[sampling]\nmax_tokens = 16\n[eval]\nnum_examples = 2\n'
        f"[learner]\nmicro_batch_tokens = 256\n[deployment]\nthreads = 1\n{lora}"
    )
    command = [sys.executable, "-c", MEASURE, str(tmp_path / "run.toml")]
    said, used = map(int, subprocess.check_output(command, text=True).split()[-2:])
    assert said == pytest.approx(used, rel=0.25)
