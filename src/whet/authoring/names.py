"""What an environment may be called: its id, the module and folder of the same name, and a class. Pure.

An id is a package's name (`word-game`); module and folder have underscores for the dashes (`word_game`).
"""

from __future__ import annotations

import keyword
import re
import sys
from dataclasses import dataclass

from whet.errors import ConfigError

_ID = re.compile(r"[a-z][a-z0-9]*(-[a-z0-9]+)*")
_RESERVED = frozenset({"environments", "setup", "site", "test", "tests", "verifiers", "whet"})
MAX_LENGTH = 60


@dataclass(frozen=True, slots=True)
class Names:
    """The spellings of one name."""

    id: str  # word-game
    module: str  # word_game; also the folder
    cls: str  # WordGameEnv


def names_of(name: str) -> Names:
    """The spellings of `name`, whose words dashes or underscores divide.

    Raises `ConfigError` for a name that cannot be used.
    """
    env_id = name.replace("_", "-")
    if not _ID.fullmatch(env_id) or len(env_id) > MAX_LENGTH:
        proposal = "-".join(re.findall(r"[a-z0-9]+", name.lower())).lstrip("0123456789-")[:MAX_LENGTH].rstrip("-")
        hint = f" For example: {proposal}" if _ID.fullmatch(proposal) else ""
        raise ConfigError(
            f"'{name}' cannot be the name of an environment: use at most {MAX_LENGTH} lower-case letters, digits and "
            f"single dashes, with a letter first.{hint}"
        )
    module = env_id.replace("-", "_")
    if keyword.iskeyword(module):
        raise ConfigError(f"'{name}' is a word of Python's own, so no module can have that name. Choose another.")
    if module in sys.stdlib_module_names:
        raise ConfigError(f"'{name}' is a module of Python's standard library, which would hide it. Choose another.")
    if module in _RESERVED:
        raise ConfigError(f"'{name}' means something else to whet or to Python's tools. Choose another.")
    cls = "".join(part.capitalize() for part in env_id.split("-"))
    return Names(env_id, module, cls if cls.endswith("Env") else f"{cls}Env")
