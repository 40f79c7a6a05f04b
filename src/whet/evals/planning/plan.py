"""What one `whet eval run` is to do: from environments, config files and options to a config for each evaluation.

Options go over each other in this order, the first that has a value counts: the command line, the entry of a file, what
stands above the file's tables, the environment's own defaults (`defaults.py`), those of `EvalConfig`. Everything that
can be wrong with the whole is said before anything is run.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from whet.errors import ConfigError, EnvironmentLoadError
from whet.evals.config import EvalConfig
from whet.evals.planning.options import Layer, canonical, merged, to_config
from whet.evals.planning.toml_file import Entry, eval_defaults, read_eval_file, sets
from whet.evals.sessions.resume import find_to_resume
from whet.records.directory import METADATA, RESULTS
from whet.system.files import expanded
from whet.system.offline import check_loopback

COMMAND_LINE = "command line"
Resume = str | Path | bool | None
"""A directory to continue, or True for the newest."""


def plan_evals(
    targets: Sequence[str],
    given: Mapping[str, Any],
    *,
    note: Callable[[str], None] = lambda line: None,
    elsewhere: bool = False,
) -> list[EvalConfig]:
    """The evaluations that `targets` come to, in their order.

    Args:
        targets: environments (ids or paths) and config files (`*.toml`).
        given: options of the command line, by the names of `EvalConfig`'s fields; `resume` may be True for the newest.
        note: called with lines for the user, such as which evaluation is continued.
        elsewhere: they will run on another machine, so that an environment need not be here.

    Raises `ConfigError` for what is wrong in a file or an option, `EnvironmentLoadError` naming every environment that
    is missing, and `RunError` where there is nothing to resume.
    """
    command_line = canonical(given, COMMAND_LINE)
    entries = [entry for target in targets for entry in _entries(target)]
    _check_sweeps(entries, command_line)
    layers = [
        merged(defaults, entry.layer, command_line)
        for defaults, entry in zip(_defaults(entries, elsewhere), entries, strict=True)
    ]
    resumes = [layer.pop("resume", None) for layer in layers]
    configs = [
        to_config(layer, entry.source).model_copy(update={"varied": entry.varied}).with_endpoint()
        for layer, entry in zip(layers, entries, strict=True)
    ]
    _check_duplicates(configs, entries)
    for config in configs:
        if config.offline and config.base_url is not None:
            for url in config.base_url.split(","):
                check_loopback(url)
    _check_resumes(configs, resumes)
    return _resumed(configs, resumes, note)


def _entries(target: str) -> list[Entry]:
    if target.endswith(".toml"):
        return read_eval_file(expanded(target))
    return [Entry(COMMAND_LINE, {"environment": target})]


def _defaults(entries: Sequence[Entry], elsewhere: bool) -> list[Layer]:
    """The options that each environment's author chose. Every environment that is missing is named, in one go.

    With `elsewhere` one that is missing has none.
    """
    layers: list[Layer] = []
    missing: dict[str, None] = {}
    for entry in entries:
        try:
            layers.append(canonical(eval_defaults(entry.layer["environment"]), "environment"))
        except EnvironmentLoadError as error:
            where = "" if entry.source == COMMAND_LINE else f"{entry.source}: "
            missing[f"{where}{error}"] = None
            layers.append({})
    if missing and not elsewhere:
        raise EnvironmentLoadError("\n".join(missing))
    return layers


def _check_sweeps(entries: Sequence[Entry], command_line: Layer) -> None:
    for entry in entries:
        for name in entry.varied:
            if sets(command_line, name):
                raise ConfigError(f"{entry.source} sweeps '{name}', which the command line sets too; leave one out.")


def _check_duplicates(configs: Sequence[EvalConfig], entries: Sequence[Entry]) -> None:
    """Two evaluations that differ in nothing would be one paid for twice."""
    for index, config in enumerate(configs):
        for earlier, other in enumerate(configs[:index]):
            if config.model_copy(update={"varied": other.varied}) == other:
                raise ConfigError(
                    f"{entries[index].source}: {config.environment} with {config.model} is the same evaluation as "
                    f"{_where(entries, earlier, index)}; leave one out."
                )


def _where(entries: Sequence[Entry], earlier: int, later: int) -> str:
    if entries[earlier].source == entries[later].source:
        return "another there"
    return entries[earlier].source


def _name(config: EvalConfig) -> str:
    varied = " ".join(f"{name}={value}" for name, value in config.varied.items())
    return f"{config.label} with {config.model}" + (f" ({varied})" if varied else "")


def _check_resumes(configs: Sequence[EvalConfig], resumes: Sequence[Resume]) -> None:
    named = [resume for resume in resumes if isinstance(resume, str | Path)]
    if len(set(named)) < len(named):
        raise ConfigError(
            f"--resume {named[0]} is one evaluation, and there are {len(configs)} here; "
            "give --resume without a path to continue the newest of each."
        )
    for config, resume in zip(configs, resumes, strict=True):
        if resume and not config.save:
            raise ConfigError("--resume saves into the directory that it continues; leave --no-save out.")


def _resumed(configs: Sequence[EvalConfig], resumes: Sequence[Resume], note: Callable[[str], None]) -> list[EvalConfig]:
    """The configs, each with the directory it continues, if any.

    Raises `RunError` where the newest is to be resumed and there is none. Of several, those that have none start
    new: a session that was interrupted had not begun all of them.
    """
    newest = find_to_resume([config for config, resume in zip(configs, resumes, strict=True) if resume is True])
    resumed: list[EvalConfig] = []
    for config, resume in zip(configs, resumes, strict=True):
        directory = newest.pop(0) if resume is True else _directory(resume) if resume else None
        if resume is True and directory is not None:
            note(f"resuming {directory}")
        elif resume is True:
            note(f"nothing to resume for {_name(config)}: it starts from the beginning")
        resumed.append(config if directory is None else config.model_copy(update={"resume": directory}))
    return resumed


def _directory(resume: str | Path) -> Path:
    """An evaluation's directory, which its files name too."""
    path = expanded(resume)
    return path.parent if path.name in (RESULTS, METADATA) else path
