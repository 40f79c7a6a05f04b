"""What a GPU has to show, in ten minutes: tests, throughput, memory and a curve, in one report.

    scripts/gpu_hour.sh [--out DIRECTORY] [--minutes 10] [--only tests learner] [--smollm2 FILE.gguf]
    scripts/gpu_hour.sh --smoke           # every part in a tiny form, on the CPU

Each part is a command with a limit of its own. One that fails, or takes too long, is named with the end of its output,
and the next one begins; one that lacks something is skipped with the reason. `report.md` and `report.json` are written
anew after each part, so that what was measured stays where the machine is taken away; `PART.log` has a part's output.

    environment   torch, CUDA, the GPU's name and memory
    tests         those that are marked `gpu`
    learner       benchmarks/gpu_learner.py: tokens a second and MFU at the shape of Qwen3-0.6B
    experts       the same file's comparison of grouped products with a loop over experts, and whether they wait
    engine        benchmarks/engine.py: tokens a second, compared with transformers
    vllm          the same by vLLM, where a Python has it (--vllm-python, WHET_VLLM_PYTHON, or the one that runs this)
    colocate      a run whose engine and learner take turns on the GPU: what sleeping and waking take
    smollm2       the learning curve of SmolLM2-135M, from a GGUF file that is here (--smollm2) or was fetched before
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
TAIL = 25
"""Lines of a failed part's output in the report."""
LEAST_S = 10.0
"""A part is not begun with less time left."""

ABOUT = """
import json, torch
about = {"torch": torch.__version__, "cuda": torch.version.cuda, "device": "cpu"}
if torch.cuda.is_available():
    free, total = torch.cuda.mem_get_info()
    about |= {"device": torch.cuda.get_device_name(), "capability": list(torch.cuda.get_device_capability())}
    about |= {"gpus": torch.cuda.device_count(), "free_gib": free / 2**30, "memory_gib": total / 2**30}
print(json.dumps(about))
"""


@dataclass(frozen=True)
class Part:
    """A command, and what to report of it."""

    name: str
    command: Sequence[str]
    limit_s: float
    read: Callable[[str], dict[str, Any]]  # figures, from what was printed
    lacking: str = ""  # why it is skipped


@dataclass
class Outcome:
    name: str
    status: str  # "ok", "failed", "too long", "skipped"
    seconds: float = 0.0
    figures: dict[str, Any] = field(default_factory=dict)
    says: str = ""  # why, or the end of the output


def parts(options: argparse.Namespace, runs: Path) -> Iterator[Part]:
    python, smoke = sys.executable, options.smoke
    device = "cpu" if smoke else "cuda"
    small = ["--small", "--tokens", "256", "--steps", "1", "--warmup", "0"] if smoke else []
    chosen = ["-m", "not gpu", "tests/inference/test_devices.py"] if smoke else ["-m", "gpu", "--maxfail", "20"]
    yield Part("environment", [python, "-c", ABOUT], 60, last_json)
    yield Part(
        "tests", [python, "-m", "pytest", "--verbosity=0", "-rfs", "-p", "no:cacheprovider", *chosen], 180, last_line
    )
    learner = [python, "benchmarks/gpu_learner.py", "--device", device, *small]
    yield Part("learner", learner, 120, last_json)
    yield Part("experts", [*learner, "--experts"], 60, last_json)
    engine = [python, "benchmarks/engine.py", "--device", device, "--threads", "1", "--json", "--repetitions", "2"]
    engine += ["--prompts", "2", "--new-tokens", "8"] if smoke else ["--shape", "qwen3-0.6b", "--apart"]
    yield Part("engine", [*engine, "--sides", "whet bf16", "transformers bf16"], 90, last_json)
    vllm, lacking = vllm_python(options.vllm_python)
    yield Part("vllm", [*engine, "--sides", "vLLM", "--vllm-python", vllm], 150, last_json, lacking)
    here = ["--runs_directory", str(runs), "--deployment.threads", "1"]
    here += ["--learner.device", device, "--inference.device", device]
    short = ["--max_steps", "2", "--batch_size", "8", "--rollouts_per_example", "4"] if smoke else ["--max_steps", "20"]
    config = ["configs/rl/quickstart.toml", "--name", "colocate", "--deployment.colocate", "true", "--eval.before"]
    run = [python, "-c", "from whet.cli.main import main; main()", "train", "run"]
    command = [*run, *config, "false", "--eval.after", "false", *short, *here]
    yield Part("colocate", command, 90, lambda _: metrics(runs / "colocate"))
    model, lacking = smollm2(options.smollm2)
    if smoke:
        model, lacking = "whet/tiny", ""
    config = ["configs/rl/smollm2-calculator.toml", "--name", "smollm2", "--model", model]
    command = [*run, *config, *here, *([*short, "--eval.num_examples", "4"] if smoke else [])]
    yield Part("smollm2", command, 180, lambda _: metrics(runs / "smollm2"), lacking)


def vllm_python(given: Path | None) -> tuple[str, str]:
    """The Python that has vLLM, and why there is none."""
    from whet.errors import EngineError
    from whet.inference.vllm.interpreter import find_vllm

    try:
        return str(find_vllm(given).path), ""
    except EngineError as error:
        return "", str(error)


def smollm2(file: Path | None) -> tuple[str, str]:
    """The model's file or name, and why there is none."""
    if file is not None:
        return str(file), "" if file.is_file() else f"{file} is not there"
    from whet.errors import ModelLoadError
    from whet.inference.model_names import packaged_file

    try:
        packaged_file("smollm2-135m")
    except ModelLoadError as error:
        return "smollm2-135m", f"{error}; or give the file by --smollm2"
    return "smollm2-135m", ""


def last_json(output: str) -> dict[str, Any]:
    """The last line that is a JSON object."""
    for line in reversed(output.splitlines()):
        with suppress(ValueError):
            if isinstance(found := json.loads(line), dict):
                return found
    return {}


def last_line(output: str) -> dict[str, Any]:
    lines = output.strip().splitlines()
    return {"result": lines[-1] if lines else ""}


CURVES = ("reward/mean", "policy/kl_engine", "time/step", "time/sleep", "time/wake", "perf/tokens_per_s", "perf/mfu")


def metrics(run: Path) -> dict[str, Any]:
    """Some metrics of a run, step by step."""
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return {name: [row[name] for row in rows if name in row] for name in CURVES if any(name in row for row in rows)}


def perform(part: Part, limit_s: float, log: Path) -> Outcome:
    """Run a part for at most so long; its processes are gone afterwards."""
    started = time.monotonic()
    environment = {**os.environ, "PYTHONUNBUFFERED": "1", "HF_HUB_OFFLINE": "1"}
    with log.open("w") as file:
        process = subprocess.Popen(
            part.command, stdout=file, stderr=subprocess.STDOUT, cwd=ROOT, env=environment, start_new_session=True
        )
        try:
            code: int | None = process.wait(limit_s)
        except subprocess.TimeoutExpired:
            code = None
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    output, seconds = log.read_text(errors="replace"), time.monotonic() - started
    end = "\n".join(output.splitlines()[-TAIL:])
    if code is None:
        return Outcome(part.name, "too long", seconds, {}, f"ended after {limit_s:.0f} s\n{end}")
    try:
        figures = part.read(output)
    except (OSError, ValueError) as error:
        figures, end = {}, f"{end}\n{error}"
    return Outcome(part.name, "failed" if code else "ok", seconds, figures, end if code else "")


def markdown(outcomes: Sequence[Outcome]) -> str:
    lines = ["# What the GPU showed", "", "| part | result | seconds |", "|---|---|---|"]
    lines += [f"| {one.name} | {one.status} | {one.seconds:.0f} |" for one in outcomes]
    for one in outcomes:
        lines += ["", f"## {one.name}: {one.status}", ""]
        lines += [f"* {name}: {short(value)}" for name, value in one.figures.items()]
        lines += ["", "```text", one.says.replace("```", "'''"), "```"] if one.says else []
    return "\n".join(lines) + "\n"


def short(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.4g}"
    if isinstance(value, list):
        return ", ".join(map(short, value))
    return json.dumps(value) if isinstance(value, dict) else str(value)


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("gpu-hour"), help="folder of the report; default gpu-hour")
    parser.add_argument("--minutes", type=float, default=10.0, help="of all parts together; default 10")
    parser.add_argument("--only", nargs="+", metavar="PART", help="these parts alone")
    parser.add_argument("--smollm2", type=Path, help="SmolLM2-135M as a GGUF file")
    parser.add_argument("--vllm-python", type=Path, help="interpreter that has vLLM; default WHET_VLLM_PYTHON, or this")
    parser.add_argument("--smoke", action="store_true", help="every part in a tiny form, on the CPU")
    options = parser.parse_args(arguments)
    out = options.out.resolve()
    out.mkdir(parents=True, exist_ok=True)
    runs = Path(tempfile.mkdtemp(prefix="runs-", dir=out))  # a run's folder is made once
    wanted = [part for part in parts(options, runs) if not options.only or part.name in options.only]
    if unknown := set(options.only or ()) - {part.name for part in wanted}:
        parser.error(f"no part is called {', '.join(sorted(unknown))}")
    outcomes: list[Outcome] = []
    end = time.monotonic() + 60 * options.minutes
    for part in wanted:
        left = end - time.monotonic()
        if part.lacking or left < LEAST_S:
            outcomes.append(Outcome(part.name, "skipped", says=part.lacking or "no time is left"))
        else:
            outcomes.append(perform(part, min(part.limit_s, left), out / f"{part.name}.log"))
        print(f"{part.name}: {outcomes[-1].status} ({outcomes[-1].seconds:.0f} s)", flush=True)
        (out / "report.json").write_text(json.dumps([asdict(one) for one in outcomes], indent=1))
        (out / "report.md").write_text(markdown(outcomes))
    print(f"the report is {out / 'report.md'}")
    sys.exit(any(one.status in ("failed", "too long") for one in outcomes))


if __name__ == "__main__":
    main()
