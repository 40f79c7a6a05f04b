"""What a dry run says a training run will take, against what the run takes.

    python benchmarks/memory.py [--only tiny lora packed] [--steps 2] [--json]

Each case is a config: `whet train run --dry-run` says its memory, then the run is made as a process of its own, with
what it starts. Its memory is the proportional share of every page that is resident, mapped files included, of all its
processes together, read ten times a second; the peak counts. Files that other processes of the machine map count less
there, short peaks are missed, and weights in /dev/shm that nothing maps are not seen: the run's own record
(`memory/peak_mib`) has all of them, and is what the plan is compared with. Models: whet/tiny, SmolLM2-135M, which
`whet model get smollm2-135m` brings, random weights in the shapes of Qwen2.5-0.5B and Qwen3-0.6B, for which all
weights need 13 and 16 GiB, and random blocks in the first of them: a GGUF file of 0.4 GB, mixed as Q4_K_M is there.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from whet.system.children import family

WHET = (sys.executable, "-m", "whet.cli.main")
SMALL = {"max_tokens": 48, "batch_size": 32, "rollouts_per_example": 8, "micro_batch_tokens": 512}
TINY, SMOL = "whet/tiny", "smollm2-135m"
SHAPES: dict[str, dict[str, Any]] = {
    "random-0.5b": {"hidden_size": 896, "intermediate_size": 4864, "num_hidden_layers": 24, "num_attention_heads": 14}
    | {"num_key_value_heads": 2, "model_type": "qwen2"},
    "random-0.6b": {"hidden_size": 1024, "intermediate_size": 3072, "num_hidden_layers": 28, "num_attention_heads": 16}
    | {"num_key_value_heads": 8, "head_dim": 128, "model_type": "qwen3"},
}
"""Of config.json; the vocabulary of 151,936 is theirs too, the tokenizer whet/tiny's."""
GGUF = "random-0.5b.gguf"
CASES: dict[str, dict[str, Any]] = {
    "tiny": {"model": TINY},
    "tiny, async": {"model": TINY, "max_async_level": 1},
    "tiny, 2 ranks": {"model": TINY, "ranks": 2},
    "full": {"model": SMOL},
    "lora": {"model": SMOL, "lora": "dense"},
    "lora, async": {"model": SMOL, "lora": "dense", "max_async_level": 1},
    "packed": {"model": SMOL, "lora": "packed"},
    "packed, recomputed": {"model": SMOL, "lora": "packed", "recompute": True},
    "packed, recomputed, 8 at once": {"model": SMOL, "lora": "packed", "recompute": True, "max_concurrent": 8},
    "lora, 2 ranks": {"model": SMOL, "lora": "dense", "ranks": 2},
    "0.5 B": {"model": "random-0.5b"},
    "0.5 B, lora": {"model": "random-0.5b", "lora": "dense"},
    "0.6 B": {"model": "random-0.6b"},
    "0.6 B, lora": {"model": "random-0.6b", "lora": "dense"},
    "0.5 B, packed": {"model": GGUF, "lora": "packed", "recompute": True, "max_concurrent": 8},
    "0.5 B, bfloat16": {"model": GGUF, "lora": "dense", "recompute": True, "max_concurrent": 8, "dtype": "bfloat16"},
    "packed, async": {"model": SMOL, "lora": "packed", "recompute": True, "max_async_level": 1},
}


def config_of(case: dict[str, Any], steps: int) -> str:
    lines = [
        f"max_concurrent = {case.get('max_concurrent', 512)}",
        f'model = "{"./" * (case["model"] in (*SHAPES, GGUF))}{case["model"]}"',
        f"max_steps = {steps}",
        f"batch_size = {SMALL['batch_size']}",
        f"rollouts_per_example = {SMALL['rollouts_per_example']}",
        f"max_async_level = {case.get('max_async_level', 0)}",
        "[sampling]",
        f"max_tokens = {SMALL['max_tokens']}",
        "[[env]]",
        'id = "reverse-text"',
        "[deployment]",
        "threads = 2" if case.get("max_async_level") or case.get("ranks") else "threads = 1",
        "[eval]",
        "num_examples = 4",
        "[learner]",
        f"micro_batch_tokens = {SMALL['micro_batch_tokens']}",
        f"activation_checkpointing = {json.dumps(case.get('recompute', False))}",
    ]
    lines += [f"ranks = {case['ranks']}"] if "ranks" in case else []
    if "dtype" in case:
        own = f'dtype = "{case["dtype"]}"'
        lines += [own, f"base_{own}", "[inference]", own]
    lines += ["[lora]", "rank = 8", f'base = "{case["lora"]}"'] if "lora" in case else []
    return "\n".join(lines) + "\n"


def make_model(folder: Path, name: str) -> None:
    """Random weights, in a process of its own: in float32 with whet/tiny's tokenizer, or in blocks."""
    words = [MAKE_GGUF, str(folder / name)] if name == GGUF else [MAKE, str(folder / name), json.dumps(SHAPES[name])]
    subprocess.run([sys.executable, "-c", *words], check=True)


MAKE = """
import json, shutil, sys
from pathlib import Path
import torch
from transformers import AutoConfig, AutoModelForCausalLM
from whet.inference.model_names import resolve_model
folder, shape = Path(sys.argv[1]), json.loads(sys.argv[2])
kind = shape.pop("model_type")
config = AutoConfig.for_model(kind, vocab_size=151936, tie_word_embeddings=True, max_position_embeddings=4096, **shape)
torch.manual_seed(0)
AutoModelForCausalLM.from_config(config).save_pretrained(folder)
tiny = resolve_model("whet/tiny")
for path in tiny.iterdir():
    if "token" in path.name or path.suffix == ".jinja":
        shutil.copy(path, folder)
"""


MAKE_GGUF = r"""
import sys
import gguf, numpy
from tokenizers.pre_tokenizers import ByteLevel
HIDDEN, WIDE, LAYERS, HEADS, KV, WORDS = 896, 4864, 24, 14, 2, 151936
kinds = gguf.GGMLQuantizationType
random = numpy.random.default_rng(0)
letters, special = sorted(ByteLevel.alphabet()), ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
parts = [(a, b) for a in letters for b in letters][:65000]
while len(parts) < WORDS - len(special) - len(letters):
    a, b = parts[len(parts) % 65000]
    parts.append((a + b, letters[len(parts) // 65000 * 7 % 256]))
words = special + letters + [a + b for a, b in parts]
assert len(set(words)) == WORDS
file = gguf.GGUFWriter(sys.argv[1], "qwen2")
file.add_context_length(4096)
file.add_embedding_length(HIDDEN)
file.add_block_count(LAYERS)
file.add_feed_forward_length(WIDE)
file.add_head_count(HEADS)
file.add_head_count_kv(KV)
file.add_rope_freq_base(1e6)
file.add_layer_norm_rms_eps(1e-6)
file.add_vocab_size(WORDS)
file.add_tokenizer_model("gpt2")
file.add_tokenizer_pre("qwen2")
file.add_token_list(words)
file.add_token_types([3] * len(special) + [1] * (WORDS - len(special)))
file.add_token_merges([f"{a} {b}" for a, b in parts])
file.add_bos_token_id(1)
file.add_eos_token_id(2)
file.add_pad_token_id(0)
file.add_chat_template(
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
def add(name, rows, columns, kind):
    per, size = gguf.GGML_QUANT_SIZES[kind]
    blocks = random.integers(0, 256, (rows * columns // per, size), dtype=numpy.uint8)
    scale = lambda value: numpy.full(len(blocks), value / columns**0.5, numpy.float16).view(numpy.uint8).reshape(-1, 2)
    if kind == kinds.Q6_K:
        blocks[:, -2:] = scale(1 / 1024)
    else:
        blocks[:, :2] = scale({kinds.Q8_0: 1 / 64, kinds.Q5_0: 1 / 8, kinds.Q4_K: 1 / 256}[kind])
    if kind == kinds.Q4_K:
        blocks[:, 2:4] = scale(1 / 32)
    file.add_tensor(name, blocks.reshape(rows, -1), raw_dtype=kind)
add("token_embd.weight", WORDS, HIDDEN, kinds.Q8_0)
file.add_tensor("output_norm.weight", numpy.ones(HIDDEN, numpy.float32))
for number in range(LAYERS):
    layer, keys = f"blk.{number}.", HIDDEN // HEADS * KV
    for name, rows in (("attn_q", HIDDEN), ("attn_k", keys), ("attn_v", keys)):
        add(f"{layer}{name}.weight", rows, HIDDEN, kinds.Q8_0 if name == "attn_v" else kinds.Q5_0)
        file.add_tensor(f"{layer}{name}.bias", numpy.zeros(rows, numpy.float32))
    add(f"{layer}attn_output.weight", HIDDEN, HIDDEN, kinds.Q5_0)
    add(f"{layer}ffn_gate.weight", WIDE, HIDDEN, kinds.Q5_0)
    add(f"{layer}ffn_up.weight", WIDE, HIDDEN, kinds.Q5_0)
    add(f"{layer}ffn_down.weight", HIDDEN, WIDE, kinds.Q6_K if number % 2 else kinds.Q4_K)
    for name in ("attn_norm", "ffn_norm"):
        file.add_tensor(f"{layer}{name}.weight", numpy.ones(HIDDEN, numpy.float32))
file.write_header_to_file()
file.write_kv_data_to_file()
file.write_tensors_to_file()
file.close()
"""


def said(config: Path) -> int:
    """Bytes, by the dry run."""
    command = [*WHET, "train", "run", str(config), "--name", "said", "--dry-run", "--json"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=config.parent)
    if done.returncode:
        raise SystemExit(done.stderr)
    total: int = json.loads(done.stdout.splitlines()[-1])["estimate"]["total"]
    return total


def recorded(config: Path) -> int:
    """Bytes at the peak by the run's own record (`memory/peak_mib`)."""
    rows = map(json.loads, (config.parent / "runs" / "used" / "metrics.jsonl").read_text().splitlines())
    return int(max(row["memory/peak_mib"] for row in rows)) << 20


def used(config: Path) -> int:
    """Bytes at the peak of the run."""
    command, peak = [*WHET, "train", "run", str(config), "--name", "used"], 0
    with (config.parent / "log").open("w") as log:
        run = subprocess.Popen(command, stdout=log, stderr=log, cwd=config.parent)
        while run.poll() is None:
            peak = max(peak, sum(map(share, family(run.pid))))
            time.sleep(0.1)
    if run.returncode:
        raise SystemExit((config.parent / "log").read_text())
    return peak


def share(pid: int) -> int:
    """Resident bytes of a process, those that it shares divided among their users; 0 where it has ended."""
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    except OSError:
        return 0
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith("Pss:"))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=CASES, default=list(CASES))
    parser.add_argument("--steps", type=int, default=2, help="of each run")
    parser.add_argument("--json", action="store_true", help="the JSON lines only, without the table")
    arguments = parser.parse_args()
    for name in arguments.only:
        with tempfile.TemporaryDirectory() as folder:
            config = Path(folder) / "config.toml"
            if CASES[name]["model"] in (*SHAPES, GGUF):
                make_model(Path(folder), CASES[name]["model"])
            config.write_text(config_of(CASES[name], arguments.steps))
            result = {"case": name, "said_mib": said(config) >> 20, "used_mib": used(config) >> 20}
            result["recorded_mib"] = recorded(config) >> 20
        result["ratio"] = round(result["said_mib"] / result["recorded_mib"], 2)
        text = f"{name:29} said {result['said_mib']:6,} MiB  recorded {result['recorded_mib']:6,} MiB  "
        text += f"used {result['used_mib']:6,} MiB  said / recorded {result['ratio']:.2f}"
        print(json.dumps(result) if arguments.json else text, flush=True)


if __name__ == "__main__":
    main()
