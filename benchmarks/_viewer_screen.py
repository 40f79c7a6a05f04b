"""One side of `viewer.py`: `whet view FILE` on a pseudo-terminal, as a person sees it.

    python benchmarks/_viewer_screen.py cold|warm RESULTS

`cold`: without an index and with the file out of memory, from the start of the process to the first row on the screen;
then keys while the index is being built aside, each from being typed to the screen that shows it. `warm`: the same with
the index there. Memory is the peak of the viewer's process, CPU what it used itself.
"""

from __future__ import annotations

import json
import os
import re
import statistics
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from terminals import KEYS, Terminal
from whet.records.index import index_path

PRESSES = 60
ROWS = 30  # of the window
PAUSE = 0.05  # seconds between two keys, so that indexing continues meanwhile


def peak_mib(pid: int) -> float:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM")) / 1024


def cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def listed(lines: list[str]) -> int:
    """The number of rollouts in the status lines."""
    counted = re.match(r"\s*([\d,]+) rollouts", lines[1])
    return int(counted[1].replace(",", "")) if counted else 0


def answered(terminal: Terminal, key: str) -> float:
    """Seconds from a key to another screen."""
    before = terminal.lines()
    start = time.perf_counter()
    terminal.send(key)
    terminal.wait_for(lambda lines: lines[3:] != before[3:])
    return time.perf_counter() - start


def main() -> None:
    part, results = sys.argv[1], Path(sys.argv[2])
    if part == "cold":
        index_path(results).unlink(missing_ok=True)
        with results.open("rb") as file:
            os.fsync(file.fileno())
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    start = time.perf_counter()
    terminal = Terminal(["whet", "view", results], columns=110, rows=ROWS)
    terminal.wait_for("Questio")
    pid = terminal.process.pid
    figures = {"first_row_s": time.perf_counter() - start, "first_row_cpu_s": cpu_s(pid)}
    figures["first_row_peak_mib"] = peak_mib(pid)
    keys = []
    before = cpu_s(pid)
    # The first one moves the cursor to the last row of the window, which shows the same rows; each further one
    # shows others, where the list has grown so far.
    terminal.send(KEYS["page_down"])
    for press in range(PRESSES):
        terminal.wait_for(lambda lines, press=press: listed(lines) > (press + 3) * ROWS)
        keys.append(answered(terminal, KEYS["page_down"]))
        time.sleep(PAUSE)
    figures |= {"key_s": statistics.median(keys), "slowest_key_s": max(keys)}
    figures["key_cpu_s"] = (cpu_s(pid) - before) / PRESSES
    terminal.wait_for(lambda lines: "reading the file" not in lines[1], 600)
    figures["listed_s"] = time.perf_counter() - start
    figures["end_of_the_list_s"] = answered(terminal, KEYS["end"])
    figures["sorted_s"] = answered(terminal, "R")
    figures["peak_mib"] = peak_mib(pid)
    terminal.send("q")
    assert terminal.wait() == 0
    print(json.dumps(figures))


if __name__ == "__main__":
    main()
