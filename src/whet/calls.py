"""Call user code with the arguments it names: reward functions, stop conditions, clean-up handlers.

A signature is read once per function and kept; a call is then a few dictionary look-ups.
"""

from __future__ import annotations

import inspect
import os
import sys
import traceback
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, get_origin

from whet.errors import WhetError

_WHET = os.path.dirname(__file__) + os.sep
_LIBRARY = os.path.dirname(os.__file__) + os.sep
RAISED_AT = "_whet_raised_at"
_NAMED = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)


@dataclass(frozen=True, slots=True)
class CallSpec:
    """The name of a function and its parameters; `takes_all` is `**kwargs`."""

    name: str
    names: tuple[str, ...]
    takes_all: bool
    returns_list: bool
    takes_state: bool  # and nothing else

    @classmethod
    def of(cls, function: Callable[..., Any]) -> CallSpec:
        signature = inspect.signature(function)
        parameters = signature.parameters.values()
        returns = signature.return_annotation
        names = tuple(parameter.name for parameter in parameters if parameter.kind in _NAMED)
        takes_all = any(parameter.kind is inspect.Parameter.VAR_KEYWORD for parameter in parameters)
        return cls(
            name=name_of(function),
            names=names,
            takes_all=takes_all,
            takes_state=names == ("state",) and not takes_all,
            # Under `from __future__ import annotations` an annotation is its text.
            returns_list=returns is list
            or get_origin(returns) is list
            or (isinstance(returns, str) and returns.replace("List", "list").partition("[")[0] == "list"),
        )

    def select(self, offered: Mapping[str, Any]) -> dict[str, Any]:
        """The arguments to call the function with, of those offered."""
        if self.takes_all:
            return dict(offered)
        return {name: offered[name] for name in self.names if name in offered}


def name_of(function: Callable[..., Any]) -> str:
    """A name for a callable: its own, that of the function a partial wraps, or its class."""
    while not hasattr(function, "__name__") and hasattr(function, "func"):
        function = function.func
    name: str = getattr(function, "__name__", type(function).__name__)
    return name


async def resolve(value: Any) -> Any:
    """`value`, awaited where it is an awaitable."""
    return await value if is_awaitable(value) else value


async def maybe_await(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """What a plain or an async function returns."""
    return await resolve(function(*args, **kwargs))


async def call_all(handlers: Iterable[Callable[[], Any]]) -> None:
    """Call one after the other, plain or async. One that raises does not keep the others from running; the first such
    error is raised once all have run, with the others in its notes."""
    failures: list[Exception] = []
    for handler in handlers:
        try:
            await resolve(handler())
        except Exception as error:
            failures.append(error)
    if failures:
        for other in failures[1:]:
            failures[0].add_note(f"and then: {describe(other)}")
        raise failures[0]


class errors_to:
    """Pass an exception that is raised inside to `record`. A mistake of the user (`WhetError`) is raised."""

    __slots__ = ("_record",)

    def __init__(self, record: Callable[[Exception], Any]) -> None:
        self._record = record

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> bool:
        if not isinstance(error, Exception) or isinstance(error, WhetError):
            return False
        self._record(error)
        return True


def package_of(function: Callable[..., Any]) -> str:
    """` of PACKAGE`, the top of the module that defines a function; nothing for whet's own."""
    package = str(getattr(_bare(function), "__module__", None) or "").partition(".")[0]
    return f" of {package}" if package not in ("", "whet", "builtins") else ""


def _bare(function: Callable[..., Any]) -> Any:
    """Without partials, and the class of an object that can be called."""
    while not hasattr(function, "__code__") and hasattr(function, "func"):
        function = function.func
    bare = inspect.unwrap(function)
    return bare if hasattr(bare, "__module__") and hasattr(bare, "__code__") else type(bare)


def place_of(error: BaseException) -> str:
    """`file.py:12`, the innermost line of the traceback outside of whet and the standard library; empty if none.

    An error that arrived from another process has the line of that process as `RAISED_AT`.
    """
    if known := error.__dict__.get(RAISED_AT):
        return str(known)
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        library = frame.filename.startswith(_LIBRARY) and "site-packages" not in frame.filename
        if not (library or frame.filename.startswith((_WHET, "<frozen"))):
            return f"{frame.filename}:{frame.lineno}"
    return ""


def _file_of(function: Callable[..., Any]) -> str:
    if isinstance(function, type):
        return str(getattr(sys.modules.get(function.__module__), "__file__", None) or "")
    bare = _bare(function)
    code = getattr(bare, "__code__", None) or getattr(getattr(bare, "__call__", None), "__code__", None)  # noqa: B004
    return str(code.co_filename) if code is not None else ""


def is_awaitable(value: Any) -> bool:
    """What `isinstance(value, Awaitable)` says, without the cost of an abstract class."""
    return hasattr(value, "__await__")


def describe(error: BaseException, code: Callable[..., Any] | None = None) -> str:
    """`ValueError: text (file.py:12)`, with the innermost line of the traceback.

    Where that line is a library's and `code` (a function, or the class of an environment) is given, the innermost line
    in the folder of `code` precedes it.
    """
    lines = [(frame.filename, frame.lineno) for frame in traceback.extract_tb(error.__traceback__)]
    folder = os.path.dirname(_file_of(code)) if code is not None else ""
    folder = "" if folder.startswith(_WHET) else folder
    own = [line for line in lines if folder and os.path.dirname(line[0]) == folder]
    shown = [f"{file}:{number}" for file, number in dict.fromkeys([*own[-1:], *lines[-1:]])]
    where = f" ({', in '.join(shown)})" if shown else ""
    text = str(error)
    return f"{type(error).__name__}: {text}{where}" if text else f"{type(error).__name__}{where}"
