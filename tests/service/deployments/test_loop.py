"""A trained adapter, deployed: its answers are those of the run's own evaluation; and a download that others load."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import subprocess
import sys
import tarfile
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.parts

CONFIG = """
model = "whet/tiny"
max_steps = 2
batch_size = 16
rollouts_per_example = 4
learning_rate = 3e-3
[sampling]
max_tokens = 12
[[env]]
id = "reverse-text"
[eval]
num_examples = 16
before = false
[deployment]
threads = 1
[lora]
rank = 4
"""


@pytest.fixture
def database_url() -> None:
    """SQLite; see the other tests of this folder for PostgreSQL."""


@pytest.fixture
def trained(service: Any, tmp_path: Path) -> tuple[str, Path]:
    """The id of a run that was trained, and its directory."""
    run = service.run(kind="none", config=CONFIG)
    folder = service.data / "runs" / run
    shutil.rmtree(folder / "run")
    file = tmp_path / "config.toml"
    file.write_text(CONFIG)
    options = ("--name", "run", "--runs_directory", str(folder))
    command = [sys.executable, "-m", "whet.cli.main", "train", "run", str(file), *options]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment, timeout=900)
    assert done.returncode == 0, done.stderr
    return run, folder / "run"


def test_greedy_answers_of_a_deployment_are_those_of_the_runs_own_evaluation(
    service: Any, trained: tuple[str, Path]
) -> None:
    run, directory = trained
    lines = (directory / "rollouts" / "eval_after.jsonl").read_text().splitlines()
    greedy = [row for row in map(json.loads, lines) if row["sampling"] == "greedy"]
    assert len(greedy) == 16
    service.deploy("ann", run, name="a")

    async def go() -> Any:
        async with service.serving() as serving:
            await serving.reconcile()
            return await asyncio.gather(*(serving.ask("ann", "whet/tiny:a", messages=row["prompt"]) for row in greedy))

    assert asyncio.run(go()) == [row["turns"][0]["completion_ids"] for row in greedy]


def test_an_adapter_that_was_downloaded_loads_in_peft_and_is_served(
    service: Any, deploying: Any, trained: tuple[str, Path], tmp_path: Path
) -> None:
    import torch
    from peft import PeftModel
    from transformers import AutoModelForCausalLM

    from whet.gateway.adapters import load_adapter
    from whet.inference.loading import load_policy
    from whet.models.tiny import path as tiny

    run, _ = trained
    answer = service.hub.ask("GET", f"/runs/{run}/checkpoints/2/archive?what=adapter", "ann")
    assert answer.status_code == 200, answer.text
    with tarfile.open(fileobj=BytesIO(answer.content)) as archive:
        archive.extractall(tmp_path / "download", filter="data")
    [adapter] = (path.parent for path in (tmp_path / "download").rglob("adapter_config.json"))
    loaded = PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(tiny()), str(adapter))
    weights = [value for name, value in loaded.named_parameters() if "lora_B" in name]
    assert any(bool(value.abs().max() > 0) for value in weights)

    async def go() -> Any:
        policy = load_policy("whet/tiny")
        client = await load_adapter(policy, "mine", adapter)
        found = await client.get_response(deploying.QUESTION, "m", {"temperature": 0, "max_tokens": 12})
        await policy.engine.close()
        return found.message["tokens"]

    tokens = asyncio.run(go())
    prompt, ids = tokens["prompt_ids"], tokens["completion_ids"]
    with torch.no_grad():
        logits = loaded(torch.tensor([prompt + ids])).logits[0, len(prompt) - 1 : -1]
    assert logits.argmax(-1).tolist() == ids
