"""Tokens per second through whet's vLLM engine against vLLM's own benchmark: one server, equal concurrency.

    python benchmarks/vllm_client.py [--vllm-python .venv-vllm/bin/python] [--concurrency 16 64] [--json]
    python benchmarks/vllm_client.py --device cuda --shape qwen3-0.6b --requests 1024 --concurrency 256
    python benchmarks/vllm_client.py --requests 8 --concurrency 4 --repetitions 1      # that it runs at all

A server of whet/tiny, or of a random model of another shape, is started as docs/scaling.md says for servers that run
already. Both sides send as many requests of --input-len random tokens, at most --concurrency at a time, and take
--output-len tokens at temperature 1. The peer is `vllm bench serve` (its module `vllm.benchmarks.serve`), as it is and
with the logprob of each token, which whet always has. They take turns, repetition by repetition, on prompts of their
own, so that none is found in the prefix cache; the ratio of each pair is what counts.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import secrets
import shutil
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from engine import SHAPES, make_model
from whet.errors import EngineError
from whet.inference.model_names import resolve_model
from whet.inference.protocol import SampleRequest, SamplingParams
from whet.inference.vllm.engine import VllmEngine
from whet.inference.vllm.http_connection import HttpPool
from whet.inference.vllm.interpreter import find_vllm
from whet.inference.vllm.members import EXTENSION, KEY, RECEIVER, RunningServer, headers

READY_S = 600.0
WHET, PEER, WITH_LOGPROBS = "whet", "vLLM's benchmark", "vLLM's benchmark, logprobs"
SERVE = """
import sys
from vllm.benchmarks.serve import add_cli_args, main
from vllm.utils.argparse_utils import FlexibleArgumentParser
parser = FlexibleArgumentParser()
add_cli_args(parser)
main(parser.parse_args(sys.argv[1:]))
"""
"""`vllm bench serve`: the command itself asks for a distribution named vllm, which the build for CPUs is not."""


def tokens_of_whet(
    url: str, concurrency: int, options: argparse.Namespace, context: int, seed: int
) -> tuple[int, float]:
    """How many tokens were sampled through whet's engine, and in how many seconds."""
    rng = random.Random(seed)
    requests = [
        SampleRequest(
            [rng.randrange(512) for _ in range(options.input_len)], SamplingParams(max_tokens=options.output_len)
        )
        for _ in range(options.requests)
    ]

    async def sample_all() -> tuple[int, float]:
        server, at = RunningServer(url, name="engine 1"), urlsplit(url)
        await server.ready()
        address = HttpPool((str(at.hostname), at.port or 80), headers(server.key))
        engine = VllmEngine(address, max_context=context, model=server.model)
        slots = asyncio.Semaphore(concurrency)

        async def one(request: SampleRequest) -> int:
            async with slots:
                return len((await engine.sample(request)).ids)

        try:
            began = time.perf_counter()
            counts = await asyncio.gather(*map(one, requests))
            return sum(counts), time.perf_counter() - began
        finally:
            await engine.close()

    return asyncio.run(sample_all())


def speed_of_peer(
    url: str, concurrency: int, options: argparse.Namespace, model: Path, room: Path, seed: int, *flags: str
) -> float:
    """Output tokens a second, as vLLM's benchmark reports them."""
    arguments: dict[str, object] = {
        "base-url": url,
        "backend": "vllm",
        "model": model,
        "dataset-name": "random",
        "num-prompts": options.requests,
        "random-input-len": options.input_len,
        "random-output-len": options.output_len,
        "max-concurrency": concurrency,
        "temperature": 1,
        "seed": seed,
        "result-dir": room,
        "result-filename": "result.json",
    }
    line = [word for name, value in arguments.items() for word in (f"--{name}", str(value))]
    command = [options.vllm_python, "-c", SERVE, *line, *flags, "--ignore-eos", "--disable-tqdm", "--save-result"]
    done = subprocess.run(
        command, capture_output=True, text=True, env={**os.environ, "OPENAI_API_KEY": os.environ[KEY]}
    )
    if done.returncode:
        sys.exit(f"vLLM's benchmark failed:\n{done.stdout[-2000:]}\n{done.stderr[-2000:]}")
    result: dict[str, Any] = json.loads((room / "result.json").read_text())
    wanted = options.requests * options.output_len
    assert result["completed"] == options.requests, (
        f"{result['completed']} of {options.requests} requests were answered"
    )
    assert result["total_output_tokens"] == wanted, f"{result['total_output_tokens']} tokens instead of {wanted}"
    return float(result["output_throughput"])


def model_of(shape: str | None, room: Path) -> Path:
    """whet/tiny, or random weights of another shape with its tokenizer."""
    tiny = resolve_model("whet/tiny")
    if shape is None:
        return tiny
    make_model(room / shape, shape)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copyfile(tiny / name, room / shape / name)
    return room / shape


def start_server(
    model: Path, options: argparse.Namespace, context: int, log: Path
) -> tuple[subprocess.Popen[bytes], str]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    flags = ["--model", model, "--host", "127.0.0.1", "--port", port, "--max-model-len", context]
    flags += [
        "--generation-config",
        "vllm",
        "--logprobs-mode",
        "processed_logprobs",
        "--worker-extension-cls",
        RECEIVER,
    ]
    flags += ["--max-num-seqs", max(options.concurrency)]
    if options.device == "cpu":
        flags += ["--dtype", "float32", "--enforce-eager", "--kv-cache-memory-bytes", "1G"]
    environment = {
        "PYTHONPATH": str(EXTENSION),
        "VLLM_SERVER_DEV_MODE": "1",
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        "VLLM_API_KEY": os.environ[KEY],
        "OMP_NUM_THREADS": str(options.threads),
        "HF_HUB_OFFLINE": "1",
    }
    process = subprocess.Popen(
        [options.vllm_python, "-m", "vllm.entrypoints.openai.api_server", *map(str, flags)],
        stdout=log.open("wb"),
        stderr=subprocess.STDOUT,
        start_new_session=True,
        env={**os.environ, **environment},
    )
    return process, f"http://127.0.0.1:{port}"


def wait_until_ready(process: subprocess.Popen[bytes], url: str, log: Path) -> None:
    server = RunningServer(url, name="engine 1")
    for _ in range(int(READY_S)):
        try:
            asyncio.run(server.ready())
            return
        except EngineError:
            if process.poll() is not None:
                break
            time.sleep(1)
    sys.exit(f"the server does not start:\n{log.read_text(errors='replace')[-2000:]}")


def measure(
    url: str, concurrency: int, options: argparse.Namespace, model: Path, room: Path, context: int
) -> dict[str, Any]:
    def ours(seed: int) -> float:
        tokens, seconds = tokens_of_whet(url, concurrency, options, context, seed)
        assert tokens == options.requests * options.output_len, f"{tokens} tokens"
        return tokens / seconds

    def peer(*flags: str) -> Callable[[int], float]:
        return lambda seed: speed_of_peer(url, concurrency, options, model, room, seed, *flags)

    sides = {WHET: ours, PEER: peer(), WITH_LOGPROBS: peer("--logprobs", "0")}
    speeds: dict[str, list[float]] = {name: [] for name in sides}
    for repetition in range(options.repetitions + 1):
        for number, (name, run) in enumerate(sides.items()):
            speed = run(1000 * concurrency + 10 * repetition + number)
            if repetition:  # the first is warm-up
                speeds[name].append(speed)
    ratios = {
        name: [mine / theirs for mine, theirs in zip(speeds[WHET], speeds[name], strict=True)]
        for name in (PEER, WITH_LOGPROBS)
    }
    return {
        "concurrency": concurrency,
        "requests": options.requests,
        "tokens_per_second": {name: round(statistics.median(found)) for name, found in speeds.items()},
        "ratios": {
            name: {"median": round(statistics.median(r), 2), "lowest": round(min(r), 2), "highest": round(max(r), 2)}
            for name, r in ratios.items()
        },
    }


def show(result: dict[str, Any]) -> None:
    print(f"\n{result['requests']} requests, {result['concurrency']} at a time")
    for name, speed in result["tokens_per_second"].items():
        print(f"  {name:<28} {speed:>8,} tokens/s")
    for name, found in result["ratios"].items():
        print(f"  {WHET} / {name}: {found['median']:.2f}x  ({found['lowest']:.2f} to {found['highest']:.2f})")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", choices=SHAPES, help="random weights of this shape; default: whet/tiny itself")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--requests", type=int, default=256)
    parser.add_argument("--concurrency", type=int, nargs="+", default=[16, 64], help="one measurement each")
    parser.add_argument("--input-len", type=int, default=48, help="tokens of a prompt")
    parser.add_argument("--output-len", type=int, default=64, help="tokens of an answer")
    parser.add_argument("--repetitions", type=int, default=5, help="turns measured, after one of warm-up")
    parser.add_argument("--threads", type=int, default=1, help="of the server, on a CPU")
    parser.add_argument("--vllm-python", help="interpreter that has vLLM; default: the one that a run would use")
    parser.add_argument("--json", action="store_true", help="the JSON lines only, without the table")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # the server ends, too
    try:
        options.vllm_python = str(find_vllm(Path(options.vllm_python) if options.vllm_python else None).path)
    except EngineError as error:
        print(f"not measured: {error}", file=sys.stderr)
        return
    os.environ[KEY] = secrets.token_urlsafe(16)
    context = 2 * (options.input_len + options.output_len)  # the peer tokenises random text, to about as many tokens
    with tempfile.TemporaryDirectory(prefix="whet-benchmark-") as folder:
        room, log = Path(folder), Path(folder) / "server.log"
        model = model_of(options.shape, room)
        process, url = start_server(model, options, context, log)
        try:
            wait_until_ready(process, url, log)
            for concurrency in options.concurrency:
                result = measure(url, concurrency, options, model, room, context)
                print(json.dumps(result))
                if not options.json:
                    show(result)
        finally:
            os.killpg(process.pid, signal.SIGTERM)
            process.wait()


if __name__ == "__main__":
    main()
