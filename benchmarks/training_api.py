"""`whet tinker serve`: loops of many models at once against one after the other, and what answers take on their way.

    python benchmarks/training_api.py [--model whet/tiny] [--models 32] [--new-tokens 32] [--json]

The server is a process of its own with a folder of its own, on SQLite; the client is this process with the tinker SDK.
Loop: each model samples `--samples` answers to a prompt from its own weights, has a pass of `importance_sampling` over
them, and steps. "alone" runs the loop of one model after the other, "together" each in a thread. Both sides have models
that have stepped before. Seconds a model: by the clock, and processor time of server and client, which other work on
the machine disturbs less.

In flight: 16 clients in threads, 32 requests each at once, all for the base model. "work" is a request's time in the
engine, "answer" that from the client's call to its answer, "fetch" that from when the engine has the request, which is
what `retrieve_future` waits for, and "way" that from the engine's last token to the client's answer. The goal is a 99th
percentile of "fetch" below twice the median of work.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import tinker
import torch
from tinker import types

from whet.system.files import json_line

CLIENTS, EACH = 16, 32
TICKS = os.sysconf("SC_CLK_TCK")


def serve(model: str, data: Path, times: Path) -> None:
    """The server's process: prints its address and key. For each request, when the engine had it, to `times`."""
    from whet.gateway.serve import address_of, listen
    from whet.hub.serve import run
    from whet.tinker.api.app import create_tinker_app
    from whet.tinker.opening import load_base, load_engine, open_server

    base, bank = load_base(model)
    with (
        listen("127.0.0.1", 0) as listening,
        open_server(data, base, bank, sampled=load_engine(model)) as (server, key),
    ):
        assert server.sampling is not None
        engine: Any = server.sampling.policy.engine
        sample = engine.sample

        async def timed(request: Any, **more: Any) -> Any:
            begin = time.monotonic()
            answer = await sample(request, **more)
            with times.open("a") as file:
                file.write(json_line({"id": request.group_key, "begin": begin, "end": time.monotonic()}))
            return answer

        engine.sample = timed
        run(create_tinker_app(server), listening, lambda: print(address_of(listening), key, flush=True))


@contextlib.contextmanager
def served(model: str) -> Iterator[tuple[str, str, int, Path]]:
    """Address, key and process id of a running server, and the file of its engine's times."""
    with tempfile.TemporaryDirectory() as name:
        times = Path(name) / "times.jsonl"
        command = [sys.executable, __file__, "--serve", name, "--model", model]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert process.stdout is not None
        try:
            url, key = process.stdout.readline().split()
            yield url, key, process.pid, times
        finally:
            process.terminate()
            process.wait()


def processor_time(pid: int) -> float:
    """Seconds of a process and its threads so far (Linux)."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS


def datum(prompt: list[int], sequence: Any, advantage: float) -> types.Datum:
    before, tokens = len(prompt) - 1, list(sequence.tokens)
    inputs = {
        "target_tokens": (prompt[1:] + tokens, "int64"),
        "logprobs": ([0.0] * before + list(sequence.logprobs), "float32"),
        "advantages": ([0.0] * before + [advantage] * len(tokens), "float32"),
    }
    data: Any = {name: types.TensorData(data=v, dtype=kind, shape=[len(v)]) for name, (v, kind) in inputs.items()}
    return types.Datum(model_input=types.ModelInput.from_ints(prompt + tokens[:-1]), loss_fn_inputs=data)


def loop(trainer: Any, options: argparse.Namespace, steps: int, new_tokens: int) -> None:
    """What a client's program does with one model."""
    prompt = np.random.default_rng(0).integers(5, 400, options.prompt_tokens).tolist()
    params = types.SamplingParams(max_tokens=new_tokens, temperature=1.0, stop=[])
    for _ in range(steps):
        sampler = trainer.save_weights_and_get_sampling_client().result()
        answer = sampler.sample(types.ModelInput.from_ints(prompt), options.samples, params).result()
        data = [datum(prompt, sequence, 1.0 if i % 2 else -1.0) for i, sequence in enumerate(answer.sequences)]
        passed = trainer.forward_backward(data, "importance_sampling")
        stepped = trainer.optim_step(types.AdamParams(learning_rate=1e-4))
        passed.result()
        stepped.result()


def at_once(run: Callable[[Any], None], what: list[Any]) -> None:
    threads = [threading.Thread(target=run, args=(each,)) for each in what]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def measured(run: Callable[[], Any], pid: int) -> dict[str, float]:
    before = time.monotonic(), processor_time(pid), time.process_time()
    run()
    after = time.monotonic(), processor_time(pid), time.process_time()
    return dict(zip(("clock", "server", "client"), (b - a for a, b in zip(before, after, strict=True)), strict=True))


def loops(url: str, key: str, pid: int, options: argparse.Namespace) -> dict[str, Any]:
    client = tinker.ServiceClient(base_url=url, api_key=key)
    made = [
        client.create_lora_training_client(base_model=options.model, rank=1 + i % options.ranks, seed=i)
        for i in range(options.models)
    ]
    trainers = [future.result() for future in made]

    def run(trainer: Any) -> None:
        loop(trainer, options, options.steps, options.new_tokens)

    at_once(lambda trainer: loop(trainer, options, 1, 1), trainers)  # warm-up
    some = trainers[:: max(1, options.models // options.alone)]
    sides, clock, processor = list[dict[str, Any]](), list[float](), list[float]()
    for _ in range(options.repetitions):
        alone = measured(lambda: [run(trainer) for trainer in some], pid)  # type: ignore[func-returns-value]
        together = measured(lambda: at_once(run, trainers), pid)
        each = [
            {name: side[name] / count for name in side}
            for side, count in ((alone, len(some)), (together, options.models))
        ]
        rounded = [{key: round(value, 4) for key, value in of.items()} for of in each]
        sides.append({"alone": rounded[0], "together": rounded[1]})
        clock.append(each[0]["clock"] / each[1]["clock"])
        spent = [of["server"] + of["client"] for of in each]
        processor.append(spent[0] / spent[1])
    client.close("success").result()
    return {
        "seconds of a model": sides,
        **{
            f"times as fast, {name}": [round(r, 2) for r in (statistics.median(values), min(values), max(values))]
            for name, values in (("clock", clock), ("processor time", processor))
        },
    }


def in_flight(url: str, key: str, times: Path, options: argparse.Namespace) -> dict[str, float]:
    prompt = types.ModelInput.from_ints(np.random.default_rng(1).integers(5, 400, options.prompt_tokens).tolist())
    params = types.SamplingParams(max_tokens=options.new_tokens, temperature=1.0, stop=[])
    sides = [tinker.ServiceClient(base_url=url, api_key=key) for _ in range(CLIENTS)]
    samplers = [side.create_sampling_client(base_model=options.model).result() for side in sides]
    for sampler in samplers:
        sampler.sample(prompt, 1, params).result()
    times.unlink()
    sent, received = [], dict[str, float]()

    def ask(sampler: Any) -> None:
        futures = []
        for _ in range(EACH):
            begin = time.monotonic()
            future = sampler.sample(prompt, 1, params)
            future.future().add_done_callback(lambda done, begin=begin: note(done, begin))
            futures.append(future)
        for future in futures:
            future.result()

    def note(done: Any, begin: float) -> None:
        now, id = time.monotonic(), done.result().sequences[0].sequence_id.rpartition(":")[0]
        sent.append(now - begin)
        received[id] = now

    at_once(ask, samplers)
    for side in sides:
        side.close("success").result()
    rows = [json.loads(line) for line in times.read_text().splitlines()]
    work = [row["end"] - row["begin"] for row in rows]
    way = [received[row["id"]] - row["end"] for row in rows]
    fetch = [received[row["id"]] - row["begin"] for row in rows]
    found = {"requests": len(rows), "work, median": statistics.median(work)}
    for name, values in (("answer", sent), ("fetch", fetch), ("way", way)):
        found |= {f"{name}, median": statistics.median(values), f"{name}, p99": float(np.percentile(values, 99))}
    found["fetch p99 / work median"] = found["fetch, p99"] / found["work, median"]
    return {name: round(value, 3) for name, value in found.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="whet/tiny")
    parser.add_argument("--models", type=int, default=32)
    parser.add_argument("--steps", type=int, default=2, help="of each model on each side")
    parser.add_argument("--samples", type=int, default=2, help="answers to the prompt, the sequences of a pass")
    parser.add_argument("--ranks", type=int, default=32, help="the highest; ranks are 1 to this")
    parser.add_argument("--alone", type=int, default=32, help="how many of the models are measured alone")
    parser.add_argument("--prompt-tokens", type=int, default=16)
    parser.add_argument("--new-tokens", type=int, default=32)
    parser.add_argument("--repetitions", type=int, default=1)
    parser.add_argument("--only", choices=["loops", "in-flight"])
    parser.add_argument("--json", action="store_true", help="the JSON line only, without the table")
    parser.add_argument("--serve", metavar="DIRECTORY", help=argparse.SUPPRESS)
    options = parser.parse_args()
    torch.set_num_threads(1)
    if options.serve:
        serve(options.model, Path(options.serve) / "data", Path(options.serve) / "times.jsonl")
        return
    os.environ["TINKER_TELEMETRY"] = "0"
    found: dict[str, Any] = {
        "benchmark": "training_api",
        **{k: v for k, v in vars(options).items() if k not in ("json", "serve")},
    }
    with served(options.model) as (url, key, pid, times):
        if options.only != "in-flight":
            found["loops"] = loops(url, key, pid, options)
        if options.only != "loops":
            found["in flight"] = in_flight(url, key, times, options)
    found["load"] = os.getloadavg()
    if not options.json:
        for name in ("loops", "in flight"):
            print(name, json.dumps(found.get(name), indent=1))
    print(json.dumps(found))


if __name__ == "__main__":
    main()
