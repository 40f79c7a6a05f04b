"""Whether a long run stays as it began: memory and file descriptors of each of its processes, over 2,000 small steps.

    python benchmarks/endurance.py [--steps 2000] [--only synchronous asynchronous] [--json]

Both are the real command: the tiny model, short answers, a checkpoint every 100 steps, held-out tasks every 50. After
each step the resident memory of every process of the run is read (the run's own, the engine's, the learner's, the
watchdog's) and how many file descriptors it holds; besides, how much of the shared memory for weights is
in use. The first half is warm-up: code is loaded, allocators settle, caches of a fixed size fill.

The figure is the slope of the line of least squares through the rest, in MB per 100 steps. Descriptors are compared by
the fewest of the first and of the last twentieth after warm-up: what is open for a moment does not count, what is
never closed does. Over a limit, the exit status is 1.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import NamedTuple

WHET = Path(sys.executable).with_name("whet")
STEP = re.compile(r"step (\d+)/\d+\s")
MB = 1e6
MOST_MB = 1.0
"""Slope that a process may have, in MB per 100 steps."""
SHARED = "shared memory"

CONFIG = """
name = "run"
model = "whet/tiny"
max_steps = {steps}
batch_size = 8
rollouts_per_example = 4
learning_rate = 1e-5

[sampling]
max_tokens = 6

[[env]]
id = "reverse-text"

[eval]
interval = 50
num_examples = 4
before = false
after = false

[checkpointing]
save_every_n_steps = 100
keep_n_checkpoints = 2

"""
MODES = {
    "synchronous": ("--max_async_level", "0", "--deployment.threads", "1"),
    "asynchronous": ("--max_async_level", "2", "--oversampling_factor", "1.5", "--deployment.threads", "2"),
}


class Sample(NamedTuple):
    """What one process held after one step."""

    step: int
    resident: int  # bytes
    descriptors: int


@dataclass(frozen=True, slots=True)
class Endurance:
    """What became of one process (or of the shared memory, which has no descriptors) after warm-up."""

    resident_mb: float  # median
    slope_mb: float  # per 100 steps
    descriptors_at_first: int
    descriptors_at_last: int

    def holds(self, most_mb: float) -> bool:
        return self.slope_mb < most_mb and self.descriptors_at_last <= self.descriptors_at_first


Samples = dict[str, list[Sample]]


def watch(mode: str, steps: int, directory: Path) -> Samples:
    """Train and look at every process of the run after every step; by process, in the order of steps."""
    config = directory / "endurance.toml"
    config.write_text(CONFIG.format(steps=steps), encoding="utf-8")
    command = [str(WHET), "train", "run", str(config), "--runs_directory", str(directory / "runs"), *MODES[mode]]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"}
    samples: Samples = {}
    last: list[str] = []
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment
    ) as process:
        assert process.stdout is not None
        for line in process.stdout:
            last = [*last[-20:], line]
            if found := STEP.match(line):
                for name, resident, descriptors in look(process.pid):
                    samples.setdefault(name, []).append(Sample(int(found[1]), resident, descriptors))
    if process.returncode:
        raise SystemExit(f"{' '.join(command)} ended with {process.returncode}:\n{''.join(last)}")
    return samples


def look(run: int) -> Iterator[tuple[str, int, int]]:
    """The resident bytes and open descriptors of each process of a run, and the bytes in its shared memory."""
    for pid in (run, *descendants(run)):
        with suppress(OSError):  # it has ended meanwhile
            pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
            descriptors = len(os.listdir(f"/proc/{pid}/fd"))
            name = "run" if pid == run else role(pid)
            yield name, pages * os.sysconf("SC_PAGE_SIZE"), descriptors
    with suppress(OSError):
        handed_over = Path("/dev/shm").glob(f"whet-weights-{run}-*/*")
        yield SHARED, sum(path.stat().st_blocks * 512 for path in handed_over), 0


def descendants(pid: int) -> list[int]:
    children = Path(f"/proc/{pid}/task").glob("*/children")
    found: list[int] = []
    for path in children:
        with suppress(OSError):
            found += map(int, path.read_text().split())
    return sorted(found + [later for child in found for later in descendants(child)])


def role(pid: int) -> str:
    """What a process of a run does, by its command and (two are started alike) by who listens on the engine's socket.

    Raises `OSError` where it has ended.
    """
    command = Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace")
    if "resource_tracker" in command:
        return "resource tracker"
    if "spawn_main" not in command:
        return "watchdog"
    lines = [line.split() for line in Path("/proc/net/unix").read_text().splitlines()]
    sockets = {words[6] for words in lines if len(words) > 7 and words[7].endswith("/engine.sock")}
    held = {os.readlink(entry) for entry in Path(f"/proc/{pid}/fd").iterdir() if entry.exists()}
    return "engine" if held & {f"socket:[{inode}]" for inode in sockets} else "learner"


def warmed_up(steps: int) -> int:
    """The last step that is left out."""
    return steps // 2


def judge(samples: Sequence[Sample], warm_up: int) -> Endurance:
    """What one process did after step `warm_up`."""
    after = [sample for sample in samples if sample.step > warm_up]
    slope, _ = statistics.linear_regression(
        [sample.step for sample in after], [sample.resident / MB for sample in after]
    )
    share = max(5, len(after) // 20)
    return Endurance(
        resident_mb=statistics.median(sample.resident for sample in after) / MB,
        slope_mb=100 * slope,
        descriptors_at_first=min(sample.descriptors for sample in after[:share]),
        descriptors_at_last=min(sample.descriptors for sample in after[-share:]),
    )


def measure(mode: str, steps: int, samples_file: Path | None = None) -> dict[str, Endurance]:
    with tempfile.TemporaryDirectory() as directory:
        samples = watch(mode, steps, Path(directory))
    if samples_file is not None:
        samples_file.write_text(json.dumps(samples), encoding="utf-8")
    return {name: judge(found, warmed_up(steps)) for name, found in samples.items()}


def report(mode: str, found: dict[str, Endurance], steps: int, seconds: float, most_mb: float) -> None:
    print(f"\n{mode}: {steps:,} steps in {seconds:.0f} s, the first {warmed_up(steps)} left out")
    print(f"  {'':<18} {'MB':>8} {'MB per 100 steps':>18} {'descriptors':>14}")
    for name, process in found.items():
        descriptors = f"{process.descriptors_at_first} to {process.descriptors_at_last}"
        verdict = "" if process.holds(most_mb) else "  grows"
        print(f"  {name:<18} {process.resident_mb:>8.1f} {process.slope_mb:>18.3f} {descriptors:>14}{verdict}")


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=2000)
    parser.add_argument("--only", nargs="+", choices=list(MODES), default=list(MODES))
    parser.add_argument("--most", type=float, default=MOST_MB, help="slope to fail at, in MB per 100 steps")
    parser.add_argument("--samples", type=Path, help="write what was seen after each step to FILE.<mode>.json")
    parser.add_argument("--json", action="store_true", help="print only the JSON line")
    options = parser.parse_args(arguments)
    whole: dict[str, dict[str, Endurance]] = {}
    for mode in options.only:
        began = time.monotonic()
        file = options.samples and options.samples.with_suffix(f".{mode}.json")
        whole[mode] = measure(mode, options.steps, file)
        if not options.json:
            report(mode, whole[mode], options.steps, time.monotonic() - began, options.most)
    figures = {mode: {name: asdict(process) for name, process in found.items()} for mode, found in whole.items()}
    print(json.dumps({"benchmark": "endurance", "steps": options.steps, "most_mb": options.most, **figures}))
    if not all(process.holds(options.most) for found in whole.values() for process in found.values()):
        raise SystemExit(1)


if __name__ == "__main__":
    main()
