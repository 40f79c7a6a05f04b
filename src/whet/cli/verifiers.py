"""The commands of `verifiers.scripts` (`vf-eval` and others), as the commands of whet that do the same."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import NoReturn

from whet.cli.main import main
from whet.errors import ConfigError

Main = Callable[..., int]


def _runs(*words: str) -> Main:
    def run(argv: Sequence[str] | None = None) -> int:
        """Run the command with these arguments, or this process's; returns its exit code."""
        return main([*words, *(sys.argv[1:] if argv is None else argv)])

    return run


def _refuses(reason: str) -> Callable[..., NoReturn]:
    def refuse(argv: Sequence[str] | None = None) -> NoReturn:
        raise ConfigError(reason)

    return refuse


SCRIPTS: dict[str, Callable[..., int]] = {
    "eval": _runs("eval", "run"),
    "gepa": _runs("gepa", "run"),
    "init": _runs("env", "init"),
    "install": _runs("env", "install"),
    "rl": _runs("train", "run"),
    "setup": _runs("lab", "setup"),
    "train": _runs("train", "run"),
    "tui": _runs("view"),
    "vllm": _runs("serve"),
    "build": _refuses(
        "vf-build makes an image for an OpenEnv server, which whet has not: write a MultiTurnEnv instead."
    ),
    "prime_rl": _refuses("prime-rl starts another library's training: use `whet train run` with a config instead."),
}


def __getattr__(name: str) -> Callable[..., int]:
    """`main_of_eval` and the like: what the alias serves as `main` of `verifiers.scripts.eval`."""
    try:
        return SCRIPTS[name.removeprefix("main_of_")]
    except KeyError:
        raise AttributeError(name) from None
