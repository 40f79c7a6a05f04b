"""What an environment's author thinks a fair evaluation: `[tool.whet.eval]` in the package's `pyproject.toml`.

    [tool.whet.eval]
    num_examples = 32
    rollouts_per_example = 4
    max_tokens = 64

It is read where that file belongs to the module: in `environments/`, by path, and for a package installed with `-e`.
`[tool.verifiers.eval]`, as packages for `verifiers` 0.1 have it, is read too. What the command line says goes first.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from packaging.utils import canonicalize_name

from whet.config import part_of, read_toml, table_of, validate
from whet.envs.loading import Location, locate
from whet.errors import ConfigError
from whet.evals.config import EvalConfig

EvalDefaults = part_of(
    EvalConfig, "EvalDefaults", ("num_examples", "rollouts_per_example", "max_tokens", "temperature")
)
"""`[tool.whet.eval]`: the author's choice of an evaluation; each key is an option of `whet eval run`."""


def eval_defaults(environment: str) -> dict[str, Any]:
    """The options that the environment's package sets; none where it sets none. Nothing of it is imported."""
    file = _pyproject(locate(environment))
    if file is None:
        return {}
    tool = table_of(read_toml(file), "tool")
    ours = table_of(tool, "whet").get("eval")
    theirs = table_of(table_of(tool, "verifiers"), "eval")
    if ours is None:
        ours = {key: theirs[key] for key in ("num_examples", "rollouts_per_example") if key in theirs}
    if not isinstance(ours, dict):
        raise ConfigError(f"{file}: tool.whet.eval should be a table, [tool.whet.eval].")
    return validate(EvalDefaults, ours, f"{file}: [tool.whet.eval]").model_dump(exclude_none=True)


def _pyproject(location: Location) -> Path | None:
    """The `pyproject.toml` of the package a module belongs to, not of another one in a folder above it."""
    folder = location.path if location.path.is_dir() else location.path.parent
    for candidate in (folder, *list(folder.parents)[:2]):
        file = candidate / "pyproject.toml"
        if file.is_file():
            name = str(table_of(read_toml(file), "project").get("name", location.module))
            return file if canonicalize_name(name) == canonicalize_name(location.module) else None
    return None
