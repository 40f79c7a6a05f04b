"""Names for environments of the `verifiers` 0.1 contract: hook types, responses as messages, tools, quiet datasets."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Awaitable, Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeAlias

from whet.calls import name_of
from whet.envs.steps import completion_messages, step_tokens
from whet.envs.tool_env import ToolMonitorRubric
from whet.types import Messages, Response, State, TrajectoryStepTokens

StopCondition: TypeAlias = Callable[[State], Awaitable[bool]]
RolloutCleanup: TypeAlias = Callable[[State], Awaitable[None]]
EnvironmentTeardown: TypeAlias = Callable[[], Awaitable[None]]


async def parse_response_message(response: Response) -> Messages:
    """The response as the one assistant message that goes into the conversation."""
    return completion_messages(response)


async def parse_response_messages(response: Response, message_type: str = "chat") -> Messages:
    """`parse_response_message` by its name before 0.1.10; a response of any kind of client is of one form now."""
    return completion_messages(response)


async def parse_response_tokens(response: Response, max_seq_len: int | None = None) -> TrajectoryStepTokens | None:
    """The tokens of a turn, cut to `max_seq_len`; None where the client gave none."""
    return step_tokens(response, max_seq_len)


def filter_signature(func: Callable[..., Any], args_to_skip: Collection[str]) -> Callable[..., Any]:
    """A function that does the same, whose signature and hints leave out `self` and these parameters."""
    if not args_to_skip:
        return func
    signature = inspect.signature(func)
    shown = [one for name, one in signature.parameters.items() if name not in args_to_skip and name != "self"]

    @functools.wraps(func, updated=())
    def filtered(*args: Any, **kwargs: Any) -> Any:
        return func(*args, **kwargs)

    del filtered.__wrapped__  # else its signature would be that of `func`
    hints = getattr(func, "__annotations__", {})
    filtered.__annotations__ = {name: hint for name, hint in hints.items() if name not in args_to_skip}
    filtered.__signature__ = signature.replace(parameters=shown)  # type: ignore[attr-defined]
    return filtered


class ToolRubric(ToolMonitorRubric):
    """Counts calls of tools, in all and of each; the name that 0.1 gave it before 0.1.9, where the count is awaited."""

    def __init__(self, tools: Sequence[Callable[..., Any]] | None = None) -> None:
        self.tools = list(tools or [])
        super().__init__([name_of(tool) for tool in self.tools])

    async def total_tool_calls(self, completion: Messages) -> float:  # type: ignore[override]
        return super().total_tool_calls(completion)


@contextmanager
def quiet_datasets() -> Iterator[None]:
    """Without the progress bars and log lines below warnings of the `datasets` package."""
    import datasets

    level = datasets.logging.get_verbosity()
    bars = datasets.is_progress_bar_enabled()
    datasets.logging.set_verbosity_warning()
    datasets.disable_progress_bars()
    try:
        yield
    finally:
        datasets.logging.set_verbosity(level)
        if bars:
            datasets.enable_progress_bars()
