"""The checks of a submission's config: those of the command that will run it, and what a service refuses besides.

The config is loaded from a folder in which its files lie under their submitted names, by the same code as on a user's
machine. No code of the submission runs. A config names nothing outside of its folder: paths are checked before
anything is read.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath
from typing import Any

from whet.envs.identity.ids import EnvironmentId, parse_id
from whet.errors import EnvironmentLoadError, WhetError
from whet.evals.config import EvalConfig
from whet.evals.planning.options import to_config
from whet.evals.planning.toml_file import read_eval_file
from whet.gepa.config import GepaConfig
from whet.gepa.options import load_config as load_search
from whet.hub.errors import HubError
from whet.parsing import parse_toml
from whet.records.directory import RUN_CONFIG
from whet.rl.config import RunConfig, load_run_config
from whet.rl.sft.config import SftConfig, load_sft_config
from whet.system.redaction import SHORTEST, redacted, redacted_keys

MOST_FILES = 1_000
LONGEST_NAME, DEEPEST_NAME = 400, 32
"""Characters and parts of the name of a submitted file."""
MOST_PROBLEMS = 20
NOT_SUBMITTED = {
    "env_file": "the values of env files are submitted as secrets",
    "runs_directory": "the service has a folder for each run",
    "output_directory": "the service has a folder for each run",
    "output_dir": "the service has a folder for each run",
    "resume": "restart the run instead",
    "resume_path": "restart the run instead",
    "save": "the service keeps every result",
    "save_results": "the service keeps every result",
}
"""Keys that have no place in a submission, and why. By name, wherever a config may have them."""

FILE_KEYS = ("path", "endpoints", "endpoints_path", "file")
"""Keys whose values are paths: of [data], [validation] and [lora], of short names of models, of texts."""
TEXT_FILES = ("system_prompt.file", "components.file")
"""Arguments of environments that are read when the config is."""
MODEL_KEYS = ("model", "endpoint_id", "reflection_model", "reference")
_NAME = re.compile(r"[^\x00-\x1f\x7f\\:*?\"<>|\ud800-\udfff]+")
_PART_BYTES = 255  # of file systems
_PREFIX = re.compile(
    r"^(?P<table>\[\[\w+\]\] \d+: )?(?P<unknown>unknown key )?'(?P<key>[^']+)'(?P<rest>.+)$", re.DOTALL
)


@dataclass(frozen=True, slots=True)
class CheckedConfig:
    """What the service keeps of a config that a command would run."""

    model: str
    environments: tuple[str, ...]  # ids, as they are written
    labels: tuple[str, ...]  # names of environments in metrics
    max_steps: int | None


class SubmissionRefusedError(WhetError):
    """What is wrong with a submission: fields, each with a reason."""

    def __init__(self, problems: Sequence[tuple[str, str]]) -> None:
        super().__init__("; ".join(f"{field}: {reason}" for field, reason in problems))
        self.problems = list(problems)

    def answer(self) -> HubError:
        """As the API answers it: a line a problem."""
        details = [{"field": field[:100], "reason": reason[:500]} for field, reason in self.problems[:MOST_PROBLEMS]]
        more = len(self.problems) - len(details)
        lines = [f"{one['field']}: {one['reason']}" for one in details] + ([f"and {more} more"] if more else [])
        return HubError("refused_config", "\n".join(lines), details)


def check_file_names(files: Mapping[str, str]) -> None:
    """Raises `SubmissionRefusedError` for names outside `submission/`, and where one is a folder of another."""
    problems = []
    if len(files) > MOST_FILES:
        problems.append(("files", f"at most {MOST_FILES} are allowed, and there are {len(files)}"))
    short = {name for name in files if len(name) <= LONGEST_NAME and name.count("/") < DEEPEST_NAME}
    folders = {str(parent) for name in short for parent in PurePosixPath(name).parents}
    for name in files:
        if name not in short:
            limits = f"{LONGEST_NAME} characters and {DEEPEST_NAME} folders"
            problems.append((f"files.{name[:80]!r}", f"is longer or deeper than {limits}"))
        elif RUN_CONFIG in map(str, PurePosixPath(name).parents):
            problems.append((f"files.{name[:80]!r}", f"would be in {RUN_CONFIG}, which is a file"))
        elif not is_inside(name) or name != str(PurePosixPath(name)):
            problems.append((f"files.{name[:80]!r}", "is no relative path below the submission"))
        elif name == RUN_CONFIG or name in folders:
            problems.append((f"files.{name[:80]}", "is the name of something else too"))
    if problems:
        raise SubmissionRefusedError(problems)


def is_inside(path: str) -> bool:
    """Whether a relative path stays below its folder, as text."""
    parts = path.split("/")
    if path[:1] in ("/", "~") or not all(_NAME.fullmatch(part) and part not in (".", "..") for part in parts):
        return False
    return all(len(part.encode()) <= _PART_BYTES for part in parts)


def leads_out(path: str) -> bool:
    """Whether a text, read as a path, begins outside of its folder or leaves it."""
    return path.startswith(("/", "~", "\\", "./")) or ".." in path.split("/")


def check_config(kind: str, folder: Path, text: str, files: Mapping[str, str]) -> CheckedConfig:
    """Load `folder`/config.toml, which has `text`, next to its files. Raises `SubmissionRefusedError`."""
    try:
        tables = parse_toml(text)
    except ValueError as error:
        raise SubmissionRefusedError([("config", f"not valid TOML: {str(error).rstrip('.')}")]) from None
    problems = [*_refused_keys(tables, files), *_with_secrets(tables)]
    if problems:
        raise SubmissionRefusedError(problems)
    path = folder / RUN_CONFIG
    try:
        checked = _load(kind, path)
    except WhetError as error:
        lines = [line.removeprefix(f"{path}: ").replace(str(path), RUN_CONFIG) for line in str(error).splitlines()]
        raise SubmissionRefusedError([_problem(line.replace(str(folder), ".")) for line in lines]) from None
    return replace(checked, model=checked.model.removeprefix(f"{folder}/"))


def check_secrets(values: Mapping[str, str], text: str) -> None:
    """Raises `SubmissionRefusedError` where the value of a secret is in the config, which others can read."""
    for name, value in values.items():
        if len(value) >= SHORTEST and value in text:
            raise SubmissionRefusedError(
                [(f"secrets.{name}", "its value is also in the config, which others can read")]
            )


def _load(kind: str, path: Path) -> CheckedConfig:
    if kind == "evaluation":
        layers = [(entry.layer, entry.source) for entry in read_eval_file(path)]
        evaluations: list[EvalConfig] = [to_config(layer, source) for layer, source in layers]
        ids = tuple(dict.fromkeys(one.environment for one in evaluations))
        return CheckedConfig(evaluations[0].model, ids, tuple(map(_label, ids)), None)
    if kind == "search":
        search: GepaConfig = load_search(str(path), {})
        ids = tuple(dict.fromkeys(section.id for section in search.env))
        return CheckedConfig(search.model, ids, tuple(map(_label, ids)), None)
    config: RunConfig | SftConfig = load_run_config(path) if kind == "training" else load_sft_config(path)
    sections = [*(config.env if isinstance(config, RunConfig) else ()), *config.eval.env]
    ids = tuple(dict.fromkeys(section.id for section in sections))
    labels = tuple(dict.fromkeys(section.label for section in sections))
    return CheckedConfig(config.model, ids, labels, config.max_steps)


def _label(text: str) -> str:
    return parse_id(text, of_hub=True).name


def environment_id(text: str) -> EnvironmentId:
    """The parts of an id that a submission may have. Raises `SubmissionRefusedError` for paths and URLs."""
    try:
        parsed = parse_id(text, of_hub=True)
    except EnvironmentLoadError as error:
        raise SubmissionRefusedError([("environments", str(error))]) from None
    if parsed.path is not None or parsed.url is not None:
        reason = f"'{text[:80]}' is a path or a URL; push it to the hub, and name it as owner/name@version"
        raise SubmissionRefusedError([("environments", reason)])
    return parsed


def _problem(line: str) -> tuple[str, str]:
    """Field and reason of a line of a `ConfigError`."""
    match = _PREFIX.match(line)
    if match is None:
        return "config", line
    table = (match["table"] or "").removesuffix(": ")
    field = " ".join(filter(None, (table, match["key"])))
    return field, f"unknown key{match['rest']}" if match["unknown"] else match["rest"].removeprefix(":").strip()


def _refused_keys(tables: Mapping[str, Any], files: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """Keys that have no place in a submission, and values that lead out of its folder."""
    folders = {str(parent) for name in files for parent in PurePosixPath(name).parents} - {"."}
    for name, key, value, free in _values(tables):
        if key in NOT_SUBMITTED and name.endswith(key) and not free:
            yield name, f"has no place in a submission: {NOT_SUBMITTED[key]}"
        elif isinstance(value, str) and (key in FILE_KEYS if not free else name.endswith(TEXT_FILES)):
            if not is_inside(value):
                yield name, f"'{value[:80]}' is no relative path below the submission"
            elif value not in files and value not in folders:
                yield name, f"'{value[:80]}' is not among the submitted files"
        elif isinstance(value, str) and key in MODEL_KEYS and not free:
            if leads_out(value) or (value.endswith(".gguf") and value not in files):
                yield name, f"'{value[:80]}' is neither a model's name nor among the submitted files"
        elif isinstance(value, str) and name == "seed_prompt" and "\n" not in value and leads_out(value):
            yield name, f"'{value[:80]}' is no relative path below the submission, and would be read as one"


ARGUMENTS = ("args", "taskset", "harness", "env_args", "extra_env_kwargs", "sampling_args", "sampling", "loss_args")
"""Tables whose keys an environment or a model gives their meaning."""


def _values(value: Any, name: str = "", key: str = "", free: bool = False) -> Iterator[tuple[str, str, Any, bool]]:
    """Every value with its dotted name, its key, and whether it is in a table whose keys are not whet's."""
    if isinstance(value, Mapping):
        if name:
            yield name, key, value, free
        for inner, item in value.items():
            free_inside = free or key in ARGUMENTS
            yield from _values(item, f"{name}.{inner}".lstrip("."), str(inner), free_inside)
    elif isinstance(value, list):
        if name:
            yield name, key, value, free
        for index, item in enumerate(value):
            yield from _values(item, f"{name}.{index}", key, free)
    else:
        yield name, key, value, free


def _with_secrets(tables: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    for name in redacted_keys(redacted(tables)):
        yield name, "has a secret in it, and others can read the config. Submit it as a secret"
