"""How a search ended, and what to do next: the exact command that evaluates the best prompt."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from whet.envs.config.sections import COMPONENTS
from whet.envs.config.texts import SYSTEM_PROMPT, texts_for
from whet.envs.environment import Environment
from whet.envs.loading import takes_system_prompt
from whet.evals.config import EvalConfig, command_words
from whet.gepa.components import BEST_COMPONENTS, of_environment
from whet.gepa.config import EnvSection, GepaConfig
from whet.gepa.records.stored import BEST_PROMPT
from whet.gepa.types import Candidate, CandidateRecord, Confirmation
from whet.records.lock import EndState
from whet.system.redaction import redacted


@dataclass(frozen=True, slots=True)
class SearchOutcome:
    """The result of `whet gepa run`."""

    state: EndState | Literal["planned"]
    message: str  # why it ended
    directory: Path
    spent: int = 0
    max_calls: int = 0
    cost: float | None = None
    candidates: int = 0  # proposals that were decided on
    accepted: int = 0
    seed_mean: float | None = None  # on validation
    best: CandidateRecord | None = None
    confirmation: Confirmation | None = None
    evaluate: list[str] = field(default_factory=list)  # a command for each environment
    report: Path | None = None
    resume: str | None = None
    exit_code: int = 0
    plan: list[str] = field(default_factory=list)  # of a dry run, in words


def evaluate_commands(
    config: GepaConfig, policy: EvalConfig, environments: Mapping[str, Environment], best: Candidate
) -> list[str]:
    """`whet eval run ...` with the best texts instead of each environment's own."""
    return [shlex.join(_evaluate(config, policy, section, environments[section.label], best)) for section in config.env]


def resume_command(config: GepaConfig) -> str:
    return shlex.join(["whet", "gepa", "run", "--resume", str(config.directory), *_env_files(config)])


def _evaluate(
    config: GepaConfig, policy: EvalConfig, section: EnvSection, env: Environment, best: Candidate
) -> list[str]:
    texts = texts_for(env, section.label, best)
    # A loader that takes a system prompt may add to it: there the texts go in as they are to be shown.
    plain = set(texts) == {SYSTEM_PROMPT} and not takes_system_prompt(section.id)
    file = BEST_PROMPT if plain else BEST_COMPONENTS
    if len(config.env) > 1 and not (plain and SYSTEM_PROMPT in best):
        file = of_environment(file, section.label)
    args: dict[str, Any] = {
        name: value for name, value in section.loader_args().items() if name not in (SYSTEM_PROMPT, COMPONENTS)
    }
    args[SYSTEM_PROMPT if plain else COMPONENTS] = {"file": str(config.directory / file)}
    evaluation = policy.model_copy(update={"environment": section.id, "env_args": args})
    return [*command_words(redacted(evaluation.model_dump(mode="json"))), *_env_files(config)]


def _env_files(config: GepaConfig) -> list[str]:
    """Files with keys are never saved, so they have to be named again."""
    return [word for file in config.env_file for word in ("--env-file", str(file))]
