"""The environments of several evaluations, each loaded once."""

from __future__ import annotations

import json

from whet.envs.environment import Environment
from whet.evals.config import EvalConfig
from whet.evals.environment import open_environment


class Environments:
    """An environment for each way to load one; evaluations that differ by model or sampling alone share it."""

    def __init__(self) -> None:
        self._open: dict[str, Environment] = {}

    def open(self, config: EvalConfig, concurrency: int) -> Environment:
        """The environment of an evaluation, of which this process runs `concurrency` rollouts at once.

        Raises `WhetError` where it cannot be had.
        """
        key = json.dumps([config.environment, config.env_args, config.extra_env_kwargs, concurrency], default=str)
        if key not in self._open:
            env = self._open[key] = open_environment(config)
            env.set_concurrency(concurrency)
        return self._open[key]

    async def close(self) -> None:
        """Close all of them; the first that fails to is raised once the others are closed."""
        failure: BaseException | None = None
        while self._open:
            _, env = self._open.popitem()
            try:
                await env.close()
            except Exception as error:
                failure = failure or error
        if failure is not None:
            raise failure
