"""`load_environment(id, **args)`: from an environment's id to an `Environment`.

An id is the name of an installed package (`reverse-text`), a path to a package or a file, or the name of a folder in
`environments/` under the current directory, installed or not. An id with an owner, a version, or the URL of a wheel or
a commit (`identity/ids.py`) loads what is installed from there and nothing else; a prefix of `CONTRACTS` there, such as
`openenv:`, and a server, package or folder an environment of another contract. Every environment also takes
`system_prompt`, unless its loader has that argument itself, and `components`, texts by name (`texts.py`). Failures are
`EnvironmentLoadError`s that say where and what to do. A package written for `verifiers` 0.1 runs unmodified
(`compat/alias.py`).
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import importlib.metadata
import importlib.util
import inspect
import sys
import traceback
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from whet.envs.config.arguments import nearest
from whet.envs.config.sections import COMPONENTS, SECTIONS, typed_config, with_files
from whet.envs.config.texts import SYSTEM_PROMPT
from whet.envs.environment import Environment
from whet.envs.identity.ids import parse_id
from whet.envs.identity.installed import verify
from whet.errors import EnvironmentLoadError, WhetError
from whet.parsing import parse_toml

LOCAL_FOLDER = "environments"


def load_environment(env_id: str, **env_args: Any) -> Environment:
    """The environment that the package's `load_environment(**env_args)` returns, with `env_id` and `env_args` set."""
    _contract("alias").alias_where_needed()
    module = _find_module(env_id)
    loader = _loader(env_id, module)
    if not callable(loader):
        raise EnvironmentLoadError(
            f"environment '{env_id}': {_file_of(module)} has no function load_environment. "
            "Define one there, or rename the environment if this is another package of the same name."
        )
    env_args = with_files(env_args, Path(), f"environment '{env_id}'")
    texts, own_args = _split_texts(env_id, loader, env_args)
    _check_arguments(env_id, loader, own_args)
    try:
        env = loader(**typed_config(loader, own_args))
    except WhetError:
        raise
    except Exception as error:
        raise EnvironmentLoadError(
            f"environment '{env_id}': load_environment raised {_raised(error)}. "
            f"It was called with {_shown(own_args) or 'no arguments'}."
            f"{_advice_on(error, module.__name__, Path(_file_of(module)).parent)}"
        ) from error
    if not isinstance(env, Environment):
        raise EnvironmentLoadError(
            f"environment '{env_id}': load_environment in {_file_of(module)} returned {type(env).__name__}; "
            f"it should return a whet Environment.{_foreign(env)}"
        )
    env.env_id = env.env_id or env_id
    env.env_args = env.env_args or env_args
    if texts:
        env.reword(texts)
    return env


def takes_system_prompt(env_id: str) -> bool:
    """Whether the environment's own loader has an argument `system_prompt`."""
    return SYSTEM_PROMPT in inspect.signature(_loader(env_id, _find_module(env_id))).parameters


def _loader(env_id: str, module: ModuleType) -> Any:
    """The module's `load_environment`; that of another contract is given what follows the contract in the id."""
    loader, target = getattr(module, "load_environment", None), parse_id(env_id).target
    return loader if target is None or loader is None else functools.partial(loader, target)


@dataclass(frozen=True, slots=True)
class Location:
    """Where an environment's module is, found without importing it."""

    module: str
    root: Path | None  # goes first on the import path; None where the module is installed
    path: Path  # the module's file, or the folder of its package


def locate(env_id: str) -> Location:
    """The location of an environment, by its id or path; a package that an id pins down is verified.

    Raises `EnvironmentLoadError` if there is none, or another than the id names.
    """
    wanted = parse_id(env_id)
    if wanted.path is not None:
        return _at_path(env_id, wanted.path)
    if wanted.contract is not None:
        spec = importlib.util.find_spec(wanted.module)
        assert spec is not None
        assert spec.origin is not None
        return Location(wanted.module, None, Path(spec.origin))
    location = _installed(wanted.module)
    if wanted.verified:
        file = None if location is None else location.path / "__init__.py" if location.path.is_dir() else location.path
        verify(wanted, file)
        assert location is not None  # or it was refused
        return location
    if location is not None:
        return location
    for folder in (Path(LOCAL_FOLDER) / wanted.name, Path(LOCAL_FOLDER) / wanted.module):
        if folder.is_dir():
            return _at_path(env_id, folder)
    raise EnvironmentLoadError(_not_found(wanted.name))


def _installed(name: str) -> Location | None:
    if name.isidentifier():
        with contextlib.suppress(ValueError, ImportError):
            if name in sys.modules:
                return Location(name, None, Path(_file_of(sys.modules[name])))
            spec = importlib.util.find_spec(name)
            if spec is not None:
                folders = spec.submodule_search_locations
                return Location(name, None, Path(next(iter(folders), name) if folders else spec.origin or name))
    return None


def _at_path(env_id: str, path: Path) -> Location:
    path = path.resolve()
    if not path.exists():
        raise EnvironmentLoadError(f"environment '{env_id}': {path} does not exist.")
    if path.is_file():
        return Location(path.stem, path.parent, path)
    name = path.name.replace("-", "_")
    for root in (path, path / "src"):
        for file in (root / name, root / f"{name}.py"):
            if file.is_dir() or (file.suffix and file.exists()):
                return Location(name, root, file)
    if (path / "__init__.py").exists():
        return Location(name, path.parent, path)
    raise EnvironmentLoadError(
        f"environment '{env_id}': {path} has no {name}.py and no package {name}. Name the module after the folder."
    )


def _find_module(env_id: str) -> ModuleType:
    location = locate(env_id)
    if location.root is None:
        return _import(env_id, location.module)
    loaded = sys.modules.get(location.module)
    if loaded is not None and not _file_of(loaded).startswith(str(location.root)):
        raise EnvironmentLoadError(
            f"environment '{env_id}': a module {location.module} is already imported from {_file_of(loaded)}. "
            f"Rename {location.path}."
        )
    with _on_path(location.root):
        return _import(env_id, location.module, location.root)


def _import(env_id: str, name: str, root: Path | None = None) -> ModuleType:
    try:
        return importlib.import_module(name)
    except WhetError:
        raise
    except Exception as error:
        raise EnvironmentLoadError(
            f"environment '{env_id}' fails on import: {_raised(error)}.{_advice_on(error, name, root)}"
        ) from error


def _contract(module: str) -> Any:
    """A module of `whet.compat`, imported by its name: the room is above this one."""
    return importlib.import_module(f"whet.compat.{module}")


def _advice_on(error: BaseException, module: str, folder: Path | None) -> str:
    """Advice for a failure: the `verifiers` that its package requires, or the name that is missing; possibly empty."""
    lines: list[str] = []
    with contextlib.suppress(importlib.metadata.PackageNotFoundError):
        lines += importlib.metadata.requires(module.partition(".")[0]) or ()
    for parent in () if folder is None else (folder, *folder.parents[:2]):
        if (parent / "pyproject.toml").is_file():
            with contextlib.suppress(OSError, ValueError, LookupError, TypeError, AttributeError):
                declared = parse_toml((parent / "pyproject.toml").read_text("utf-8"))["project"].get("dependencies")
                lines += [line for line in declared or () if isinstance(line, str)]
            break
    advice: str = _contract("gaps").advice_on_requirements(lines) or _contract("alias").advice_on(error)
    return advice


@contextlib.contextmanager
def _on_path(root: Path) -> Iterator[None]:
    """`root` first on the import path, and kept at its end: an environment may import its own modules later."""
    entry = str(root)
    sys.path.insert(0, entry)
    importlib.invalidate_caches()
    try:
        yield
    finally:
        sys.path.remove(entry)
        if entry not in sys.path:
            sys.path.append(entry)


def _not_found(name: str) -> str:
    known = [folder.name for folder in Path(LOCAL_FOLDER).glob("*") if folder.is_dir()] if _is_local() else []
    near = nearest(name, known) if known else ""
    hint = near if "Did you mean" in near else ""
    return (
        f"environment '{name}' is not installed and there is no {LOCAL_FOLDER}/{name} here.{hint} "
        f"Install its package (pip install {name}, or pip install -e PATH), or give its path."
    )


def _is_local() -> bool:
    return Path(LOCAL_FOLDER).is_dir()


def _split_texts(env_id: str, loader: Any, env_args: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """The texts that replace the environment's own, and the other arguments, for its loader."""
    own, parameters = dict(env_args), inspect.signature(loader).parameters
    texts: dict[str, Any] = {}
    if COMPONENTS in own and COMPONENTS not in parameters:
        components = own.pop(COMPONENTS)
        if not isinstance(components, Mapping):
            raise EnvironmentLoadError(
                f"environment '{env_id}': components should be texts by name, or {{\"file\": PATH}} "
                f"(got {components!r:.80})."
            )
        texts |= components
    if SYSTEM_PROMPT in own and SYSTEM_PROMPT not in parameters:
        texts[SYSTEM_PROMPT] = own.pop(SYSTEM_PROMPT)
    return texts, own


def _check_arguments(env_id: str, loader: Any, env_args: dict[str, Any]) -> None:
    signature = inspect.signature(loader)
    parameters = signature.parameters.values()
    names = [parameter.name for parameter in parameters if parameter.kind is not parameter.VAR_KEYWORD]
    if not any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters):
        for given in env_args:
            if given not in names:
                raise EnvironmentLoadError(
                    f"environment '{env_id}' has no argument '{given}'.{nearest(given, names)}{_no_sections(env_args)}"
                )
    try:
        signature.bind(**env_args)
    except TypeError as error:
        raise EnvironmentLoadError(f"environment '{env_id}': {error}. It takes {signature}.") from error


def _no_sections(env_args: dict[str, Any]) -> str:
    """Advice if a config has a taskset or a harness and the environment takes none."""
    config = env_args.get("config")
    if not isinstance(config, dict) or not set(config) <= set(SECTIONS):
        return ""
    return " [env.taskset] and [env.harness] are for environments whose load_environment takes a config."


def _foreign(env: Any) -> str:
    """Advice if the environment's class is one of the real `verifiers`."""
    if not any(base.__module__.startswith("verifiers.") for base in type(env).__mro__):
        return ""
    return (
        " This is one of the installed verifiers; uninstall that, or call whet.install_verifiers_alias() before "
        "anything imports it."
    )


def _raised(error: BaseException) -> str:
    """`ValueError: text (file.py:12)`: the innermost line outside whet and the import machinery."""
    own = str(Path(__file__).parents[1])
    frames = [
        frame
        for frame in traceback.extract_tb(error.__traceback__)
        if not frame.filename.startswith((own, "<frozen", str(Path(importlib.__file__).parent)))
    ]
    if isinstance(error, SyntaxError) and error.filename:
        return f"{type(error).__name__}: {error.msg} ({error.filename}:{error.lineno})"
    where = f" ({frames[-1].filename}:{frames[-1].lineno})" if frames else ""
    return f"{type(error).__name__}: {error}{where}"


def _file_of(module: ModuleType) -> str:
    return str(getattr(module, "__file__", None) or next(iter(getattr(module, "__path__", [])), module.__name__))


def _shown(env_args: dict[str, Any]) -> str:
    return ", ".join(f"{name}={value!r}" for name, value in env_args.items())
