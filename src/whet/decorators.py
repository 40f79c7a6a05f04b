"""Marks on methods, found by the classes that run them: `@stop`, `@cleanup`, `@teardown`, `@setup` and so on.

A mark only sets attributes on the function. Handlers run from the highest priority to the lowest, then by name.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, Literal, TypeVar, overload

Stage = Literal["rollout", "group"]
F = TypeVar("F", bound=Callable[..., Any])


def _mark(func: F | None, name: str, **fields: Any) -> F | Callable[[F], F]:
    def decorate(function: F) -> F:
        setattr(function, name, True)
        for field, value in fields.items():
            setattr(function, f"{name}_{field}", value)
        return function

    return decorate if func is None else decorate(func)


@overload
def stop(func: F, priority: int = 0) -> F: ...
@overload
def stop(func: None = None, priority: int = 0) -> Callable[[F], F]: ...
def stop(func: F | None = None, priority: int = 0) -> F | Callable[[F], F]:
    """A condition `(self, state) -> bool` that ends the rollout; its name becomes `state["stop_condition"]`."""
    return _mark(func, "stop", priority=priority)


@overload
def setup(func: F, priority: int = 0) -> F: ...
@overload
def setup(func: None = None, priority: int = 0) -> Callable[[F], F]: ...
def setup(func: F | None = None, priority: int = 0) -> F | Callable[[F], F]:
    """Prepares a rollout, `(self, state)`, before its first turn."""
    return _mark(func, "setup", priority=priority)


@overload
def cleanup(func: F, priority: int = 0, stage: Stage = "rollout") -> F: ...
@overload
def cleanup(func: None = None, priority: int = 0, stage: Stage = "rollout") -> Callable[[F], F]: ...
def cleanup(func: F | None = None, priority: int = 0, stage: Stage = "rollout") -> F | Callable[[F], F]:
    """Runs after every rollout, `(self, state)`, whether it completed, failed, timed out or was cancelled."""
    return _mark(func, "cleanup", priority=priority, stage=stage)


@overload
def teardown(func: F, priority: int = 0) -> F: ...
@overload
def teardown(func: None = None, priority: int = 0) -> Callable[[F], F]: ...
def teardown(func: F | None = None, priority: int = 0) -> F | Callable[[F], F]:
    """Runs once, `(self)`, when the environment is closed."""
    return _mark(func, "teardown", priority=priority)


@overload
def update(func: F, priority: int = 0, stage: Stage = "rollout") -> F: ...
@overload
def update(func: None = None, priority: int = 0, stage: Stage = "rollout") -> Callable[[F], F]: ...
def update(func: F | None = None, priority: int = 0, stage: Stage = "rollout") -> F | Callable[[F], F]:
    """Changes the state of a rollout, or of a group, before it is scored."""
    return _mark(func, "update", priority=priority, stage=stage)


@overload
def metric(func: F, priority: int = 0, stage: Stage = "rollout") -> F: ...
@overload
def metric(func: None = None, priority: int = 0, stage: Stage = "rollout") -> Callable[[F], F]: ...
def metric(func: F | None = None, priority: int = 0, stage: Stage = "rollout") -> F | Callable[[F], F]:
    """A value that is recorded and does not count towards the reward."""
    return _mark(func, "metric", priority=priority, stage=stage)


@overload
def reward(func: F, weight: float = 1.0, priority: int = 0, stage: Stage = "rollout") -> F: ...
@overload
def reward(func: None = None, weight: float = 1.0, priority: int = 0, stage: Stage = "rollout") -> Callable[[F], F]: ...
def reward(
    func: F | None = None, weight: float = 1.0, priority: int = 0, stage: Stage = "rollout"
) -> F | Callable[[F], F]:
    """A value that counts towards the reward with `weight`."""
    return _mark(func, "reward", priority=priority, stage=stage, weight=weight)


@overload
def advantage(func: F, priority: int = 0) -> F: ...
@overload
def advantage(func: None = None, priority: int = 0) -> Callable[[F], F]: ...
def advantage(func: F | None = None, priority: int = 0) -> F | Callable[[F], F]:
    """Sets the advantages of a group."""
    return _mark(func, "advantage", priority=priority, stage="group")


def discover_decorated(obj: Any, mark: str) -> list[Callable[..., Any]]:
    """The bound methods of `obj` that carry `mark`, in the order in which they run.

    Only the class is searched, so that no property is triggered.
    """
    names = [name for name in dir(type(obj)) if _is_marked(inspect.getattr_static(type(obj), name), mark)]
    return sort_by_priority([getattr(obj, name) for name in names], mark)


def sort_by_priority(handlers: list[Callable[..., Any]], mark: str) -> list[Callable[..., Any]]:
    return sorted(handlers, key=lambda handler: (-getattr(handler, f"{mark}_priority", 0), handler.__name__))


def _is_marked(member: Any, mark: str) -> bool:
    return inspect.isfunction(member) and getattr(member, mark, False) is True
