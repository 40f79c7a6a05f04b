"""The process in which a review runs a package's code: it does, reports what happened, and judges nothing.

Started by `isolation.py` with a request on standard input; events go out as JSON lines on a descriptor of their own, at
once, so that what was seen before a hang or a crash is known.

    python -m whet.authoring.review.observe import|load DESCRIPTOR < request
"""

from __future__ import annotations

import asyncio
import inspect
import json
import os
import resource
import signal
import sys
import sysconfig
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

from whet.authoring.review import row_facts
from whet.authoring.review.about_files import read_files, undescribed
from whet.authoring.review.observations import Argument, Closed, Effect, Halted, Imported, Loaded, SideEffect, Split
from whet.authoring.review.package import read_package
from whet.authoring.review.rehearsal import rehearse
from whet.calls import name_of
from whet.compat.alias import alias_where_needed
from whet.config import StrictModel
from whet.envs.answers import check_answers
from whet.envs.env_group import EnvGroup
from whet.envs.environment import Environment
from whet.envs.loading import load_environment, locate
from whet.envs.multiturn_env import SingleTurnEnv
from whet.envs.tool_schemas import read_docstring
from whet.errors import MissingKeyError, WhetError
from whet.rubrics.metric_names import PREFIX, flat_name
from whet.rubrics.rubric_group import rubrics_of
from whet.system.files import json_line
from whet.types import ROW_FIELDS

PLACEHOLDER = "placeholder-of-whet-env-check"
MAX_KEYS = 32
LIMITS = {
    resource.RLIMIT_DATA: 8 << 30,  # bytes of memory, in each process
    resource.RLIMIT_FSIZE: 1 << 30,  # bytes of a file
    resource.RLIMIT_CORE: 0,
}
Emit = Callable[[StrictModel], None]


def main() -> None:
    what, descriptor = sys.argv[1], int(sys.argv[2])
    request: dict[str, Any] = json.load(sys.stdin)
    for limit, most in LIMITS.items():
        resource.setrlimit(limit, (most, most))
    sys.path += [entry for entry in request["path"] if entry not in sys.path]
    out = os.fdopen(descriptor, "w", encoding="ascii")

    def emit(event: StrictModel) -> None:
        out.write(json_line(event.model_dump()))
        out.flush()

    if what == "import":
        read_files(request["environment"], emit)
        observe_import(request["environment"], emit)
    else:
        asyncio.run(observe_environment(request["environment"], request["args"], request["tasks"], emit))


def observe_import(environment: str, emit: Emit) -> None:
    """Import the module and report its side effects."""
    location = locate(environment)
    alias_where_needed()
    if location.root is not None:
        sys.path.insert(0, str(location.root))
    error = None
    with watched(location.path if location.path.is_dir() else location.path.parent, emit):
        began = time.perf_counter()
        try:
            __import__(location.module)
        except BaseException as raised:
            error = _error_text(raised)
        seconds = time.perf_counter() - began
    emit(Imported(seconds=seconds, error=error))


async def observe_environment(environment: str, args: dict[str, Any], tasks: int, emit: Emit) -> None:
    """Load the environment, look at its rows, and have scripted models attempt some of them."""
    began = time.perf_counter()
    env, missing, error = _load(environment, args)
    seconds = time.perf_counter() - began
    loader = getattr(sys.modules.get(locate(environment).module), "load_environment", None)
    described = _describe(env) if env is not None else {}
    arguments = _arguments(loader)
    named = [argument.name for argument in arguments if not argument.open]
    emit(
        Loaded(
            seconds=seconds,
            error=error,
            where=_where(loader),
            arguments=arguments,
            undescribed=undescribed(read_package(locate(environment)), named),
            missing_keys=missing,
            **described,
        )
    )
    if env is None:
        return
    try:
        rows = _rows(env, emit)
        if rows:
            await rehearse(env, rows, tasks, emit)
    except WhetError as error:
        emit(Halted(error=_error_text(error)))
    finally:
        emit(Closed(error=await _close(env)))


async def _close(env: Environment) -> str | None:
    try:
        await env.close()
    except Exception as error:
        return _error_text(error)
    return None


def _load(environment: str, args: dict[str, Any]) -> tuple[Environment | None, list[str], str | None]:
    """The environment, the environment variables that it lacked at first, and the exception that it raised."""
    missing: list[str] = []
    while True:
        try:
            return load_environment(environment, **args), missing, None
        except MissingKeyError as error:
            if set(error.missing) <= set(missing) or len(missing) > MAX_KEYS:
                return None, missing, _error_text(error)
            missing += error.missing
            os.environ.update(dict.fromkeys(error.missing, PLACEHOLDER))
        except Exception as error:
            return None, missing, _error_text(error)


def _describe(env: Environment) -> dict[str, Any]:
    weights: dict[str, float] = {}
    for rubric in rubrics_of(env.rubric):
        for name, weight in zip(rubric._get_reward_func_names(), rubric._get_reward_weights(), strict=False):
            weights[name] = weights.get(name, 0.0) + float(weight)
    return {
        "kind": next((base.__name__ for base in type(env).__mro__ if base.__module__.startswith("whet.")), ""),
        "single_turn": isinstance(env, SingleTurnEnv),
        "tools": [tool["name"] for tool in env.tool_defs or []],
        "weights": weights,
        "renamed": _renamed(env),
        "group_rewards": env.requires_group_rollouts,
    }


def _renamed(env: Environment) -> list[str]:
    """Metrics that have another name somewhere, and why."""
    if isinstance(env, EnvGroup):
        return [line for member in env.env_map.values() for line in _renamed(member)]
    names, funcs = env.rubric._get_reward_func_names(), env.rubric._get_reward_funcs()
    renamed = []
    for name, func in dict(zip(names, funcs, strict=False)).items():
        if name != (own := name_of(func)):
            renamed.append(f"another function is called '{own}' too: this one is the metric '{name}'")
        elif name in ROW_FIELDS or flat_name(name) != name:
            renamed.append(f"'{name}' is also a field of rows or a statistic: see metrics['{name}'], {PREFIX}{name}")
    return renamed


def _arguments(loader: Any) -> list[Argument]:
    if not callable(loader):
        return []
    try:
        signature = inspect.signature(loader)
    except (TypeError, ValueError):
        return []
    documented = read_docstring(inspect.getdoc(loader) or "")[1]
    return [
        Argument(
            name=parameter.name,
            typed=parameter.annotation is not parameter.empty,
            has_default=parameter.default is not parameter.empty,
            documented=bool(documented.get(parameter.name)),
            open=parameter.kind in (parameter.VAR_KEYWORD, parameter.VAR_POSITIONAL),
        )
        for parameter in signature.parameters.values()
    ]


def _where(loader: Any) -> str:
    try:
        return f"{inspect.getsourcefile(loader)}:{inspect.getsourcelines(loader)[1]}"
    except (TypeError, OSError):
        return ""


def _rows(env: Environment, emit: Emit) -> list[Mapping[str, Any]]:
    """Report on both splits; the rows to try, which are the held-out ones where there are any."""
    train, train_rows = _split(env, env.build_dataset)
    held_out, eval_rows = _split(env, env.build_eval_dataset)
    emit(row_facts.rows_event(train, held_out, [*train_rows, *eval_rows], row_facts.compare(train_rows, eval_rows)))
    return eval_rows or train_rows


def _split(env: Environment, build: Callable[[], Any]) -> tuple[Split | None, list[Mapping[str, Any]]]:
    began = time.perf_counter()
    try:
        dataset = build()
        check_answers(env, dataset or (), env.env_id)
    except Exception as error:
        return Split(rows=0, error=_error_text(error)), []
    if dataset is None:
        return None, []
    rows = list(dataset)
    return row_facts.split_facts(rows, time.perf_counter() - began), rows


def _error_text(error: BaseException) -> str:
    text = str(error)
    return (text if text and isinstance(error, Exception) else f"{type(error).__name__}: {text}")[:2000]


# What importing a module does to the world outside it, seen by Python's audit hook.
#
# Only the package's own effects are reported: an effect belongs to the innermost frame that is not of the
# standard library, so a library that looks for its cache when it is imported is not held against the package. An audit
# hook stays for the life of its process, so this is for a process of its own.

WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
EVENTS: dict[str, Effect] = {
    "os.mkdir": "writes",
    "os.remove": "writes",
    "os.rename": "writes",
    "os.rmdir": "writes",
    "os.symlink": "writes",
    "os.link": "writes",
    "os.truncate": "writes",
    "os.chmod": "writes",
    "subprocess.Popen": "process",
    "os.system": "process",
    "os.exec": "process",
    "os.fork": "process",
    "os.forkpty": "process",
    "os.posix_spawn": "process",
    "pty.spawn": "process",
    "socket.connect": "network",
    "socket.bind": "network",
    "socket.getaddrinfo": "network",
    "socket.gethostbyname": "network",
    "socket.sendto": "network",
    "_thread.start_new_thread": "thread",
    "_thread.start_joinable_thread": "thread",
    "os.putenv": "environment",
    "os.unsetenv": "environment",
    "os.chdir": "environment",
}
MAX_EFFECTS = 50
_STDLIB = tuple({sysconfig.get_path("stdlib"), sysconfig.get_path("platstdlib")})
_SITE = tuple({sysconfig.get_path("purelib"), sysconfig.get_path("platlib")})
_OWN = str(Path(__file__).parent)


@contextmanager
def watched(folder: Path, emit: Callable[[SideEffect], None]) -> Iterator[None]:
    """Report what code in `folder` does to files, processes, network, threads and environment while this is open."""
    watching = True
    seen: set[tuple[str, str]] = set()
    prefix = f"{folder.resolve()}{os.sep}"
    signals, threads = _handlers(), set(threading.enumerate())

    def hook(event: str, args: tuple[Any, ...]) -> None:
        nonlocal watching
        if not watching:
            return
        effect = EVENTS.get(event)
        if event == "open" and _writes(args):
            effect = "writes"
        if effect is None or len(seen) >= MAX_EFFECTS:
            return
        watching = False  # what reporting does is no effect
        try:
            where = _responsible(sys._getframe(1), prefix)
            if where is not None and (effect, where) not in seen:
                seen.add((effect, where))
                emit(SideEffect(effect=effect, detail=_detail(event, args), where=where))
        finally:
            watching = True

    sys.addaudithook(hook)
    try:
        yield
    finally:
        watching = False
        for number in sorted(number for number, handler in _handlers().items() if handler != signals.get(number)):
            emit(SideEffect(effect="environment", detail=f"handler of {signal.Signals(number).name}", where=""))
        if sys.version_info < (3, 12):  # which has no audit event for threads
            for thread in set(threading.enumerate()) - threads:
                if not _file_of(thread).startswith(_SITE):
                    emit(SideEffect(effect="thread", detail=f"thread {thread.name}", where=""))


def _file_of(thread: threading.Thread) -> str:
    """Where what a thread runs was written."""
    function = getattr(thread, "_target", None) or type(thread).run
    return str(getattr(getattr(function, "__code__", None), "co_filename", ""))


def _handlers() -> dict[int, Any]:
    return {number: signal.getsignal(number) for number in signal.valid_signals()}


def _writes(args: tuple[Any, ...]) -> bool:
    path, mode, flags = args
    if path in ("/dev/null", b"/dev/null") or isinstance(path, int):
        return False
    return bool(flags & WRITING) if isinstance(flags, int) else isinstance(mode, str) and not set(mode) <= set("rbtU")


def _responsible(frame: FrameType | None, prefix: str) -> str | None:
    """`file:line` in the package where it is the package's own doing, else None."""
    while frame is not None:
        file = frame.f_code.co_filename
        library = file.startswith(_SITE) or not file.startswith(_STDLIB)
        if library and not file.startswith(("<", _OWN)):
            return f"{file}:{frame.f_lineno}" if os.path.abspath(file).startswith(prefix) else None
        frame = frame.f_back
    return None


def _detail(event: str, args: tuple[Any, ...]) -> str:
    shown = [repr(arg) for arg in args if isinstance(arg, str | bytes | tuple | list) and arg]
    return f"{event} {' '.join(shown)}"[:300]


if __name__ == "__main__":
    main()
