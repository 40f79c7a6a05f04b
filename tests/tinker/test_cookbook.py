"""Recipes of tinker-cookbook, unmodified: supervised steps, and RL resumed from their state."""

from __future__ import annotations

import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from whet.inference.model_names import resolve_model

pytestmark = pytest.mark.parts
PACKAGES = (
    "tinker-cookbook==0.6.1",
    "chz==0.4.0",
    "blobfile==3.3.0",
    "termcolor==3.3.0",
    "lxml",
    "pycryptodomex",
    "pylatexenc",
)
"""Without their dependencies, of which `tml-renderers` is for another model's tokenizer alone."""
MODEL = "Qwen/Qwen3-8B-Base"
"""A name that the cookbook knows: whet/tiny is in a folder of this name, for server and recipes alike."""


@pytest.fixture(scope="module")
def cookbook(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("cookbook")
    install = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--target", str(folder), *PACKAGES]
    if subprocess.run(install, capture_output=True).returncode != 0:
        pytest.skip("tinker-cookbook cannot be installed")
    return folder


@pytest.fixture
def data(tmp_path: Path) -> None:
    """The recipes' data sets, small, in folders of their names."""
    draw = random.Random(0)
    pairs = [(draw.randrange(4), draw.randrange(4)) for _ in range(64)]
    problems = [{"question": f"{a} + {b}?", "answer": f"#### {a + b}"} for a, b in pairs]
    chats = [
        {"messages": [{"role": "user", "content": one["question"]}, {"role": "assistant", "content": one["answer"]}]}
        for one in problems
    ]
    for name, rows in (("HuggingFaceH4/no_robots", chats), ("openai/gsm8k", problems)):
        folder = tmp_path / name
        folder.mkdir(parents=True)
        (folder / "train.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    files = "data_files: [{split: train, path: train.jsonl}]"
    card = f"---\nconfigs: [{{config_name: main, {files}}}]\n---\n"
    (tmp_path / "openai/gsm8k/README.md").write_text(card, encoding="utf-8")


@pytest.fixture
def environment(tmp_path: Path, cookbook: Path, data: None) -> Iterator[dict[str, str]]:
    """Of a recipe, with a server that answers."""
    shutil.copytree(resolve_model("whet/tiny"), tmp_path / MODEL)
    command = [sys.executable, "-m", "whet.cli.main", "tinker", "serve", MODEL, "--data", "data", "--port", "0"]
    server = subprocess.Popen(command, cwd=tmp_path, stderr=subprocess.PIPE, text=True)
    try:
        assert server.stderr is not None
        key, address = server.stderr.readline().split()[-1], server.stderr.readline()
        yield {
            **os.environ,
            "TINKER_API_KEY": key,
            "TINKER_BASE_URL": re.findall(r"http://[^:]+:\d+", address)[0],
            "TINKER_TELEMETRY": "0",
            "HF_HOME": str(tmp_path / "hf"),
            "HF_HUB_OFFLINE": "1",
            "PYTHONPATH": str(cookbook),
            "OMP_NUM_THREADS": "1",
        }
    finally:
        server.send_signal(signal.SIGINT)
        assert server.wait(60) == 0


def test_loops_train_and_resume(tmp_path: Path, environment: dict[str, str]) -> None:
    def run(recipe: str, **options: Any) -> list[dict[str, float]]:
        given = {"model_name": MODEL, "log_path": recipe, "batch_size": 8, "learning_rate": 5e-3, **options}
        command = [sys.executable, "-m", f"tinker_cookbook.recipes.{recipe}", *(f"{k}={v}" for k, v in given.items())]
        ran = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=600)
        assert ran.returncode == 0, ran.stderr[-3000:]
        lines = (tmp_path / recipe / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
        return [json.loads(line) for line in lines]

    steps = run("sl_loop", max_length=512, save_every=4)
    assert len(steps) == 8
    assert steps[-1]["train_mean_nll"] < steps[0]["train_mean_nll"] / 2
    last = json.loads((tmp_path / "sl_loop/checkpoints.jsonl").read_text(encoding="utf-8").splitlines()[-1])
    (tmp_path / "rl_loop").mkdir()
    (tmp_path / "rl_loop/checkpoints.jsonl").write_text(json.dumps({**last, "batch": 0}) + "\n", encoding="utf-8")
    steps = run("rl_loop", loss_fn="importance_sampling", group_size=4, max_tokens=8, max_steps=2)
    assert [0 <= step["reward/total"] <= 1 for step in steps] == [True, True]
    names = [json.loads(line)["name"] for line in (tmp_path / "rl_loop/checkpoints.jsonl").read_text().splitlines()]
    assert names == ["final", "final"]
