"""The dashboard with a run of very many rollouts, and with many runs and viewers.

    python benchmarks/dashboard.py rollouts [--rollouts 1000000]   first page, filters, sorts, search; growth of memory
    python benchmarks/dashboard.py page [--steps 1000 100000]      the page of a run that is followed while it writes
    python benchmarks/dashboard.py live [--runs 20] [--viewers 10] how late steps arrive; what it costs the runs

The server is `whet dashboard` as a process. Steps are timed from the moment before their row is written. A viewer reads
the events of a run and, as the page does, fetches the page again every four seconds. Rounds with and without the
dashboard take turns; the runs' own work is timed in both.
"""

from __future__ import annotations

import argparse
import http.client
import json
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlencode, urlsplit

from _dashboard_run import WRITTEN, make_run, make_steps

HERE = Path(__file__).parent
TICKS = os.sysconf("SC_CLK_TCK")
ROUNDS, ROUND_SECONDS, REFRESH = 3, 20.0, 4.0
PAGES = 12


class Dashboard:
    """A `whet dashboard` of a folder."""

    def __init__(self, folder: Path) -> None:
        command = [sys.executable, "-m", "whet.cli.main", "dashboard", str(folder), "--port", "0"]
        env = {**os.environ, "XDG_CACHE_HOME": str(folder / "cache"), "OMP_NUM_THREADS": "1"}
        self._process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=env)
        assert self._process.stderr is not None
        line = self._process.stderr.readline()
        self.host = urlsplit(line.split()[2].rstrip(";")).netloc

    def connect(self) -> http.client.HTTPConnection:
        return http.client.HTTPConnection(self.host, timeout=120)

    def get(self, path: str, **query: Any) -> tuple[float, Any]:
        """Seconds, and the answer."""
        began = time.perf_counter()
        connection = self.connect()
        connection.request("GET", f"/api/v1{path}?{urlencode(query)}")
        answer = connection.getresponse()
        body = answer.read()
        took = time.perf_counter() - began
        connection.close()
        if answer.status != 200:
            raise SystemExit(f"{path}: {answer.status} {body[:500]!r}")
        return took, json.loads(body)

    def page(self, path: str) -> float:
        """Seconds that a page takes."""
        began = time.perf_counter()
        connection = self.connect()
        connection.request("GET", path)
        answer = connection.getresponse()
        answer.read()
        connection.close()
        if answer.status != 200:
            raise SystemExit(f"{path}: {answer.status}")
        return time.perf_counter() - began

    @property
    def memory(self) -> float:
        """MiB that the server holds now."""
        pages = int(Path(f"/proc/{self._process.pid}/statm").read_text().split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE") / 2**20

    @property
    def processor(self) -> float:
        """Seconds of processor time so far."""
        fields = Path(f"/proc/{self._process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / TICKS

    def close(self) -> None:
        self._process.terminate()
        self._process.communicate()


@contextmanager
def dashboard(folder: Path) -> Iterator[Dashboard]:
    served = Dashboard(folder)
    try:
        yield served
    finally:
        served.close()


def rollouts(count: int) -> None:
    """A run with so many rollouts, without an index at first."""
    with tempfile.TemporaryDirectory() as folder, dashboard(Path(folder)) as served:
        make_run(Path(folder) / "runs" / "large", count)
        ((run,),) = [[one["id"] for one in served.get("/runs")[1]["items"]]]
        path = f"/runs/{run}/rollouts"
        before = most = served.memory
        took, page = served.get(path)
        print(f"first page, nothing indexed: {took:.2f} s, {page['progress']['rollouts']:,} rollouts listed")
        began = time.perf_counter()
        while not page["progress"]["complete"]:
            time.sleep(0.5)
            took, page = served.get(path)
            most = max(most, served.memory)
        print(f"indexed: {time.perf_counter() - began:.0f} s, {page['progress']['rollouts']:,} rollouts")
        queries: dict[str, dict[str, Any]] = {
            "first page": {},
            "last page": {"cursor": page["next"].rpartition(".")[0] + f".{count - 50}"},
            "filter by reward": {"reward_from": 0.9, "sort": "output_tokens", "descending": True},
            "filter by environment, sorted by reward": {"environment": "calculator", "sort": "reward"},
            "one step": {"step": count // 2_000},
            "truncated": {"truncated": True},
            "search, first answer": {"search": "nothing like this"},
        }
        for name, query in queries.items():
            took, _ = served.get(path, **query)
            print(f"{name}: {took:.2f} s")
            most = max(most, served.memory)
        print(f"the page of the list, in HTML: {served.page(f'/runs/{run}/rollouts'):.2f} s")
        for name in ("/rollouts/values", "/distributions", f"/rollouts/{count // 2}", f"/rollouts/{count // 2}/group"):
            print(f"{name}: {served.get(f'/runs/{run}{name}')[0]:.2f} s")
            most = max(most, served.memory)
        print(f"memory of the server: {before:.0f} MiB before, at most {most:.0f}: +{most - before:.0f} MiB")


class Page(threading.Thread):
    """A page of a run: its events, and the page again from time to time."""

    def __init__(self, served: Dashboard, run: str, late: list[float]) -> None:
        super().__init__(daemon=True)
        self._run, self._late = run, late
        self._events, self._pages = served.connect(), served.connect()

    def run(self) -> None:
        self._events.request("GET", f"/data/runs/{self._run}/events")
        refreshed = 0.0
        for line in self._events.getresponse():
            if line.startswith(b"data: ") and WRITTEN.encode() in line:
                self._late.append(time.time() - json.loads(line[6:])["metrics"][WRITTEN])
                if time.monotonic() - refreshed > REFRESH:
                    refreshed = time.monotonic()
                    self._pages.request("GET", f"/runs/{self._run}", headers={"X-Whet-Refresh": "1"})
                    self._pages.getresponse().read()


def page(steps: int, viewers: int) -> None:
    """The page of a run after so many steps, while it writes two a second and viewers follow it."""
    with tempfile.TemporaryDirectory() as folder:
        directory = Path(folder) / "runs" / "long"
        make_steps(directory, steps)
        command = [sys.executable, str(HERE / "_dashboard_run.py"), str(directory), "120", str(steps)]
        with subprocess.Popen(command, stdout=subprocess.DEVNULL) as writer, dashboard(Path(folder)) as served:
            try:
                while not (directory / "status.json").exists():
                    time.sleep(0.1)
                run = served.get("/runs")[1]["items"][0]["id"]
                first = served.page(f"/runs/{run}")
                for _ in range(viewers):
                    Page(served, run, []).start()
                pages, lists = [], []
                for _ in range(PAGES):
                    pages.append(served.page(f"/runs/{run}"))
                    lists.append(served.page("/runs"))
                    time.sleep(1.0)
            finally:
                writer.terminate()
    print(
        f"{steps:,} steps, {viewers} viewers: the first page {first:.2f} s; "
        f"then {min(pages):.2f} to {max(pages):.2f} s, median {statistics.median(pages):.2f}; "
        f"the list {min(lists):.2f} to {max(lists):.2f} s"
    )


def live(runs: int, viewers: int) -> None:
    """Rounds with and without a dashboard, in turn."""
    late: list[float] = []
    work: dict[bool, list[float]] = {False: [], True: []}
    share = []
    for round in range(2 * ROUNDS):
        watched = round % 2 == 1
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            writers = [
                subprocess.Popen(
                    [sys.executable, str(HERE / "_dashboard_run.py"), f"{folder}/runs/{run}", str(ROUND_SECONDS)],
                    stdout=subprocess.PIPE,
                    text=True,
                )
                for run in range(runs)
            ]
            while len(list(folder.glob("runs/*/metrics.jsonl"))) < runs:
                time.sleep(0.1)
            if watched:
                with dashboard(folder) as served:
                    ids = [one["id"] for one in served.get("/runs")[1]["items"]]
                    pages = [Page(served, ids[number % runs], late) for number in range(viewers)]
                    began, processor = time.monotonic(), served.processor
                    for page in pages:
                        page.start()
                    work[watched] += [float(json.loads(writer.communicate()[0])) for writer in writers]
                    share.append((served.processor - processor) / (time.monotonic() - began))
            else:
                work[watched] += [float(json.loads(writer.communicate()[0])) for writer in writers]
    late.sort()
    without, with_it = (statistics.median(work[watched]) for watched in (False, True))
    middle, rare = statistics.median(late), late[int(0.99 * len(late))]
    print(
        f"{runs} runs of 2 steps a second, {viewers} viewers, {len(late)} updates: "
        f"late by {middle:.2f} s (median), {rare:.2f} s (99 %), {late[-1]:.2f} s (most)"
    )
    print(
        f"work of a step: {1000 * without:.1f} ms without, {1000 * with_it:.1f} ms with the dashboard: "
        f"{with_it / without - 1:+.1%}; its processor time: {statistics.mean(share):.1%} of a core"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", nargs="?", choices=["rollouts", "page", "live", "all"], default="all")
    parser.add_argument("--rollouts", type=int, default=1_000_000)
    parser.add_argument("--runs", type=int, default=20)
    parser.add_argument("--viewers", type=int, default=10)
    parser.add_argument("--steps", type=int, nargs="+", default=[1_000, 100_000])
    given = parser.parse_args()
    if given.what in ("rollouts", "all"):
        rollouts(given.rollouts)
    for steps in given.steps if given.what in ("page", "all") else ():
        page(steps, given.viewers)
    if given.what in ("live", "all"):
        live(given.runs, given.viewers)


if __name__ == "__main__":
    main()
