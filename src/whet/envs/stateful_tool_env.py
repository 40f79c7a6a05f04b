"""`StatefulToolEnv`: tools with arguments that the model does not see and the environment fills in.

Examples: a connection, a working directory, a budget. Such arguments are left out of the schema, values of the model
for them are dropped, and `update_tool_args` sets them.
"""

from __future__ import annotations

import inspect
from abc import abstractmethod
from collections.abc import Callable, Sequence
from typing import Any

from whet.calls import name_of, resolve
from whet.envs.config.arguments import nearest
from whet.envs.tool_env import ToolEnv
from whet.errors import ConfigError
from whet.types import Messages, State


class StatefulToolEnv(ToolEnv):
    """Tools with arguments that the model does not see and the environment fills in.

    Add such tools with `add_tool`. The arguments of the constructor are those of `ToolEnv`.
    """

    def add_tool(self, tool: Callable[..., Any], args_to_skip: Sequence[str] = ()) -> None:
        """Add a tool; the model does not see its arguments `args_to_skip`."""
        name = name_of(tool)
        parameters = inspect.signature(tool).parameters
        if not any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values()):
            for skipped in args_to_skip:
                if skipped not in parameters:
                    raise ConfigError(f"tool '{name}' has no argument '{skipped}'.{nearest(skipped, parameters)}")
        self._offer(tool, args_to_skip)
        self.skipped_args[name] = list(args_to_skip)

    @abstractmethod
    def update_tool_args(
        self, tool_name: str, tool_args: dict[str, Any], messages: Messages, state: State, **kwargs: Any
    ) -> dict[str, Any]:
        """The arguments for `tool_name`, completed from those of the model; plain or async. May change `state`.

        Called for every call whose arguments are a JSON object, even of an unknown tool. An exception here ends the
        rollout as errored.
        """

    async def _complete_arguments(
        self, tool_name: str, arguments: dict[str, Any], messages: Messages, state: State
    ) -> dict[str, Any]:
        hidden = self.skipped_args.get(tool_name, ())
        given = {name: value for name, value in arguments.items() if name not in hidden}
        completed: dict[str, Any] = await resolve(self.update_tool_args(tool_name, given, messages, state))
        return completed
