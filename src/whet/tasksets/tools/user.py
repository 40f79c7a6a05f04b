"""`User`: simulates the user where the model calls no tool."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from whet.calls import CallSpec, describe, resolve
from whet.errors import ConfigError, EnvError, Error, WhetError
from whet.messages import normalize_messages
from whet.tasksets.config import UserConfig
from whet.tasksets.refs import resolve_function, resolve_ref
from whet.tasksets.tools.bindings import check_binding
from whet.tasksets.tools.calling import RolloutTools
from whet.tasksets.tools.sandboxes import read_sandbox
from whet.types import Messages


class User:
    """A simulated user.

    Args:
        fn: plain or async function that takes any of task, state and transcript (all messages so far) and
            returns the next user messages; none ends the rollout.
        scope: how long its objects live: "rollout", "group" or "global".
        bindings: an argument of `fn` to where its value comes from, as in a `Toolset`.
        objects: objects that bindings name, or functions without arguments that make them.
        sandbox: fields of a `SandboxConfig`, for a function that names `sandbox`.
    """

    def __init__(
        self,
        fn: Callable[..., Any],
        scope: str = "rollout",
        bindings: Mapping[str, Any] | None = None,
        objects: Mapping[str, Any] | None = None,
        sandbox: Any = None,
    ) -> None:
        self.fn = fn
        self.spec = CallSpec.of(fn)
        self.scope = scope
        self.bindings = dict(bindings or {})
        self.objects = {name: resolve_ref(value, f"user objects.{name}") for name, value in (objects or {}).items()}
        if scope not in ("rollout", "group", "global"):
            raise ConfigError(f"a user's scope is {scope!r}; it should be rollout, group or global.")
        self.sandbox = read_sandbox(sandbox, "a user's sandbox")
        for argument, source in self.bindings.items():
            check_binding(f"user binding '{argument}'", argument, self.spec, source, self.objects)

    async def reply(self, tools: RolloutTools, transcript: Messages) -> Messages:
        """The user's next messages, possibly none."""
        offered: dict[str, Any] = {"task": tools.task, "state": tools.state, "transcript": list(transcript)}
        filled_in = await tools.bound(self, self.bindings, transcript=offered["transcript"])
        if self.sandbox is not None and "sandbox" in self.spec.names:
            offered["sandbox"] = await tools.scopes.object_of(self.sandbox, "sandbox")
        arguments = {**self.spec.select(offered), **filled_in}
        try:
            messages = await resolve(self.fn(**arguments))
        except (Error, WhetError):
            raise
        except Exception as error:
            raise EnvError(f"user '{self.spec.name}' raised {describe(error)}") from error
        return normalize_messages(messages, field_name="the user's messages") if messages else []


def read_user(value: Any, where: str) -> User | None:
    """A user from a function, a `User`, a `"module:function"` string, or a table of its fields."""
    value = resolve_ref(value, f"{where}.user")
    if value is None or isinstance(value, User):
        return value
    if isinstance(value, Mapping | UserConfig):
        config = UserConfig.from_config(value)
        function = resolve_function(config.fn, f"{where}.user")
        return User(function, config.scope, config.bindings, config.objects, config.sandbox)
    return User(resolve_function(value, f"{where}.user"))
