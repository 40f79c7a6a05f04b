"""`benchmarks/gpu_learner.py` runs everywhere at its small shape, says what it measured, and refuses without a GPU."""

import importlib.util
import json
from pathlib import Path

import numpy as np
import pytest
import torch

PATH = Path(__file__).parents[3] / "benchmarks" / "gpu_learner.py"


@pytest.fixture(scope="module")
def benchmark():
    spec = importlib.util.spec_from_file_location("gpu_learner", PATH)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_small_shape_runs_on_a_cpu_and_prints_a_table_and_a_line_of_json(benchmark, capsys):
    benchmark.main(["--device", "cpu", "--small", "--tokens", "256", "--steps", "1", "--warmup", "0", "--peak", "1"])
    *lines, _, last = capsys.readouterr().out.splitlines()
    result = json.loads(last)
    assert {line[:26].strip() for line in lines} >= {"tokens a second", "MFU", "peak memory"}
    assert (result["tokens"], result["length"], result["device"]) == (256, 32, "cpu")
    assert result["tokens_per_s"] == pytest.approx(256 / result["seconds"])
    assert result["mfu"] == pytest.approx(result["tflops_per_step"] / result["seconds"])


def test_without_a_gpu_it_says_so(benchmark, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(SystemExit, match="torch sees none here"):
        benchmark.main([])


def test_flops_are_those_of_the_formula(benchmark):
    shape = {
        "vocab_size": 7,
        "hidden_size": 4,
        "intermediate_size": 5,
        "num_hidden_layers": 2,
        "num_attention_heads": 3,
        "num_key_value_heads": 1,
        "head_dim": 2,
    }
    batch = benchmark.make_batch(32, 16, 7)
    assert batch.trained_tokens == 2 * 14
    layer = 4 * (6 + 2 + 2 + 6) + 3 * 4 * 5  # q, k, v, o; gate, up, down
    expected = 6 * (2 * layer * 30 + 4 * 7 * 28) + 6 * 2 * 6 * 2 * 15**2
    assert benchmark.step_flops(shape, batch) == expected


def test_the_shape_is_that_of_qwen3_06b(benchmark):
    shape = benchmark.QWEN3_06B
    hidden, width, keys = shape["hidden_size"], 16 * 128, 8 * 128
    layer = hidden * (2 * width + 2 * keys) + 3 * hidden * shape["intermediate_size"] + 2 * hidden + 2 * 128
    assert np.isclose(28 * layer + hidden + shape["vocab_size"] * hidden, 596e6, rtol=1e-3)
