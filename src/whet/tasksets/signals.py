"""The functions of a taskset, a harness or a toolset: found, read and put in order.

They are methods marked by a decorator, functions given in a list, `"module:function"` strings, or tables
`{fn = ..., weight = ..., priority = ..., stage = ...}`. Names identify them, and a name may be there only once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

from whet.calls import CallSpec, name_of
from whet.config import validate
from whet.decorators import discover_decorated
from whet.envs.config.arguments import nearest
from whet.errors import ConfigError
from whet.rubrics.rubric import GROUP_PARAMETERS
from whet.tasksets.config import Config, SignalTuning, Stage
from whet.tasksets.refs import listed, resolve_function

Kind = Literal["stop", "setup", "update", "metric", "reward", "advantage", "cleanup", "teardown"]
SIGNALS: tuple[Kind, ...] = ("metric", "reward", "advantage")
KINDS: tuple[Kind, ...] = ("stop", "setup", "update", "cleanup", "teardown", *SIGNALS)
STAGED: tuple[Kind, ...] = ("update", "metric", "reward", "cleanup")
"""Kinds that may be of a group rather than of a rollout; an advantage always is."""


@dataclass(frozen=True, slots=True)
class Function:
    """One function, and when it runs. `owner` is the toolset whose bindings it may use."""

    kind: Kind
    function: Callable[..., Any]
    spec: CallSpec
    stage: Stage
    priority: int
    weight: float
    owner: Any = None

    @property
    def name(self) -> str:
        return self.spec.name


def read_functions(
    part: object, kinds: Iterable[Kind], given: Mapping[str, Any], config: Config, where: str, owner: Any = None
) -> dict[Kind, list[Function]]:
    """The functions of `part` by kind: its marked methods, then those of code, then those of its config.

    Code gives them by the plural of their kind, as a config does.
    """
    functions: dict[Kind, list[Function]] = {}
    for kind in kinds:
        functions[kind] = [
            read_function(kind, method, type(part).__name__) for method in discover_decorated(part, kind)
        ]
        for entries in (given.get(f"{kind}s"), getattr(config, f"{kind}s", None)):
            functions[kind] += [read_function(kind, entry, where, owner) for entry in listed(entries)]
    return functions


def read_function(kind: Kind, entry: Any, where: str, owner: Any = None) -> Function:
    """One entry. Raises `ConfigError` if it is no function, has another mark, or takes the wrong parameters."""
    given: dict[str, Any] = {}
    where = f"{where}.{kind}s"
    if isinstance(entry, Function):
        return entry
    if isinstance(entry, Mapping):
        given = dict(entry)
        entry = given.pop("fn", None)
        known = ["fn", "priority", *(["stage"] if kind in STAGED else []), *(["weight"] if kind == "reward" else [])]
        for name in given:
            if name == "skip":
                raise ConfigError(f"{where}: to leave a function out, say so in scoring, or take it out of the list.")
            if name not in known:
                raise ConfigError(f"{where}: unknown key '{name}'.{nearest(name, known)}")
        if entry is None:
            raise ConfigError(f"{where}: an entry has no fn: {given!r}. Write {{fn = 'module:function', ...}}.")
    function = resolve_function(entry, where)
    marks = [mark for mark in SIGNALS if getattr(function, mark, False) is True]
    if kind in SIGNALS and marks and marks != [kind]:
        raise ConfigError(f"{where}: '{name_of(function)}' is marked as {' and '.join(marks)}.")
    tuning = validate(SignalTuning, given, where)
    read = Function(
        kind=kind,
        function=function,
        spec=CallSpec.of(function),
        stage=getattr(function, f"{kind}_stage", "rollout"),
        priority=getattr(function, f"{kind}_priority", 0),
        weight=float(getattr(function, "reward_weight", 1.0)) if kind == "reward" else 0.0,
        owner=owner,
    )
    if read.spec.returns_list or not GROUP_PARAMETERS.isdisjoint(read.spec.names):
        read = replace(read, stage="group") if kind in (*STAGED, "advantage") else read
    return check(tuned(read, tuning), where)


def tuned(function: Function, tuning: SignalTuning) -> Function:
    """The function with the settings of a config."""
    if tuning.weight is not None and function.kind != "reward":
        raise ConfigError(f"'{function.name}' is a {function.kind}: a weight would have no effect.")
    return replace(
        function,
        stage=tuning.stage or function.stage,
        priority=function.priority if tuning.priority is None else tuning.priority,
        weight=function.weight if tuning.weight is None else tuning.weight,
    )


def check(function: Function, where: str) -> Function:
    """`function`, unless its parameters do not fit the stage in which it runs."""
    spec = function.spec
    if function.stage == "group" and not spec.takes_all and GROUP_PARAMETERS.isdisjoint(spec.names):
        raise ConfigError(
            f"{where}: '{function.name}' is for whole groups, so it should take tasks and states; "
            f"it takes {', '.join(spec.names) or 'nothing'}."
        )
    if function.kind == "advantage" and function.stage != "group":
        raise ConfigError(f"{where}: '{function.name}' sets advantages, which only whole groups have.")
    if function.kind in SIGNALS and function.stage == "rollout" and not (spec.names or spec.takes_all):
        raise ConfigError(f"{where}: '{function.name}' takes nothing; it should take task and state, or either.")
    return function


def apply_scoring(signals: list[Function], scoring: Mapping[str, SignalTuning], where: str) -> list[Function]:
    """Rewards, metrics and advantages as `scoring` changes them. Raises `ConfigError` for an unknown name."""
    names = [signal.name for signal in signals]
    for name in scoring:
        if name not in names:
            raise ConfigError(
                f"{where}.scoring: there is no reward, metric or advantage '{name}'.{nearest(name, names)}"
            )
    return [
        check(tuned(signal, scoring[signal.name]), where) if signal.name in scoring else signal
        for signal in signals
        if not (signal.name in scoring and scoring[signal.name].skip)
    ]


def in_order(functions: Iterable[Function]) -> list[Function]:
    """From the highest priority to the lowest, then by name; duplicates are dropped."""
    unique: dict[Any, Function] = {}
    for function in functions:
        unique.setdefault((function.kind, function.function), function)
    return sorted(unique.values(), key=lambda function: (-function.priority, function.name))


def refuse_duplicates(signals: Iterable[Function]) -> None:
    """Raises `ConfigError` for two signals of the same name: names become metrics."""
    seen: set[str] = set()
    for signal in signals:
        if signal.name in seen:
            raise ConfigError(f"'{signal.name}' scores twice: rewards and metrics need names of their own.")
        seen.add(signal.name)
