"""Which tasks an evaluation takes: the first of the dataset's own order, or of an order shuffled by a seed.

Members of an `EnvGroup` are taken by turns (`held_out_rows`), so that a part of the dataset has tasks of each.
"""

from __future__ import annotations

from typing import Any

from whet.envs.env_group import held_out_rows
from whet.envs.environment import Environment
from whet.errors import DatasetError
from whet.evals.config import EvalConfig


def select_rows(env: Environment, config: EvalConfig) -> list[dict[str, Any]]:
    """The rows to attempt. One `shuffle` seed gives one order on every machine, and more rows continue fewer.

    Raises `DatasetError` where the environment has no task.
    """
    rows = held_out_rows(env, config.num_examples, config.shuffle)
    if not rows:
        raise DatasetError(f"environment {config.environment}: there is no task to evaluate on")
    return rows
