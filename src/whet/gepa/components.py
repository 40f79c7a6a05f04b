"""Which texts of environments are optimised: the candidate that a search begins from, and candidates put to use.

A component is named as in `envs/config/texts.py`. Of several environments, what is the same in all that have it is one
component; what is not has the environment's label: `system_prompt@wordle`.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from whet.envs.config.texts import JUDGE, SYSTEM_PROMPT, TOOL, joined, texts_for
from whet.envs.environment import Environment
from whet.errors import ConfigError, GepaError
from whet.gepa.config import Kind
from whet.gepa.records.stored import BEST_PROMPT
from whet.gepa.types import Candidate
from whet.system.files import expanded

BEST_COMPONENTS = "best_components.json"
PROMPT_SUFFIXES = (".txt", ".md")


def seed_candidate(
    environments: Mapping[str, Environment], kinds: Sequence[Kind], seed_prompt: str | None = None
) -> dict[str, str]:
    """The texts to begin from. With `seed_prompt`, the environments have it from here on.

    An environment without a system prompt begins from an empty one. Raises `GepaError` where none would have an effect,
    and for kinds of texts that no environment has.
    """
    if seed_prompt is not None and "system_prompt" not in kinds:
        raise GepaError("a seed prompt would have no effect: system_prompt is not among the components.")
    for label, env in environments.items():
        begin = seed_prompt
        if begin is None and "system_prompt" in kinds and not any(map(_is_system_prompt, env.prompt_texts())):
            begin = ""
        if begin is not None:
            try:
                env.reword({SYSTEM_PROMPT: begin})
            except ConfigError as error:
                raise GepaError(f"environment {label}: {error}") from None
    texts = {
        label: {name: text for name, text in env.prompt_texts().items() if _kind(name) in kinds}
        for label, env in environments.items()
    }
    texts_by_name = joined(texts)
    for kind in kinds:
        if not any(_kind(name) == kind for name in texts_by_name):
            raise GepaError(f"no environment has {_WHAT[kind]}; leave {kind} out of the components.")
    return texts_by_name


@contextmanager
def with_components(env: Environment, label: str, candidate: Candidate) -> Iterator[None]:
    """Rollouts of `env` that are begun within have the candidate's texts. It is shared by all that run at the time."""
    with env.worded(texts_for(env, label, candidate)):
        yield


def read_seed_prompt(value: Any, folder: Path, where: str) -> str:
    """A text, or that of a file: `{"file": PATH}`, the path of a file that is there, or what can be nothing else.

    Raises `ConfigError` for a file that cannot be read.
    """
    path = value.get("file") if isinstance(value, Mapping) else value
    if not isinstance(path, str):
        raise ConfigError(f"{where}: seed_prompt should be a text, or {{file = PATH}} (got {value!r:.80}).")
    is_named = "\n" not in path and len(path) < 1000
    file = folder / expanded(path) if is_named else None
    named = file is not None and (file.is_file() or (file.suffix in PROMPT_SUFFIXES and " " not in path))
    if not isinstance(value, Mapping) and not named:
        return path
    try:
        assert file is not None
        return file.read_text(encoding="utf-8").removesuffix("\n")
    except (OSError, UnicodeDecodeError) as error:
        reason = (error.strerror or str(error)) if isinstance(error, OSError) else "it is not UTF-8 text"
        raise ConfigError(f"{where}: the seed prompt is to be read from {file}: {reason}.") from None


def best_files(candidate: Candidate, environments: Mapping[str, Environment]) -> dict[str, str]:
    """What is written of the best candidate: files by name, as arguments of environments take them.

    `best_components.json` has all texts. Where texts differ between environments, each has its own files besides:
    `best_prompt-wordle.txt`, `best_components-wordle.json`.
    """
    files = {BEST_COMPONENTS: _as_json(candidate)}
    if SYSTEM_PROMPT in candidate:
        files[BEST_PROMPT] = candidate[SYSTEM_PROMPT] + "\n"
    if len(environments) > 1:
        for label, env in environments.items():
            texts = texts_for(env, label, candidate)
            files[of_environment(BEST_COMPONENTS, label)] = _as_json(texts)
            if SYSTEM_PROMPT in texts and SYSTEM_PROMPT not in candidate:
                files[of_environment(BEST_PROMPT, label)] = texts[SYSTEM_PROMPT] + "\n"
    return files


def of_environment(name: str, label: str) -> str:
    """`best_prompt-wordle.txt`"""
    stem, _, suffix = name.rpartition(".")
    return f"{stem}-{label}.{suffix}"


def _as_json(texts: Mapping[str, str]) -> str:
    return json.dumps(dict(texts), indent=2, ensure_ascii=False) + "\n"


def _is_system_prompt(name: str) -> bool:
    return _kind(name) == "system_prompt"


def _kind(name: str) -> Kind | None:
    base = name.partition("@")[0]
    if base == SYSTEM_PROMPT:
        return "system_prompt"
    if base.startswith(TOOL):
        return "tools"
    return "judge" if base.partition(":")[0] == JUDGE else None


_WHAT: dict[Kind, str] = {
    "system_prompt": "a system prompt",
    "tools": "tools that are known before a rollout begins",
    "judge": "a JudgeRubric",
}
