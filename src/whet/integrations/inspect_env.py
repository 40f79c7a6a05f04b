"""`InspectEnv`: a task of Inspect, `inspect:PACKAGE/TASK` of an installed package, or `inspect:FILE@TASK`.

    env = whet.load_environment("inspect:inspect_evals/gsm8k", task_args={"fewshot": 0})
    env = whet.load_environment("inspect:./tasks.py@riddles")

The rows are the samples of the task's dataset. Its setup and its solvers run as they are, and each `generate()` of
theirs is a turn of the model; then its scorers score. The reward is that of the first scorer, or of the one named by
`score`, the others are metrics. Limits, epochs and sampling settings of the task have no effect: the run has its own.
Refused by name are tasks with a sandbox, tools, an agent, a grading model, or content that is no text.

Source of the interfaces: inspect-ai 0.3, `Task`, `Solver`, `Scorer` (https://inspect.aisi.org.uk/reference).
"""

from __future__ import annotations

import asyncio
import importlib.metadata
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from whet.calls import describe
from whet.decorators import cleanup
from whet.envs.config.arguments import Check, check_values
from whet.envs.multiturn_env import MultiTurnEnv
from whet.errors import ConfigError, EnvironmentLoadError, MissingExtraError, RewardError, WhetError
from whet.integrations.external_scores import ExternalScoreRubric
from whet.messages import as_message, content_text
from whet.types import Messages, State, TrajectoryStep

VERSIONS = ((0, 3, 200), (0, 4))
GRADED_BY_A_MODEL = ("model_graded_qa", "model_graded_fact")
AGENTS = {"basic_agent", "react"}
VALUES = {"C": 1.0, "I": 0.0, "P": 0.5, "N": 0.0}
"""Of Inspect's constants: correct, incorrect, partial, no answer."""
_EXPECTED: dict[str, tuple[Check, str]] = {"task_args": (Mapping, "a dict"), "score": (str, "the name of a score")}


def load_environment(target: str, **kwargs: Any) -> InspectEnv:
    """The environment `inspect:TARGET`."""
    return InspectEnv(target, **kwargs)


class InspectRubric(ExternalScoreRubric):
    """The scorers of a task, and its clean-up after them."""

    def __init__(self, task: Any, score: str | None) -> None:
        super().__init__(self.inspect_score)
        self._task, self._score = task, score

    async def inspect_score(self, state: State) -> float:
        values: dict[str, float] = {}
        sample = state["inspect_state"]
        for number, scorer in enumerate(self._task.scorer, 1):
            scored, name = await scorer(sample, sample.target), _name(scorer)
            name = f"{name}_{number}" if name in values else name
            if scored is None:
                raise RewardError(f"the scorer {name} gave no score")
            parts = scored.value.items() if isinstance(scored.value, Mapping) else [("", scored.value)]
            for part, value in parts:
                values[f"{name}/{part}" if part else name] = _number(value, name)
        chosen = next(iter(values)) if self._score is None and len(values) == 1 else self._score or _name(scorer)
        if chosen not in values:
            raise ConfigError(f"score should be one of {', '.join(values)}; got {self._score!r}.")
        state["external_metrics"] = values
        return values[chosen]

    @cleanup
    async def end(self, state: State) -> None:
        sample = state.pop("inspect_state", None)
        if sample is not None and self._task.cleanup is not None:
            await self._task.cleanup(sample)


class InspectEnv(MultiTurnEnv):
    """Samples of an Inspect task."""

    def __init__(
        self,
        target: str,
        task_args: Mapping[str, Any] | None = None,
        score: str | None = None,
        num_eval_examples: int = 0,
        max_turns: int = 20,
        **kwargs: Any,
    ) -> None:
        """Make an environment; the task is loaded, which may read or download its data.

        Args:
            target: PACKAGE/TASK of an installed package, or FILE@TASK.
            task_args: arguments of the task.
            score: the scorer that gives the reward, or SCORER/KEY of one with several values; by default the only one.
            num_eval_examples: samples, the last ones, that are for evaluation alone.
            max_turns: `generate()` calls after which a rollout ends, and is scored.
            kwargs: arguments of `MultiTurnEnv`, other than datasets and rubric.
        """
        check_values(self, locals(), _EXPECTED)
        self._task = task = _load(target, dict(task_args or {}))
        self._samples = list(task.dataset)
        self._solvers = [*_listed(task.setup), *_listed(task.solver)]
        _check_possible(target, task, self._samples, score)
        rows = [{"prompt": [], "answer": "", "info": {"sample": n}} for n in range(len(self._samples))]
        split = len(rows) - num_eval_examples
        if not 0 < split <= len(rows):
            raise ConfigError(
                f"num_eval_examples should leave samples to train on; 'inspect:{target}' has {len(rows)}."
            )
        super().__init__(
            dataset=rows[:split],
            eval_dataset=rows[split:] or None,
            max_turns=max_turns,
            rubric=InspectRubric(task, score),
            **kwargs,
        )

    async def setup_state(self, state: State) -> None:
        from inspect_ai.model import ChatMessageUser, ModelName
        from inspect_ai.scorer import Target
        from inspect_ai.solver import TaskState

        sample = self._samples[state["info"]["sample"]].model_copy(deep=True)
        messages = [ChatMessageUser(content=sample.input)] if isinstance(sample.input, str) else sample.input
        state["inspect_state"] = TaskState(
            model=ModelName(f"whet/{state['model']}"),
            sample_id=state["info"]["sample"],
            epoch=1,
            input=sample.input,
            messages=list(messages),
            target=Target(sample.target),
            choices=sample.choices,
            metadata=sample.metadata or {},
        )
        state["inspect_prompts"], state["inspect_answers"] = asyncio.Queue(), asyncio.Queue()
        state["inspect_solving"] = asyncio.create_task(self._solve(state))
        state["prompt"] = await self._next(state)

    async def _solve(self, state: State) -> None:
        """Run setup and solvers; each `generate` passes its prompt on, and waits for the answer."""
        from inspect_ai.model import ModelOutput

        async def generate(sample: Any, *args: Any, **kwargs: Any) -> Any:
            if sample.tools:
                raise ConfigError("a solver of the task offers tools, which whet does not run for Inspect.")
            state["inspect_prompts"].put_nowait(_messages(sample.messages))
            text, truncated = await state["inspect_answers"].get()
            stop = "max_tokens" if truncated else "stop"
            sample.output = ModelOutput.from_content(model=str(sample.model), content=text, stop_reason=stop)
            sample.messages.append(sample.output.message)
            return sample

        for solver in self._solvers:
            state["inspect_state"] = await solver(state["inspect_state"], generate)
            if state["inspect_state"].completed:
                return

    async def _next(self, state: State) -> Messages:
        """The next prompt; where the solvers are done there is none, and the rollout ends."""
        wanted = asyncio.create_task(state["inspect_prompts"].get())
        try:
            await asyncio.wait({wanted, state["inspect_solving"]}, return_when=asyncio.FIRST_COMPLETED)
            if wanted.done():
                prompt: Messages = wanted.result()
                return prompt
        finally:
            wanted.cancel()
        state["inspect_solving"].result()
        state["final_env_response"] = []
        return []

    async def get_prompt_messages(self, state: State) -> Messages:
        prompt: Messages = state["prompt"]
        return await self._next(state) if state["trajectory"] else prompt

    async def env_response(self, messages: Messages, state: State, **kwargs: Any) -> Messages:
        raise NotImplementedError("the solvers of the task write the prompts")

    async def add_trajectory_step(self, state: State, trajectory_step: TrajectoryStep) -> None:
        await super().add_trajectory_step(state, trajectory_step)
        text = content_text(trajectory_step["completion"][-1]["content"])
        state["inspect_answers"].put_nowait((text, trajectory_step["is_truncated"]))

    async def render_completion(self, state: State) -> None:
        """All that follows the prompt; of turns that do not continue each other, what the model wrote."""
        steps = state["trajectory"]
        whole = [*steps[-1]["prompt"], *steps[-1]["completion"]] if steps else []
        linear = whole[: len(state["prompt"])] == state["prompt"]
        written = [message for step in steps for message in step["completion"]]
        state["completion"] = whole[len(state["prompt"]) :] if linear else written

    @cleanup
    async def stop_solving(self, state: State) -> None:
        solving = state.get("inspect_solving")
        try:
            if state.get("stop_condition") == "max_turns_reached":  # what the solver does with the last answer counts
                await self._next(state)
        finally:
            for name in ("inspect_solving", "inspect_prompts", "inspect_answers"):
                state.pop(name, None)
            if solving is not None:
                solving.cancel()
                await asyncio.gather(solving, return_exceptions=True)


def _load(target: str, arguments: dict[str, Any]) -> Any:
    try:
        version = importlib.metadata.version("inspect-ai")
        from inspect_ai._eval.loader import load_tasks
    except ImportError as error:
        raise MissingExtraError("an Inspect task", "inspect") from error
    if not VERSIONS[0] <= tuple(map(int, version.split(".")[:3])) < VERSIONS[1]:
        raise ConfigError(f"inspect-ai is {version}; whet works with inspect-ai 0.3.200 or later, before 0.4.")
    try:
        tasks = load_tasks([target], arguments)
    except WhetError:
        raise
    except Exception as error:
        raise EnvironmentLoadError(f"'inspect:{target}' cannot be loaded: {describe(error)}") from error
    if len(tasks) != 1:
        raise EnvironmentLoadError(
            f"'inspect:{target}' names {len(tasks)} tasks; give PACKAGE/TASK of an installed package, or FILE@TASK."
        )
    return tasks[0]


def _check_possible(target: str, task: Any, samples: Sequence[Any], score: str | None) -> None:
    """Raises `ConfigError` for what a task needs and cannot have here."""
    contents = [message.content for s in samples if not isinstance(s.input, str) for message in s.input]
    parts = [part for content in contents if not isinstance(content, str) for part in content]
    judged = [_name(scorer) for scorer in task.scorer or () if _name(scorer) in GRADED_BY_A_MODEL]
    solvers = [_name(solver) for solver in (*_listed(task.setup), *_listed(task.solver))]
    problems = {
        "needs a sandbox": task.sandbox is not None or any(s.sandbox or s.files or s.setup for s in samples),
        "has an agent as its solver": any(_kind(one) == "agent" for one in _listed(task.solver)) or AGENTS & {*solvers},
        "offers tools": "use_tools" in solvers,
        "has no scorer": not task.scorer,
        f"is graded by a model ({', '.join(judged)}) and there is no judge": judged,
        "has samples with content that is no text": any(part.type != "text" for part in parts),
        "sets a system message in its config": task.config.system_message is not None,
    }
    for problem, holds in problems.items():
        if holds:
            raise ConfigError(f"'inspect:{target}' {problem}; whet does not play such a task.")
    if len(task.scorer) > 1 and score is None:
        raise ConfigError(
            f"'inspect:{target}' has several scorers; give score, one of {', '.join(map(_name, task.scorer))}."
        )


def _listed(solver: Any) -> list[Any]:
    """Solvers, those of a chain one by one."""
    if solver is None:
        return []
    inner = solver if isinstance(solver, Sequence) else getattr(solver, "_solvers", None)
    return [one for part in inner for one in _listed(part)] if inner is not None else [solver]


def _info(thing: Any) -> Any:
    from inspect_ai._util.registry import is_registry_object, registry_info

    return registry_info(thing) if is_registry_object(thing) else None


def _name(thing: Any) -> str:
    info = _info(thing)
    return str(info.name).rpartition("/")[2] if info else getattr(thing, "__name__", type(thing).__name__)


def _kind(thing: Any) -> str:
    info = _info(thing)
    return str(info.type) if info else ""


def _messages(messages: Iterable[Any]) -> Messages:
    """Inspect's messages as whet's. Raises `ConfigError` for content that is no text."""
    converted: Messages = []
    for message in messages:
        parts = [] if isinstance(message.content, str) else message.content
        if any(part.type != "text" for part in parts) or message.role == "tool":
            raise ConfigError("a solver of the task writes content that is no text, which whet does not pass on.")
        converted.append(as_message({"role": message.role, "content": message.text}))
    return converted


def _number(value: Any, name: str) -> float:
    """A score's value. Raises `RewardError` for what is none."""
    if isinstance(value, str) and value in VALUES:
        return VALUES[value]
    if isinstance(value, bool | int | float) and math.isfinite(value):
        return float(value)
    raise RewardError(f"the scorer {name} gave {value!r:.80}, which is neither C, I, P, N nor a finite number")
