"""`Running`: what an environment has to run many rollouts: one, a group, all rows of a dataset.

`rollouts/` does the work. Trainers written for `verifiers` 0.1 call `run_rollout` and `run_group` in several forms.
That of 0.1.10 and later returns result rows. Those of 0.1.8 and 0.1.9, which pass `gen_sampling_args` or a semaphore,
return states.
"""

from __future__ import annotations

import inspect
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from whet.clients.make import made_from_config, resolve_client
from whet.envs.config.arguments import nearest
from whet.envs.hooks import Hooked
from whet.errors import ConfigError
from whet.rollouts.generate import GenerateRun, OnLog, OnProgress, OnStart, read_inputs, run_sync
from whet.rollouts.groups import run_group
from whet.rollouts.limits import Limit
from whet.rollouts.results import state_to_output
from whet.types import GenerateOutputs, RolloutInput, SamplingArgs, State

if TYPE_CHECKING:
    from whet.clients.client import Client
    from whet.envs.datasets import RowDataset


class Running(Hooked):
    """One rollout, a group, a dataset."""

    env_id: str
    env_args: dict[str, Any]
    sampling_args: SamplingArgs
    pass_threshold: float
    score_rollouts: bool
    env_client: Any = None
    """Where set, `run_rollout` and `run_group` are its: a process elsewhere that runs this environment."""

    @abstractmethod
    def get_eval_dataset(self, n: int = -1, seed: int | None = None) -> RowDataset: ...

    @abstractmethod
    async def rollout(
        self,
        input: RolloutInput,
        client: Client[Any, Any, Any, Any],
        model: str,
        sampling_args: SamplingArgs | None = None,
    ) -> State:
        """Attempt one task. What fails inside is in `state["error"]`; only mistakes of the user's are raised."""

    @property
    def requires_group_rollouts(self) -> bool:
        return self.rubric.has_group_rewards

    @property
    def provides_advantages(self) -> bool:
        return self.rubric.has_advantages

    async def run_rollout(
        self,
        input: Any,
        client: Any,
        model: Any,
        sampling_args: Any = None,
        max_retries: Any = 0,
        state_columns: list[str] | None = None,
        env_client: Any = None,
        *,
        gen_sampling_args: SamplingArgs | None = None,
        gen_sem: Limit | None = None,
        score_sem: Limit | None = None,
        score: bool = False,
    ) -> Any:
        """Attempt and score one task by itself; its result row.

        Args:
            input: a dataset row.
            client: a `Client`, a `ClientConfig`, or a client of the `openai` or `anthropic` package.
            model: the model's name, as the client knows it.
            sampling_args: for this rollout.
            max_retries: how often it is attempted again where it failed for reasons outside model and task.
            state_columns: further state fields for the row.
            env_client: runs the rollout elsewhere; otherwise `self.env_client`.
            gen_sampling_args, gen_sem, score_sem, score: of 0.1.9, with which the state is returned, scored only
                where `score`; 0.1.8 has the semaphore first.
        """
        if _is_limit(input):  # 0.1.8: sem, input, client, model, sampling_args
            args = max_retries if isinstance(max_retries, Mapping) else {}
            states = await self._states([client], model, sampling_args, args, limit=input, score=False)
            return states[0]
        if _is_limit(max_retries):  # 0.1.9, by position
            gen_sampling_args, gen_sem, max_retries = sampling_args, max_retries, 0
        env_client = env_client or self.env_client
        if env_client is not None and gen_sampling_args is None:
            config = _config_for(env_client, client)
            return await env_client.run_rollout(input, config, model, sampling_args, max_retries, state_columns)
        (output,) = await Running.run_group(
            self,
            [input],
            client,
            model,
            sampling_args,
            max_retries,
            state_columns,
            gen_sampling_args=gen_sampling_args,
            gen_sem=gen_sem,
            score_sem=score_sem,
            score=score,
            independent_scoring=True,
        )
        return output

    async def run_group(
        self,
        group_inputs: list[RolloutInput],
        client: Any,
        model: str,
        sampling_args: Any = None,
        max_retries: Any = 0,
        state_columns: Any = None,
        env_client: Any = None,
        *,
        gen_sampling_args: SamplingArgs | None = None,
        gen_sem: Limit | None = None,
        score_sem: Limit | None = None,
        score: bool = True,
        **kwargs: Any,
    ) -> Any:
        """Attempt and score one group; its result rows, or for calls in the form of 0.1.8 and 0.1.9 its states.

        Args:
            group_inputs: dataset rows, usually the same one several times.
            client, model, sampling_args, max_retries, state_columns, env_client: as for `run_rollout`.
            gen_sampling_args, gen_sem, score_sem, score: of 0.1.9, with which states are returned.
            kwargs: arguments of `whet.rollouts.groups.run_group`.
        """
        if _is_limit(max_retries):  # 0.1.8 and 0.1.9, by position
            gen_sampling_args, gen_sem, max_retries = sampling_args, max_retries, 0
            score_sem, state_columns = (state_columns, None) if _is_limit(state_columns) else (score_sem, state_columns)
        if gen_sampling_args is not None:
            return await self._states(
                group_inputs,
                client,
                model,
                gen_sampling_args,
                limit=gen_sem,
                score_limit=score_sem,
                score=score,
                **kwargs,
            )
        env_client = env_client or self.env_client
        if env_client is not None:
            config = _config_for(env_client, client)
            return await env_client.run_group(group_inputs, config, model, sampling_args, max_retries, state_columns)
        states = await self._states(group_inputs, client, model, sampling_args or {}, max_retries=max_retries, **kwargs)
        return [state_to_output(state, state_columns) for state in states]

    async def generate(
        self,
        inputs: Any,
        client: Any,
        model: str,
        sampling_args: SamplingArgs | None = None,
        max_concurrent: int = -1,
        results_path: Path | str | None = None,
        state_columns: list[str] | None = None,
        save_results: bool = False,
        independent_scoring: bool = False,
        max_retries: int = 0,
        on_start: OnStart | None = None,
        on_progress: OnProgress | Sequence[OnProgress] | None = None,
        on_log: OnLog | None = None,
        **older: Any,
    ) -> GenerateOutputs:
        """Attempt and score all `inputs`; those with equal `example_id` are a group.

        Args:
            inputs: dataset rows (`get_dataset(...)`, or a list of them).
            client: a `Client`, a `ClientConfig`, or an `openai.AsyncOpenAI`.
            model: the model's name, as the client knows it.
            sampling_args: over the environment's own.
            max_concurrent: rollouts that generate at once; -1 = all.
            results_path: directory for `results.jsonl` and `metadata.json`; one that has results already is continued.
            state_columns: further state fields for the result rows; JSON values.
            save_results: write to `results_path`, or to a new directory under `outputs/`.
            independent_scoring: score each rollout by itself rather than with its group.
            max_retries: how often a rollout is attempted again that failed for reasons outside model and task.
            on_start: called with all inputs and with those still to be attempted.
            on_progress: called with all rows so far, the new ones, and the metadata.
            on_log: called with a line of text now and then.
            older: of older 0.1: `max_concurrent_generation` is `max_concurrent`; `max_concurrent_scoring`,
                `save_every` and `use_tqdm` have no effect; `push_to_hf_hub=True` is refused.
        """
        older_limit = _of_older(older)
        if max_concurrent == -1 and older_limit is not None:
            max_concurrent = older_limit
        rows, resolved = read_inputs(inputs), resolve_client(client)
        saving = save_results or results_path is not None
        run = GenerateRun(self, rows, resolved, model, sampling_args, state_columns, results_path, saving)
        try:
            run.open(on_log)
            await run.attempt(max_concurrent, independent_scoring, max_retries, on_start, on_progress)
            return await run.finish()
        finally:
            run.close()
            if made_from_config(client):
                await resolved.close()

    async def evaluate(
        self,
        client: Any,
        model: str,
        sampling_args: SamplingArgs | None = None,
        num_examples: int = -1,
        rollouts_per_example: int = 1,
        **kwargs: Any,
    ) -> GenerateOutputs:
        """`generate` on the first `num_examples` evaluation rows (-1 = all), each `rollouts_per_example` times."""
        inputs = self.get_eval_dataset(num_examples).repeat(rollouts_per_example)
        return await self.generate(inputs, client, model, sampling_args, **kwargs)

    def generate_sync(self, inputs: Any, client: Any, model: str, *args: Any, **kwargs: Any) -> GenerateOutputs:
        """`generate`, to be called where no event loop runs, or from a notebook."""
        return run_sync(self.generate(inputs, client, model, *args, **kwargs))

    def evaluate_sync(self, client: Any, model: str, *args: Any, **kwargs: Any) -> GenerateOutputs:
        return run_sync(self.evaluate(client, model, *args, **kwargs))

    async def _states(
        self,
        rows: Sequence[RolloutInput],
        client: Any,
        model: str,
        args: Any,
        independent_scoring: bool = False,
        **kwargs: Any,
    ) -> list[State]:
        """The states of a group, or of one rollout that is scored by itself."""
        resolved = resolve_client(client)
        try:
            return await run_group(self, rows, resolved, model, args, independent_scoring=independent_scoring, **kwargs)
        finally:
            if made_from_config(client):
                await resolved.close()


def _of_older(older: Mapping[str, Any]) -> int | None:
    """What older arguments of `generate` say of `max_concurrent`. Raises `ConfigError` for what cannot be done."""
    for name in older:
        if name not in _OLDER:
            raise ConfigError(f"generate has no argument '{name}'.{nearest(name, _PARAMETERS)}")
    if older.get("push_to_hf_hub"):
        raise ConfigError(
            "generate uploads nothing (push_to_hf_hub=True). Upload results.jsonl of results_path with the "
            "huggingface_hub package."
        )
    return older.get("max_concurrent_generation")


def _is_limit(value: Any) -> bool:
    return hasattr(value, "__aenter__")


def _config_for(env_client: Any, client: Any) -> Any:
    """The one endpoint of a config, for an environment that runs elsewhere."""
    from whet.clients.config import ClientConfig

    if not isinstance(client, ClientConfig):
        raise ConfigError(
            f"client must be a ClientConfig where {type(env_client).__name__} runs the rollouts elsewhere, and it is "
            f"{type(client).__name__}."
        )
    configs = client.spread()
    return configs[client.client_idx % len(configs)]


_OLDER = (
    "max_concurrent_generation",
    "max_concurrent_scoring",
    "save_every",
    "use_tqdm",
    "push_to_hf_hub",
    "hf_hub_dataset_name",
)
_PARAMETERS = [name for name in inspect.signature(Running.generate).parameters if name not in ("self", "older")]
