"""Options whose value may be left out: `--shuffle [SEED]` and `--resume [PATH]`, spelled out before they are parsed.

The word after such an option is its value only where it can be nothing else, so that `--shuffle reverse-text` names an
environment. `--shuffle=3` and `--resume=PATH` always say what is meant.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from whet.errors import ConfigError
from whet.rollouts.results import METADATA, RESULTS

DEFAULT_SEED = "0"
SHUFFLE = ("--shuffle",)
RESUME = ("--resume", "-R")


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
    path = Path(word).expanduser()
    if path.name in (RESULTS, METADATA) or any((path / name).exists() for name in (RESULTS, METADATA)):
        return True
    if "/" in word and not path.exists():
        raise ConfigError(
            f"--resume {word}: no evaluation lies there. Write --resume=PATH for a directory, or put --resume behind "
            "the environment to continue the newest."
        )
    return False
