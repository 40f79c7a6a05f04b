"""Options of a command that are the fields of a config model: names, types, defaults and help texts come from there.

`spell_out` completes options whose value may be left out, `--shuffle [SEED]` and `--resume [PATH]`, before they are
parsed. The word after such an option is its value only where it can be nothing else, so that `--shuffle reverse-text`
names an environment. `--shuffle=3` and `--resume=PATH` are never ambiguous.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, get_args, get_origin

import typer
from pydantic.fields import FieldInfo

from whet.cli.output import json_object
from whet.config import option_of
from whet.errors import ConfigError
from whet.records.directory import METADATA, RESULTS
from whet.system.files import expanded

GIVEN = "given"
DEFAULT_SEED = "0"
SHUFFLE = ("--shuffle",)
RESUME = ("--resume", "-R")


def config_options(fields: Mapping[str, FieldInfo]) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Makes an option of each field, in place of the command's parameter `given`.

    The command receives as `given` the values that were written on the command line and no defaults, by the names of
    the fields, in the types that a TOML file has.
    """

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(command)
        def run(ctx: typer.Context, **values: Any) -> None:
            own = {name: values[name] for name in signature.parameters if name in values and name not in fields}
            written = {name: values[name] for name in fields if _is_given(ctx, name)}
            command(**own, given={name: _plain(name, fields[name], value) for name, value in written.items()})

        signature = inspect.signature(command, eval_str=True)
        parameters = [inspect.Parameter("ctx", inspect.Parameter.KEYWORD_ONLY, annotation=typer.Context)]
        for name, parameter in signature.parameters.items():
            of_fields = [_parameter(name, field) for name, field in fields.items()]
            parameters += of_fields if name == GIVEN else [parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY)]
        run.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
        run.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
        return run

    return decorate


def _parameter(name: str, field: FieldInfo) -> inspect.Parameter:
    """The parameter that typer makes an option of."""
    option = option_of(field)
    default = None if field.is_required() else field.get_default(call_default_factory=True)
    annotation, metavar = _type(field), option.metavar
    long = option.long or f"--{name.replace('_', '-')}"
    if annotation is bool and default:
        long = f"{long}/--no-{long.removeprefix('--')}"
    if _is_table(field):
        metavar, default = metavar or "JSON", "{}"
    if isinstance(default, tuple):
        default = list(default) or None
    names = [long] if option.short is None else [long, option.short]
    info = typer.Option(*names, help=field.description, metavar=metavar)
    return inspect.Parameter(
        name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=Annotated[annotation, info]
    )


def _type(field: FieldInfo) -> Any:
    """The type that an option is read as; whatever else the field demands is checked with the config."""
    annotation: Any = field.annotation
    if _is_table(field) or get_origin(annotation) is Literal:
        return str
    if get_origin(annotation) is tuple:
        item = get_args(annotation)[0]
        return list[Path] | None if item is Path else list[str] | None
    if _value_may_be_missing(field):
        return str | None
    return annotation


def _is_table(field: FieldInfo) -> bool:
    return get_origin(field.annotation) is dict


def _value_may_be_missing(field: FieldInfo) -> bool:
    """Whether an option can come without a value, which an empty text stands for."""
    return (option_of(field).metavar or "").startswith("[") and Path in get_args(field.annotation)


def _plain(name: str, field: FieldInfo, value: Any) -> Any:
    """The value as a TOML file would have it."""
    if _is_table(field):
        return json_object(option_of(field).long or f"--{name.replace('_', '-')}", value)
    if isinstance(value, list):
        texts = [str(item) for item in value]
        paths = any(isinstance(item, Path) for item in value)
        return texts if paths else [part.strip() for text in texts for part in text.split(",")]
    if _value_may_be_missing(field):
        return value or True
    return str(value) if isinstance(value, Path) else value


def _is_given(ctx: typer.Context, name: str) -> bool:
    """Whether an option was written on the command line, if only with the value it has anyway."""
    source = ctx.get_parameter_source(name)
    return source is not None and source.name != "DEFAULT"


def check_config_first(context: typer.Context, config: Path) -> None:
    """Raise `ConfigError` for the mistake of a `--key value` before CONFIG, which is then read as CONFIG."""
    if config.suffix != ".toml" and not config.exists():
        for token in context.args:
            if token.endswith(".toml"):
                command = f"{context.command_path} {token} ..."
                raise ConfigError(f"'{config}' is not a config file. CONFIG comes before --key value: {command}")


def spell_out(arguments: Sequence[str]) -> list[str]:
    """The arguments with a value joined to each of these options: `--shuffle=0`, and `--resume=` for the newest.

    Raises `ConfigError` for a word after `--resume` that could be either a directory or an environment.
    """
    result: list[str] = []
    waiting = list(arguments)
    while waiting:
        word = waiting.pop(0)
        following = waiting[0] if waiting and not waiting[0].startswith("-") else None
        if word == "--":
            return [*result, word, *waiting]
        if word in SHUFFLE:
            seed = waiting.pop(0) if following is not None and following.isdigit() else DEFAULT_SEED
            result.append(f"--shuffle={seed}")
        elif word in RESUME:
            path = waiting.pop(0) if following is not None and _is_evaluation(following) else ""
            result.append(f"--resume={path}")
        else:
            result.append(word)
    return result


def _is_evaluation(word: str) -> bool:
    path = expanded(word)
    if path.name in (RESULTS, METADATA) or any((path / name).exists() for name in (RESULTS, METADATA)):
        return True
    if "/" in word and not path.exists():
        raise ConfigError(
            f"--resume {word}: there is no evaluation. Write --resume=PATH for a directory, or put --resume after "
            "the environment to continue the newest."
        )
    return False
