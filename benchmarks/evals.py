"""What an evaluation costs without its model, against `verifiers` 0.1.14's own in the same run; and what kills cost it.

    python benchmarks/evals.py [--only cost kills] [--repetitions 3] [--peer-python PATH] [--json]

`cost`: `whet eval run` and `vf-eval` evaluate the same environment on the same scripted HTTP endpoint, a process of its
own: 1,000 rollouts of one turn, 32 at once, results saved. The figure is processor time, user and system, of the
command and everything it starts, for a rollout; start-up is part of it, and given once more for 1 rollout. The peer is
measured as it comes, with its server of environments, and without that. The sides alternate.

`kills`: 20,000 rollouts with two workers, through 50 seeded kills of workers and of the evaluation itself; and the same
without kills, for the memory of processes that live through it.

The peer runs in `.venv-parity`, which `make parity` sets up.
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
import time
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

from _evals_kills import Evaluation, Kills, growth, kill_again_and_again

HERE = Path(__file__).parent
PEER = HERE.parent / ".venv-parity" / "bin" / "python"
Result = dict[str, Any]

ENVIRONMENT = """
import importlib.util

import verifiers as vf


def load_environment(tasks=1000):
    parser = vf.XMLParser(["answer"])

    def correct(parser, completion, answer):
        return float(parser.parse_answer(completion) == answer)

    rows = [{"question": f"Say the word. ({task})", "answer": "word"} for task in range(tasks)]
    if importlib.util.find_spec("datasets"):
        from datasets import Dataset

        rows = Dataset.from_list(rows)
    rubric = vf.Rubric(funcs=[correct], parser=parser)
    return vf.SingleTurnEnv(dataset=rows, eval_dataset=rows, parser=parser, rubric=rubric)
"""


@contextlib.contextmanager
def endpoint() -> Iterator[str]:
    """The address of a scripted endpoint in a process of its own."""
    server = subprocess.Popen([sys.executable, str(HERE / "_scripted_endpoint.py")], stdout=subprocess.PIPE, text=True)
    try:
        assert server.stdout is not None
        yield f"http://127.0.0.1:{server.stdout.readline().strip()}/v1"
    finally:
        server.kill()
        server.wait()


def processor_time(command: list[str], folder: Path) -> float:
    """Seconds of processor time of a command and what it has started and waited for."""
    environ = {**os.environ, "OPENAI_API_KEY": "none", "PYTHONPATH": str(folder)}
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(command, cwd=folder, env=environ, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        _, status, used = os.wait4(process.pid, 0)
    if status != 0:
        raise SystemExit(f"{' '.join(command)} failed:\n{(folder / 'log').read_text()[-3000:]}")
    return used.ru_utime + used.ru_stime


def commands(python: Path, url: str, rollouts: int) -> dict[str, list[str]]:
    """Of each side, for so many rollouts."""
    common = ["-m", "scripted", "-b", url, "-k", "OPENAI_API_KEY", "-n", str(rollouts), "-r", "1", "-c", "32"]
    peer = [str(python.parent / "vf-eval"), "say_word", *common, "--disable-tui", "--save-results"]
    return {
        "whet": [sys.executable, "-m", "whet.cli.main", "eval", "run", "say_word", *common],
        "verifiers": peer,
        "verifiers, no server": [*peer, "--disable-env-server"],
    }


def measure_cost(python: Path, rollouts: int, repetitions: int) -> Result:
    """Processor time of each side for a rollout, start-up included and without it."""
    seconds: dict[str, dict[int, list[float]]] = {}
    with endpoint() as url:
        for _ in range(repetitions):
            for count in (1, rollouts):
                for side, command in commands(python, url, count).items():
                    with tempfile.TemporaryDirectory() as folder:
                        Path(folder, "say_word.py").write_text(ENVIRONMENT)
                        spent = processor_time(command, Path(folder))
                    seconds.setdefault(side, {}).setdefault(count, []).append(spent)
    sides = {}
    for side, found in seconds.items():
        start, whole = statistics.median(found[1]), statistics.median(found[rollouts])
        sides[side] = {
            "ms_a_rollout": whole / rollouts * 1000,
            "start_s": start,
            "ms_a_rollout_without_start": (whole - start) / (rollouts - 1) * 1000,
        }
    result: Result = {"rollouts": rollouts, "sides": sides}
    for side in list(sides)[1:]:
        pairs = zip(seconds["whet"][rollouts], seconds[side][rollouts], strict=True)
        ratios = [ours / theirs for ours, theirs in pairs]
        result[f"ratio to {side}"] = {
            "median": statistics.median(ratios), "lowest": min(ratios), "highest": max(ratios)
        }  # fmt: skip
    return result


def measure_kills(rollouts: int, kills: int, seed: int) -> Result:
    killed, started = killed_evaluation(rollouts, kills, seed), time.perf_counter()
    undisturbed = killed_evaluation(rollouts, 0, seed)
    wall_s = time.perf_counter() - started
    figures = asdict(killed)
    del figures["memory_mib"]
    return {"rollouts": rollouts, **figures, "undisturbed_s": wall_s, **growth(undisturbed.memory_mib)}


def killed_evaluation(rollouts: int, kills: int, seed: int) -> Kills:
    os.environ["OPENAI_API_KEY"] = "none"
    with endpoint() as url, tempfile.TemporaryDirectory() as folder:
        evaluation = Evaluation(Path(folder), url, tasks=rollouts // 4, attempts=4, workers=2, concurrency=64)
        try:
            return kill_again_and_again(evaluation, kills, seed)
        finally:
            if evaluation.process is not None and evaluation.process.poll() is None:
                evaluation.process.kill()


def report_cost(result: Result) -> None:
    print(f"\ncost: {result['rollouts']:,} rollouts of one turn over HTTP, 32 at once; processor time")
    for side, figures in result["sides"].items():
        print(
            f"  {side:<22} {figures['ms_a_rollout']:6.2f} ms a rollout "
            f"({figures['ms_a_rollout_without_start']:.2f} ms without {figures['start_s']:.1f} s of start-up)"
        )
    for name, ratio in result.items():
        if name.startswith("ratio"):
            print(f"  {name}: {ratio['median']:.2f}  ({ratio['lowest']:.2f} to {ratio['highest']:.2f})")


def report_kills(result: Result) -> None:
    print(
        f"\nkills: {result['rollouts']:,} rollouts, 2 workers: {result['of_workers']} workers and "
        f"{result['of_sessions']} sessions killed\n"
        f"  lost {result['lost']}, doubled {result['doubled']}, missing {result['missing']}, "
        f"failed {result['failed']}, in order: {result['in_order']}, "
        f"processes left behind: {result['processes_left']}\n"
        f"  undisturbed, {result['undisturbed_s']:.0f} s: memory in the second quarter and in the last: session "
        f"{result['session_early_mib']:.0f} and {result['session_late_mib']:.0f} MiB, "
        f"worker {result['worker_early_mib']:.0f} and {result['worker_late_mib']:.0f} MiB"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--only", nargs="+", choices=["cost", "kills"], default=["cost", "kills"])
    parser.add_argument("--rollouts", type=int, default=1000, help="of the measurement of cost")
    parser.add_argument("--repetitions", type=int, default=3, help="of the measurement of cost")
    parser.add_argument("--killed-rollouts", type=int, default=20_000)
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--peer-python", type=Path, default=PEER, help="a Python that has verifiers 0.1.14")
    parser.add_argument("--json", action="store_true", help="the JSON lines only, without the tables")
    options = parser.parse_args()
    if "cost" in options.only:
        if not options.peer_python.exists():
            raise SystemExit(f"{options.peer_python} is not there: run `make parity` first")
        result = measure_cost(options.peer_python, options.rollouts, options.repetitions)
        if not options.json:
            report_cost(result)
        print(json.dumps({"benchmark": "evals", "scenario": "cost", **result}), flush=True)
    if "kills" in options.only:
        result = measure_kills(options.killed_rollouts, options.kills, options.seed)
        if not options.json:
            report_kills(result)
        print(json.dumps({"benchmark": "evals", "scenario": "kills", **result}), flush=True)


if __name__ == "__main__":
    main()
