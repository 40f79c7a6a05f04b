"""Two whole runs that differ in every key a run can show at once, and what there is to see of each."""

from __future__ import annotations

import os
import shutil
import sys
import tomllib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoTokenizer, Qwen3Config, Qwen3ForCausalLM, Qwen3MoeConfig, Qwen3MoeForCausalLM

from whet.inference.embedded import EmbeddedEngine
from whet.inference.protocol import SampleRequest
from whet.models.tiny import path as tiny
from whet.rl.config import load_run_config
from whet.rl.loop.training_loop import HeldOutEvaluation
from whet.rl.run import run_training
from whet.rl.storage.run_directory import RunDirectory
from whet.system.files import read_lines

ENVIRONMENT = """
import os
import whet

def load_environment(n=8, config=None):
    said = f"{sorted((config or {}).items())} {os.environ.get('WHET_EVERY_KEY', '')}"
    rows = [{"question": f"{said} {i}", "answer": str(i)} for i in range(n)]
    def length(completion, **kwargs):
        return float(len(completion[-1]["content"] or ""))
    return whet.SingleTurnEnv(dataset=rows, eval_dataset=rows, rubric=whet.Rubric(funcs=[length]))
"""
PLAIN = """
model = "{plain}"
name = "plain"
max_steps = 2
batch_size = 4
rollouts_per_example = 2
learning_rate = 1e-4
runs_directory = "{here}/runs"
[sampling]
max_tokens = 6
[[env]]
id = "{environment}"
[eval]
num_examples = 2
before = false
after = false
greedy = false
[checkpointing]
save_every_n_steps = 2
[learner]
keep_token_details = false
[deployment]
threads = 1
"""
CHANGED = """
model = "{other}"
name = "changed"
max_steps = 3
batch_size = 12
rollouts_per_example = 3
learning_rate = 2e-4
max_concurrent = 3
seed = 5
env_file = ["{here}/variables.env"]
runs_directory = "{here}/elsewhere"
[sampling]
max_tokens = 9
top_p = 0.9
top_k = 50
min_p = 1e-4
stop = ["zz"]
enable_thinking = false
temp_scheduler = {{ type = "linear", start = 0.9, end = 0.5 }}
[[env]]
id = "{environment}"
name = "first"
weight = 3
loss_weight = 2
args = {{ n = 5 }}
[[env]]
id = "{environment}"
name = "second"
[lora]
rank = 4
merge = true
[eval]
interval = 1
num_examples = 3
rollouts_per_example = 2
before = true
after = true
greedy = true
[eval.sampling]
max_tokens = 4
temperature = 0.8
top_p = 0.7
top_k = 30
min_p = 1e-3
stop = ["yy"]
enable_thinking = true
[[eval.env]]
id = "{environment}"
name = "held-out"
args = {{ n = 4 }}
[checkpointing]
save_every_n_steps = 1
keep_n_checkpoints = 2
export_dtype = "bfloat16"
[learner]
keep_token_details = true
peak_tflops = 2.0
[inference]
dtype = "bfloat16"
[deployment]
threads = 2
"""


@dataclass
class Seen:
    """What one run left, and what its engine was asked."""

    directory: Path
    trained: list[SampleRequest] = field(default_factory=list)
    evaluated: list[SampleRequest] = field(default_factory=list)
    most_at_once: int = 0
    threads: set[int] = field(default_factory=set)
    dtypes: set[torch.dtype] = field(default_factory=set)

    @property
    def metrics(self) -> list[dict[str, Any]]:
        return list(read_lines(self.directory / "metrics.jsonl"))

    @property
    def evaluations(self) -> list[dict[str, Any]]:
        path = self.directory / "evals.jsonl"
        return list(read_lines(path)) if path.exists() else []

    def rollouts(self, step: int = 1) -> list[dict[str, Any]]:
        return list(read_lines(self.directory / "rollouts" / f"step_{step:06}.jsonl"))

    def names(self, below: str) -> list[str]:
        return sorted(path.name for path in (self.directory / below).glob("*"))

    @property
    def first_checkpoint(self) -> str:
        """The one that was written first."""
        text = (self.directory / "config.toml").read_text(encoding="utf-8")
        return f"step_{tomllib.loads(text)['checkpointing']['save_every_n_steps']}"

    def asked(self, setting: str, *, held_out: bool = False, greedy: bool = False) -> set[Any]:
        """The values of a sampling setting that requests came with."""
        requests = self.evaluated if held_out else self.trained
        wanted = [request for request in requests if (request.params.temperature == 0) == greedy]
        return {getattr(request.params, setting) for request in wanted}


def run_both(here: Path) -> tuple[Seen, Seen]:
    (here / "every_key_environment.py").write_text(ENVIRONMENT)
    (here / "variables.env").write_text("WHET_EVERY_KEY=told\n")
    places = {"here": here, "environment": here / "every_key_environment.py"}
    for name, size in (("plain", 16), ("other", 32)):
        places[name] = here / name
        small_model(places[name], size)
    return tuple(_run(here, text.format(**places)) for text in (PLAIN, CHANGED))  # type: ignore[return-value]


def small_model(directory: Path, size: int = 16, experts: int = 0) -> Path:
    """Random weights behind the tiny model's tokenizer, which knows about thinking."""
    torch.manual_seed(0)
    mixture = {"num_experts": experts, "num_experts_per_tok": 2, "moe_intermediate_size": size} if experts else {}
    config = (Qwen3MoeConfig if experts else Qwen3Config)(
        **mixture,
        vocab_size=len(AutoTokenizer.from_pretrained(tiny())),
        hidden_size=size,
        intermediate_size=2 * size,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=8,
        max_position_embeddings=256,
        tie_word_embeddings=True,
    )
    (Qwen3MoeForCausalLM if experts else Qwen3ForCausalLM)(config).save_pretrained(directory)
    for file in Path(tiny()).glob("*"):
        if file.name not in ("config.json", "generation_config.json") and file.suffix != ".safetensors":
            shutil.copy(file, directory)
    return directory


def _run(here: Path, text: str) -> Seen:
    path = here / "run.toml"
    path.write_text(text)
    config = load_run_config(path)
    seen = Seen(RunDirectory(config.directory).path)
    evaluating, asking = False, 0
    sample, evaluate = EmbeddedEngine.sample, HeldOutEvaluation.__call__

    async def seen_sample(engine: Any, request: SampleRequest, **options: Any) -> Any:
        nonlocal asking
        (seen.evaluated if evaluating else seen.trained).append(request)
        seen.threads.add(torch.get_num_threads())
        seen.dtypes.add(engine.dtype)
        asking += 1
        seen.most_at_once = max(seen.most_at_once, asking)
        try:
            return await sample(engine, request, **options)
        finally:
            asking -= 1

    async def seen_evaluate(*arguments: Any) -> Any:
        nonlocal evaluating
        evaluating = True
        try:
            return await evaluate(*arguments)
        finally:
            evaluating = False

    threads = torch.get_num_threads()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(EmbeddedEngine, "sample", seen_sample)
        patch.setattr(HeldOutEvaluation, "__call__", seen_evaluate)
        patch.setattr(os, "environ", os.environ.copy())
        sys.modules.pop("every_key_environment", None)
        outcome = run_training(config, json_output=True)
    torch.set_num_threads(threads)
    assert outcome.state == "finished", outcome.message
    return seen
