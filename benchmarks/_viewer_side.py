"""What `viewer.py` measures, each in a process of its own: `python _viewer_side.py {cold,build,warm} RESULTS`."""

from __future__ import annotations

import json
import os
import resource
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from _viewer_file import FOREIGN, RARE

FIRST = 50
TICK = 0.01


def cold(path: Path) -> dict[str, float]:
    """Without an index: until the first heads are there, importing included."""
    start = time.perf_counter()
    from whet.records.store import open_store

    with open_store(path) as store:
        heads = store.heads()[:FIRST]
        seconds = time.perf_counter() - start
        assert len(heads) == FIRST
        return {"open_s": seconds, "memory_mib": _memory()}


def build(path: Path) -> dict[str, float]:
    """Indexing aside while this process polls as the viewer does; the longest poll is what a person would feel."""
    from whet.records.store import open_store

    with open_store(path) as store:
        start = time.perf_counter()
        store.start()
        longest = 0.0
        while not store.poll().complete:
            time.sleep(TICK)
            begun = time.perf_counter()
            store.poll()
            store.heads()[:FIRST]
            longest = max(longest, time.perf_counter() - begun)
        seconds = time.perf_counter() - start
        memory = _memory()
    child = resource.getrusage(resource.RUSAGE_CHILDREN)
    return {
        "build_s": seconds,
        "build_cpu_s": child.ru_utime + child.ru_stime,
        "longest_poll_s": longest,
        "memory_mib": memory,
        "indexer_memory_mib": child.ru_maxrss / 1024,
        "index_mib": path.with_name(path.name + ".index").stat().st_size / 2**20,
    }


def _first_heads(store: Any, filter: Any, sort: Any) -> Any:
    return store.heads(filter, sort)[:FIRST]


def warm(path: Path) -> dict[str, float]:
    """With the index: opening, lists of all rollouts the first time and again, a row, a group, searches."""
    start = time.perf_counter()
    from whet.records.heads import Filter, Sort
    from whet.records.store import open_store

    with open_store(path) as store:
        heads = store.heads()[:FIRST]
        figures = {"open_s": time.perf_counter() - start}
        assert len(heads) == FIRST
        lists: dict[str, tuple[Filter, Sort]] = {
            "sort_reward": (Filter(), Sort("reward", descending=True)),
            "sort_duration": (Filter(), Sort("duration")),
            "sort_error": (Filter(), Sort("error")),
            "filter_errors": (Filter(failed=True), Sort()),
            "filter_reward_sort_tokens": (Filter(reward_from=0.5), Sort("output_tokens", descending=True)),
        }
        for name, (filter, sort) in lists.items():
            figures[f"{name}_first_s"] = _seconds(partial(_first_heads, store, filter, sort))
            figures[f"{name}_s"] = _seconds(partial(_first_heads, store, filter, sort))
        middle = len(store.heads()) // 2
        figures["totals_s"] = _seconds(store.totals)
        figures["group_s"] = _seconds(lambda: store.group(middle))
        figures["row_s"] = _seconds(lambda: store.row(middle))
        size = path.stat().st_size / 1e6
        for name, text in (
            ("rare", RARE),
            ("foreign", FOREIGN),
            ("short", "zq"),
            ("absent", "no such text"),
            ("everywhere", "question"),
        ):
            start = time.perf_counter()
            *_, found = store.search(text)
            figures[f"search_{name}_mb_per_s"] = size / (time.perf_counter() - start)
            figures[f"search_{name}_found"] = len(found.numbers)
        figures["memory_mib"] = _memory()
        return figures


def _seconds(work: Callable[[], Any]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def _memory() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def forget(path: Path) -> None:
    """Have the operating system drop what it keeps of the file in memory, where it can."""
    if hasattr(os, "posix_fadvise"):
        with path.open("rb") as file:
            os.fsync(file.fileno())
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


if __name__ == "__main__":
    what, results = sys.argv[1], Path(sys.argv[2])
    if what == "cold":
        forget(results)
    print(json.dumps({"cold": cold, "build": build, "warm": warm}[what](results)))
