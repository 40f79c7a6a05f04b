"""Run definitions under one library and write what happened, as JSON. Started by the tests, in a process of its own.

    python driver.py verifiers|whet OUTPUT SUBJECT...

Left out of what is compared: times (their shape stays), random ids, and fields that are None, because 0.1.14 has some
of a state's keys only once they are set.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import json
import logging
import math
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

VOLATILE = ("client", "timing", "trajectory_id", "usage_tracker", "ta_env", "rg_entry")


def plain(value: Any) -> Any:
    """`value` as JSON, without what is None."""
    if isinstance(value, BaseException):
        chain, link = [], value
        while link is not None:
            chain.append(type(link).__name__)
            link = link.__cause__
        return chain
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if value is None or isinstance(value, str | int | float | bool):
        return value
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items() if item is not None}
    if hasattr(value, "model_dump"):
        return plain(value.model_dump(exclude_none=True))
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    if isinstance(value, set | frozenset):
        return sorted(plain(item) for item in value)
    return f"a {type(value).__name__}"


def shape_of_timing(timing: Any) -> dict[str, Any]:
    dumped = plain(timing)
    return {
        "fields": sorted(dumped),
        "turns of the model": len(dumped["model"]["spans"]),
        "turns of the environment": len(dumped["env"]["spans"]),
        "is scored": dumped["scoring"]["end"] > 0,
    }


def plain_row(row: Mapping[str, Any]) -> dict[str, Any]:
    metrics = row["metrics"] or {}
    kept = {key: value for key, value in row.items() if key not in ("timing", *metrics)}
    columns_too = all(name in row and plain(row[name]) == plain(value) for name, value in metrics.items())
    return {**plain(kept), "timing": shape_of_timing(row["timing"]), "metrics are columns too": columns_too}


def plain_state(state: Any) -> dict[str, Any]:
    kept = {key: value for key, value in state.items() if key not in VOLATILE}
    steps = [{key: value for key, value in step.items() if key != "trajectory_id"} for step in state["trajectory"]]
    return {**plain({**kept, "trajectory": steps}), "timing": shape_of_timing(state["timing"])}


def plain_metadata(metadata: Mapping[str, Any]) -> dict[str, Any]:
    kept = {key: value for key, value in metadata.items() if key not in ("time", "date", "path_to_save")}
    shape = {"says when": "date" in metadata, "says how long": isinstance(metadata["time"], float)}
    return {**plain(kept), **shape}


def in_order(items: list[Any]) -> list[Any]:
    """What ran at once, in an order that does not depend on which was first: by task, then by what the model said."""

    def key(item: dict[str, Any]) -> str:
        row = item.get("input", item)
        return json.dumps([row.get("example_id"), item.get("completion"), item.get("prompt")], sort_keys=True)

    return sorted(items, key=key)


def watch(env: Any, states: list[dict[str, Any]]) -> None:
    """Have every state noted once it has been scored: both libraries then call the rubric's `cleanup`."""
    for inner in getattr(env, "envs", []):
        watch(inner, states)
    if hasattr(env, "envs"):
        return
    clean_up = env.rubric.cleanup

    async def note(state: Any) -> None:
        await clean_up(state)
        states.append(plain_state(state))

    env.rubric.cleanup = note


async def observe(make: Any) -> dict[str, Any]:
    from definitions.case import Script

    seen: dict[str, Any] = {}
    states: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as folder:
        try:
            case = make()
            client = Script(case.answers)
            watch(case.env, states)
            arguments = dict(case.arguments)
            if case.saves:
                arguments |= {"save_results": True, "results_path": Path(folder)}
            for _ in range(case.runs):
                results = await case.env.evaluate(client, "scripted-model", **arguments)
            seen["rows"] = in_order([plain_row(row) for row in results["outputs"]])
            seen["metadata"] = plain_metadata(results["metadata"])
            seen["requests"] = in_order(plain(client.requests))
            seen["states"] = in_order(states)
            if case.saves:
                rows = [json.loads(line) for line in (Path(folder) / "results.jsonl").read_text().splitlines()]
                seen["rows on disk"] = in_order([plain_row(row) for row in rows])
                seen["metadata on disk"] = plain_metadata(json.loads((Path(folder) / "metadata.json").read_text()))
            await case.env._teardown()
            seen["more"] = plain(case.more())
        except Exception as error:
            seen["raised"] = plain(error)
            logging.getLogger("parity").info("%s raised", make.__name__, exc_info=error)
    return seen


async def without_waiting(delay: float, result: Any = None, sleep: Any = asyncio.sleep) -> Any:
    """In place of `asyncio.sleep`: both libraries wait between retries, and nothing here depends on how long."""
    return await sleep(0, result)


def main() -> None:
    library, output, *subjects = sys.argv[1:]
    logging.basicConfig(level=logging.INFO, stream=sys.stderr)
    if library == "whet":
        import whet

        whet.install_verifiers_alias()
    asyncio.sleep = without_waiting
    found: dict[str, dict[str, Any]] = {}
    with contextlib.redirect_stdout(sys.stderr):
        done: set[Any] = set()  # modules of definitions share their lists
        for subject in subjects:
            module = importlib.import_module(f"definitions.{subject}")
            seen = found[subject] = {}
            for name, make in getattr(module, "DEFINITIONS", {}).items():
                if make not in done:
                    seen[name] = asyncio.run(observe(make))
            for name, function in getattr(module, "FUNCTIONS", {}).items():
                if function not in done:
                    seen[name] = plain(function())
            done.update(getattr(module, "DEFINITIONS", {}).values(), getattr(module, "FUNCTIONS", {}).values())
    Path(output).write_text(json.dumps(found))


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parent))
    main()
