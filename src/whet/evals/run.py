"""One evaluation run, from a config to a summary: load, attempt, save, sum up. Printing is `view.py`.

Rows are appended as groups finish, so that what was paid for is kept whatever happens; when all are there the file is
put in the order of the tasks.
"""

from __future__ import annotations

import asyncio
import re
import time
import uuid
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Any

from whet import __version__
from whet.clients.client import Client
from whet.envs.environment import Environment
from whet.evals.config import EvalConfig
from whet.evals.environment import open_environment
from whet.evals.evaluate import attempt_tasks, sampling_name
from whet.evals.model import open_model
from whet.evals.rows import select_rows
from whet.evals.summary import EvalSummary, summarize
from whet.rollouts.limits import rollout_limit
from whet.rollouts.results import ResultsFile, state_to_output
from whet.rollouts.totals import Totals
from whet.types import RolloutOutput, State

OnProgress = Callable[[int, int], None]
"""(rollouts finished, rollouts in all)"""


def run_eval(config: EvalConfig, *, on_progress: OnProgress | None = None) -> EvalSummary:
    """Evaluate and sum up. Raises `WhetError` for what the user can mend; rollouts that fail are counted."""
    env = open_environment(config)
    return asyncio.run(_run(env, config, on_progress))


async def _run(env: Environment, config: EvalConfig, on_progress: OnProgress | None) -> EvalSummary:
    try:
        async with open_model(config) as client:
            return await evaluate_model(env, client, config, on_progress=on_progress)
    finally:
        await env.close()


async def evaluate_model(
    env: Environment,
    client: Client[Any, Any, Any, Any],
    config: EvalConfig,
    *,
    on_progress: OnProgress | None = None,
) -> EvalSummary:
    """The run itself, with an environment and a client that are there already."""
    rows = select_rows(env, config)
    sampling = config.resolved_sampling(env.sampling_args)
    file = ResultsFile(results_directory(config)) if config.save else None
    outputs: dict[int, list[RolloutOutput]] = {}
    done, total = 0, len(rows) * config.rollouts_per_example
    started = time.perf_counter()

    def rollout_done(_: State) -> None:
        nonlocal done
        done += 1
        if on_progress is not None:
            on_progress(done, total)

    def group_done(number: int, states: list[State]) -> None:
        outputs[number] = [state_to_output(state) for state in states]
        if file is not None:
            file.append(outputs[number])

    await attempt_tasks(
        env,
        rows,
        client,
        config.model,
        rollouts_per_example=config.rollouts_per_example,
        sampling_args=sampling,
        seed=config.resolved_seed,
        limit=rollout_limit(config.max_concurrent),
        on_group=group_done,
        on_rollout=rollout_done,
    )
    seconds = time.perf_counter() - started
    ordered = [output for number in sorted(outputs) for output in outputs[number]]
    if file is not None:
        await file.write_all(ordered)
        file.write_metadata(metadata(env, config, sampling, ordered, len(rows), seconds))
    return summarize(
        ordered,
        environment=config.environment,
        model=config.model,
        sampling=sampling_name(sampling),
        rollouts_per_example=config.rollouts_per_example,
        pass_threshold=env.pass_threshold,
        seconds=seconds,
        greedy=sampling.get("temperature") == 0,
        results=None if file is None else file.directory,
    )


def results_directory(config: EvalConfig) -> Path:
    """`outputs/evals/<env>--<model>/<id>`, new every time."""
    return config.output_directory / f"{_slug(config.label)}--{_slug(config.model)}" / uuid.uuid4().hex[:8]


def _slug(name: str) -> str:
    return re.sub(r"[^\w.@-]+", "--", name).strip("-.") or "unnamed"


def metadata(
    env: Environment,
    config: EvalConfig,
    sampling: dict[str, Any],
    outputs: list[RolloutOutput],
    num_examples: int,
    seconds: float,
) -> dict[str, Any]:
    """`metadata.json`: what was run, and the averages."""
    totals = Totals(config.rollouts_per_example, env.pass_threshold)
    totals.add(outputs)
    tools = [output["tool_defs"] for output in outputs if output.get("tool_defs")]
    return {
        "env_id": env.env_id,
        "env_args": env.env_args,
        "model": config.model,
        "base_url": config.base_url or "",
        "num_examples": num_examples,
        "rollouts_per_example": config.rollouts_per_example,
        "sampling_args": sampling,
        "seed": config.resolved_seed,
        "date": datetime.now().isoformat(timespec="seconds"),
        "time": seconds,
        **totals.averages(),
        "pass_threshold": env.pass_threshold,
        "version_info": {"whet": __version__},
        "state_columns": [],
        "tools": tools[0] if tools and all(one == tools[0] for one in tools) else None,
    }
