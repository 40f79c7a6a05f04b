"""`StatefulToolEnv`: tools with arguments that the model does not see and the environment fills in.

A connection, a working directory, a budget: what a tool needs and a model must not choose. Such arguments are left out
of the schema, whatever the model writes for them is dropped, and `update_tool_args` puts the real ones in.
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

    They come by `add_tool`; the arguments of the constructor are those of `ToolEnv`.
    """

    def add_tool(self, tool: Callable[..., Any], args_to_skip: Sequence[str] = ()) -> None:
        """Add a tool, without showing the model its arguments `args_to_skip`."""
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
        """What `tool_name` is called with, from what the model gave; plain or async. May change `state`.

        Called for every call whose arguments are a JSON object, also where there is no such tool. An exception here
        ends the rollout as errored: it is the environment's, not the model's.
        """

    async def _complete_arguments(
        self, tool_name: str, arguments: dict[str, Any], messages: Messages, state: State
    ) -> dict[str, Any]:
        hidden = self.skipped_args.get(tool_name, ())
        given = {name: value for name, value in arguments.items() if name not in hidden}
        completed: dict[str, Any] = await resolve(self.update_tool_args(tool_name, given, messages, state))
        return completed
