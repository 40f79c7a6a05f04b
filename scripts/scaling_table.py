"""Write the table of docs/scaling.md: what the configs on the page take on paper. `python scripts/scaling_table.py`"""

from __future__ import annotations

import json
import re
import tempfile
import tomllib
from pathlib import Path
from typing import Any

from whet.inference.architecture import read_architecture
from whet.rl.config import RunConfig
from whet.rl.memory import memory_parts, size_text
from whet.rl.placement import placement
from whet.rl.sections.spellings import canonical
from whet.rl.step_time import ASSUMED, gpu_rates, seconds_text, step_time

PAGE = Path(__file__).parents[1] / "docs" / "scaling.md"
MARK = "<!-- table: python scripts/scaling_table.py -->\n"
QWEN3_8B: dict[str, Any] = {
    "model_type": "qwen3",
    "vocab_size": 151_936,
    "hidden_size": 4096,
    "intermediate_size": 12_288,
    "num_hidden_layers": 36,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "max_position_embeddings": 40_960,
    "tie_word_embeddings": False,
}
"""The model's config.json: nothing else of it is read."""


def configs() -> dict[str, RunConfig]:
    """Those of the page, by their titles, each on the base of the first."""
    blocks = dict(re.findall(r'```toml title="([^"]+)"\n(.*?)```', PAGE.read_text(), re.DOTALL))
    base = tomllib.loads(blocks.pop("base"))
    return {
        title: RunConfig.model_validate(canonical({"name": "run", **base, **tomllib.loads(block)}, title))
        for title, block in blocks.items()
    }


def on_cuda(config: RunConfig) -> RunConfig:
    """With the dtypes that `auto` has there, whatever this machine has."""
    held = "weights_dtype" if config.lora is None else "base_dtype"
    other = "base_dtype" if config.lora is None else "weights_dtype"
    learner = config.learner.model_copy(update={"dtype": "bfloat16", held: "bfloat16", other: "float32"})
    inference = config.inference.model_copy(update={"dtype": "bfloat16"})
    return config.model_copy(update={"learner": learner, "inference": inference})


def table() -> str:
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "config.json").write_text(json.dumps(QWEN3_8B))
        arch = read_architecture(Path(folder))
    rates = gpu_rates(ASSUMED)
    assert rates is not None
    head = "| GPUs | trained | learner, each GPU | step | sampling | learning | gathering | weights | bottleneck |"
    rows = [head, "|---|---|---|---|---|---|---|---|---|"]
    for config in configs().values():
        for adapter in (True, False):
            run = on_cuda(config if adapter else config.model_copy(update={"lora": None}))
            found = step_time(arch, run, rates)
            devices = {"learner": "cuda", "sampler": "cuda"}
            parts = placement(run, devices, run.gpus.total, memory_parts(arch, run)).parts
            held = next(part.bytes_per_device for part in parts if part.role == "learner")
            cells = [str(run.gpus.total), "adapter" if adapter else "all weights", size_text(held or 0)]
            parts_s = (found.step, found.sampling, found.learning, found.gathering, found.weights)
            rows.append("| " + " | ".join([*cells, *map(seconds_text, parts_s), found.bottleneck]) + " |")
    return "\n".join(rows) + "\n"


def page() -> str:
    """The page with the table in it."""
    before, _, after = PAGE.read_text().partition(MARK)
    return before + MARK + table() + "\nThe model counts" + after.partition("\nThe model counts")[2]


if __name__ == "__main__":
    PAGE.write_text(page())
