"""`Environment`: tasks, a way to attempt one, and a rubric that scores the attempt.

The common base class: construction, datasets, the state of a rollout, settings. `hooks.py` adds stop conditions and
clean-up, `running.py` many rollouts. `MultiTurnEnv` has the rollout loop.

Constructors read no clock, start no thread or process and install no signal handlers, so an environment can be made on
any thread. Call `await env.close()` when done; environments with `@teardown` handlers are closed at exit otherwise.
"""

from __future__ import annotations

import json
import logging
import reprlib
from collections.abc import Mapping, Sequence
from numbers import Integral, Real
from typing import Any

from whet.calls import describe
from whet.clients.client import AnyClient
from whet.clients.make import resolve_client
from whet.envs.config.arguments import Check, check_values, keep_as_attributes, normalize_tool_defs, unknown_argument
from whet.envs.config.texts import Worded, wording_of
from whet.envs.datasets import RowDataset, build_dataset
from whet.envs.running import Running
from whet.errors import ConfigError, DatasetError, Error, ModelError, WhetError
from whet.messages import copy_value, normalize_messages
from whet.parsers.parser import Parser, unchanged
from whet.parsers.think_parser import MaybeThinkParser
from whet.rollouts.states import new_state
from whet.rubrics.rubric import Rubric
from whet.rubrics.rubric_group import RubricGroup, rubrics_of
from whet.system.origins import is_written_for_verifiers
from whet.system.redaction import redacted
from whet.types import (
    Messages,
    Response,
    RolloutInput,
    SamplingArgs,
    State,
    TokenUsage,
    Tool,
)

_EXPECTED: dict[str, tuple[Check, str]] = {
    "system_prompt": (str, "text"),
    "parser": (lambda parser: hasattr(parser, "parse") and not isinstance(parser, type), "a Parser, such as Parser()"),
    "rubric": (Rubric, "a Rubric, such as Rubric(funcs=[...])"),
    "sampling_args": (Mapping, "a dict"),
    "env_id": (str, "text"),
    "env_args": (Mapping, "a dict"),
    "max_seq_len": (Integral, "a number of tokens, or None"),
    "pass_threshold": (Real, "a number"),
}

_SHOWN = (
    "env_id",
    "env_args",
    "dataset",
    "eval_dataset",
    "system_prompt",
    "tool_defs",
    "max_turns",
    "rubric",
    "sampling_args",
)
"""What `repr` shows, where it is set."""
_SHORT = reprlib.Repr()
_SHORT.maxstring, _SHORT.maxother, _SHORT.maxdict, _SHORT.maxlist = 80, 80, 12, 12


class Environment(Worded, Running):
    """Tasks, a way to attempt one, and a rubric that scores the attempt."""

    def __init__(
        self,
        dataset: Any = None,
        eval_dataset: Any = None,
        system_prompt: str | None = None,
        few_shot: Sequence[Any] | None = None,
        parser: Parser | None = None,
        rubric: Rubric | None = None,
        sampling_args: SamplingArgs | None = None,
        message_type: str = "chat",
        tool_defs: Sequence[Any] | None = None,
        max_workers: int = 512,
        env_id: str | None = None,
        env_args: dict[str, Any] | None = None,
        map_kwargs: dict[str, Any] | None = None,
        max_seq_len: int | None = None,
        score_rollouts: bool = True,
        pass_threshold: float = 0.5,
        **unknown: Any,
    ) -> None:
        """Make an environment; at least one dataset is required.

        Args:
            dataset: tasks to train on: a list of dicts, a `datasets.Dataset`, or a callable that returns one.
            eval_dataset: tasks to evaluate on; by default the training tasks.
            system_prompt: put before every prompt that does not open with a system message.
            few_shot: messages between the system prompt and a row's `question`.
            parser: reads answers out of completions; offered to reward functions.
            rubric: scores rollouts; by default every reward is 0.
            sampling_args: defaults for `generate` and `evaluate`.
            message_type: accepted for environments written for 0.1; prompts are messages in any case.
            tool_defs: tools that the model may call.
            max_workers: accepted for environments written for 0.1; nothing here runs in threads.
            env_id: name of the environment in results.
            env_args: arguments of its loader, for results.
            map_kwargs: accepted for environments written for 0.1.
            max_seq_len: tokens of prompt and completion together beyond which a turn is cut off.
            score_rollouts: False gives every rollout reward 0 without running the rubric.
            pass_threshold: reward at or above which a rollout counts as passed in pass@k.
            unknown: refused; in code that imports `verifiers` they become attributes, with a warning.
        """
        if unknown and not is_written_for_verifiers(type(self)):
            raise unknown_argument(type(self), next(iter(unknown)))
        if dataset is None and eval_dataset is None:
            raise ConfigError(
                f"{type(self).__name__} has no dataset. Either dataset or eval_dataset must be provided, or both."
            )
        check_values(self, locals(), _EXPECTED)
        self.logger = logging.getLogger(f"{__name__}.{type(self).__name__}")
        self.message_type = message_type
        self.tool_defs = normalize_tool_defs(tool_defs)
        self.system_prompt = system_prompt
        self.few_shot = few_shot
        self.parser = parser or Parser()
        self.rubric = rubric or Rubric()
        self.sampling_args: SamplingArgs = {**(sampling_args or {})}
        self.max_workers = max_workers
        self.map_kwargs = map_kwargs or {}
        self.env_id = env_id or ""
        self.env_args = env_args or {}
        self.max_seq_len = max_seq_len
        self.score_rollouts = score_rollouts
        self.pass_threshold = pass_threshold
        self.concurrency: int | None = None
        self.max_total_completion_tokens = -1
        self.dataset_source = dataset
        self.eval_dataset_source = eval_dataset
        self.dataset: RowDataset | None = None
        self.eval_dataset: RowDataset | None = None
        if not callable(dataset):
            self.build_dataset()
        if not callable(eval_dataset):
            self.build_eval_dataset()
        keep_as_attributes(self, unknown)
        self._find_hooks()
        if parser is not None:
            self._warn_of_another_parser(parser)
        self.__post_init__()

    def __repr__(self) -> str:
        """The configuration in a line: sizes of datasets and none of their rows, no secrets, long values cut."""
        own: dict[str, Any] = {name: getattr(self, name, None) for name in _SHOWN}
        for name in ("dataset", "eval_dataset"):
            own[name] = None if own[name] is None else len(own[name])
        own["tool_defs"] = [tool.name for tool in own["tool_defs"] or ()]
        if isinstance(own["rubric"], Rubric):
            rubric = own["rubric"]
            own["rubric"] = dict(zip(rubric._get_reward_func_names(), rubric._get_reward_weights(), strict=False))
        fields = redacted({name: value for name, value in own.items() if value})
        return f"{type(self).__name__}({', '.join(f'{name}={_SHORT.repr(value)}' for name, value in fields.items())})"

    def _warn_of_another_parser(self, parser: Parser) -> None:
        if type(parser) is not type(self.rubric.parser):
            self.logger.warning(
                "reward functions get the rubric's %s, not the environment's %s; give the rubric parser=... too",
                type(self.rubric.parser).__name__,
                type(parser).__name__,
            )

    def __post_init__(self) -> None:
        """Override to run code at the end of construction."""

    # Datasets

    def build_dataset(self) -> RowDataset | None:
        """The training rows, built on first use; None without a training dataset."""
        if self.dataset is None and self.dataset_source is not None:
            self.dataset = self._build(self.dataset_source, "dataset")
        return self.dataset

    def build_eval_dataset(self) -> RowDataset | None:
        if self.eval_dataset is None and self.eval_dataset_source is not None:
            self.eval_dataset = self._build(self.eval_dataset_source, "eval_dataset")
        return self.eval_dataset

    def get_dataset(self, n: int = -1, seed: int | None = None) -> RowDataset:
        """The first `n` training rows (-1 = all), after shuffling a copy by `seed`."""
        dataset = self.build_dataset()
        if dataset is None:
            raise DatasetError(f"{self._label()} has no training dataset, only an eval_dataset.")
        return _excerpt(dataset, n, seed)

    def get_eval_dataset(self, n: int = -1, seed: int | None = None) -> RowDataset:
        """Like `get_dataset`, for the evaluation rows, or the training rows without an eval_dataset."""
        dataset = self.build_eval_dataset()
        return self.get_dataset(n, seed) if dataset is None else _excerpt(dataset, n, seed)

    def _build(self, source: Any, name: str) -> RowDataset:
        return build_dataset(source, system_prompt=self.system_prompt, few_shot=self.few_shot, name=name)

    # One rollout

    async def init_state(
        self, input: RolloutInput, client: AnyClient, model: str, sampling_args: SamplingArgs | None = None
    ) -> State:
        """The state at the start of a rollout. It holds a copy of the row, so a rollout may write into it."""
        if client is not None and not hasattr(client, "get_response"):  # called by a trainer, with a client of its own
            client = resolve_client(client)
        row = copy_value(dict(input))
        info = row.get("info")
        if isinstance(info, str):
            info = row["info"] = json.loads(info)
        row["prompt"] = normalize_messages(row["prompt"], field_name="prompt")
        tool_defs = self.tool_defs
        if isinstance(info, dict) and "oai_tools" in info:
            raise ConfigError("info['oai_tools'] is no longer supported. Give info['tool_defs'], a list of tools.")
        if isinstance(info, dict) and "tool_defs" in info:
            tool_defs = normalize_tool_defs(info["tool_defs"])
        wording = wording_of(self)
        if wording is not None:
            row["prompt"] = wording.prompt(row["prompt"])
        return new_state(row, client, model, sampling_args, tool_defs or ())

    async def get_model_response(
        self,
        state: State,
        prompt: Messages,
        client: AnyClient | None = None,
        model: str | None = None,
        tool_defs: list[Tool] | None = None,
        sampling_args: SamplingArgs | None = None,
    ) -> Response:
        """The model's answer to `prompt`; missing arguments are taken from the state."""
        if not prompt:
            raise DatasetError(
                f"example {state.get('example_id', 0)} has an empty prompt, and {self._label()} has put nothing into "
                "it. Give the row a prompt or a question, or fill state['prompt'] in setup_state."
            )
        tools = self._tools_of_turn(state) if tool_defs is None else tool_defs
        try:
            response: Response = await (client or state["client"]).get_response(
                prompt=prompt,
                model=model or state["model"],
                tools=tools or None,
                sampling_args=sampling_args or state["sampling_args"] or {},
                state=state,
            )
        except (Error, WhetError):
            raise
        except Exception as error:
            raise ModelError(describe(error)) from error
        state["usage"].add_response(response)
        return response

    def _tools_of_turn(self, state: State) -> list[Tool] | None:
        """The tools that the model may call in the next turn."""
        tools: list[Tool] | None = state["tool_defs"]
        return tools

    def increment_state_usage(self, state: State, input_tokens: float = 0, output_tokens: float = 0) -> None:
        """Count tokens of model calls that the environment made itself."""
        state["usage"].add(input_tokens, output_tokens)

    def increment_state_usage_from_response(self, state: State, response: Any) -> None:
        state["usage"].add_response(response)

    def get_state_usage(self, state: State) -> TokenUsage | None:
        """Tokens used so far; None while no model has reported any."""
        usage: TokenUsage | None = state["usage"].snapshot()
        return usage

    def parse_failed(self, rollout: Mapping[str, Any]) -> bool | None:
        """Whether the parser found no answer in a state or result row; None where any text counts as an answer.

        It separates an answer that could not be read from a wrong one: the reward of both is 0.
        """
        return _answer_missing(self.parser, self.rubric, rollout.get("completion"))

    # Settings

    def set_kwargs(self, **kwargs: Any) -> None:
        """Set attributes, by their `set_...` method if there is one; also new attributes."""
        for key, value in kwargs.items():
            setter = getattr(self, f"set_{key}", None)
            if callable(setter):
                setter(value)
            else:
                setattr(self, key, value)

    def add_rubric(self, rubric: Rubric) -> None:
        """Score by `rubric` too; rewards add up."""
        if isinstance(self.rubric, RubricGroup):
            self.rubric.rubrics.append(rubric)
        else:
            self.rubric = RubricGroup([self.rubric, rubric])

    def set_concurrency(self, concurrency: int) -> None:
        """How many rollouts will run at once: `self.concurrency`, for an environment that sizes a pool by it."""
        self._set("concurrency", concurrency)

    def set_max_seq_len(self, max_seq_len: int | None) -> None:
        """Truncate a turn at this many tokens of prompt and completion together; None = no limit."""
        self._set("max_seq_len", max_seq_len)

    def set_score_rollouts(self, score_rollouts: bool) -> None:
        """False gives every rollout reward 0 without running the rubric."""
        self._set("score_rollouts", score_rollouts)

    def set_max_total_completion_tokens(self, max_total_completion_tokens: int) -> None:
        """End a rollout once its model has written this many tokens; -1 = no limit."""
        self._set("max_total_completion_tokens", max_total_completion_tokens)

    def _set(self, setting: str, value: Any) -> None:
        """Set the attribute of a `set_...` method."""
        setattr(self, setting, value)

    def _label(self) -> str:
        return f"environment '{self.env_id}'" if self.env_id else type(self).__name__


def _excerpt(dataset: RowDataset, n: int, seed: int | None) -> RowDataset:
    if seed is not None:
        dataset = dataset.shuffle(seed)
    return dataset[:n] if n > 0 else dataset


def _answer_missing(parser: Parser, rubric: Rubric, completion: Any) -> bool | None:
    """Whether no answer was found; None where any text is taken as it is, or there is no completion.

    The environment's `parser` counts, then those that the reward functions of its `rubric` are given.
    """
    reads = next(filter(_reads, [parser, *(one.parser for one in rubrics_of(rubric))]), None)
    if reads is None or completion is None:
        return None
    try:
        answer = reads.parse_answer(completion)
    except Exception:  # an author's own parser: one that breaks on a text has found nothing in it
        return True
    return answer is None or (isinstance(answer, str) and not answer.strip())


def _reads(parser: Parser) -> bool:
    """Whether a parser looks for something, and does not take any text as it is."""
    takes_all = type(parser) in (Parser, MaybeThinkParser) and parser.extract_fn is unchanged
    return not takes_all and hasattr(parser, "parse_answer")
