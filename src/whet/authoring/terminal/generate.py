"""`whet env generate terminal`: tasks in Harbor's format from a seed, the same to the byte.

A family draws a task of a level; level 0 is one of level 1 whose instruction quotes the solution, so that a model that
copies has a reward. Beside solution and tests each folder has `cheats/`, lazy attempts that should fail.
"""

from __future__ import annotations

import json
import os
import shlex
import tempfile
from collections.abc import Sequence
from pathlib import Path
from random import Random

import tomli_w

from whet.authoring.terminal import check, system_families, text_families
from whet.authoring.terminal.draft import Draft, Family
from whet.errors import ConfigError
from whet.system.files import expanded

FAMILIES: dict[str, Family] = {
    "write": text_families.write,
    "find": text_families.find,
    "count": text_families.count,
    "transform": text_families.transform,
    "data": text_families.data,
    "config": system_families.config,
    "git": system_families.git,
    "permissions": system_families.permissions,
    "program": system_families.program,
}
LEVELS = (0, 1, 2, 3)
ATTEMPTS = 200  # draws in a row that were there before, until a family has no further task
IMAGE = "python:3.12"  # has git, which its slim variant lacks
DATES = "GIT_AUTHOR_DATE=2026-01-01T12:00:00Z GIT_COMMITTER_DATE=2026-01-01T12:00:00Z"


def generate(
    folder: str | Path, seed: int, number: int, families: Sequence[str] = (), levels: Sequence[int] = LEVELS
) -> Path:
    """Write `number` tasks, no two alike, families and levels in turn, into a new folder; returns it.

    Args:
        folder: Is made, with `NUMBER-FAMILY-LEVEL` in it for each task.
        seed: Of all that is drawn.
        number: How many tasks.
        families: Names of `FAMILIES`; all by default.
        levels: Of `LEVELS`, from a quoted command to several steps.

    Raises `ConfigError` for a folder that exists, an unknown family or level, and where there are not so many tasks.
    """
    families = list(families) or list(FAMILIES)
    unknown = [str(one) for one in (*families, *levels) if one not in FAMILIES and one not in LEVELS]
    if unknown or not levels or number < 1:
        raise ConfigError(
            f"need at least one task, of the families {', '.join(FAMILIES)} and the levels 0 to {LEVELS[-1]}; "
            f"got {', '.join(unknown) or f'{number} tasks of {len(levels)} levels'}."
        )
    target = expanded(str(folder))
    if os.path.lexists(target):
        raise ConfigError(f"{target} exists already. Choose another --to, or remove it.")
    kinds = [(family, level) for level in levels for family in families]
    known = set[str]()
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f".{target.name}-", dir=target.parent) as aside:
        made = Path(aside, "tasks")
        for index in range(number):
            family, level = kinds[index % len(kinds)]
            draft = _draw(Random(f"terminal {seed} {index}"), family, level, known)
            if draft is None:
                raise ConfigError(f"{family} has only {index // len(kinds)} tasks of level {level}; lower -n.")
            _write(made / f"{index:05}-{family}-{level}", draft, {"family": family, "level": level, "seed": seed})
        made.rename(target)
    return target


def _draw(rng: Random, family: str, level: int, known: set[str]) -> Draft | None:
    """A task that is not known, and is from now on; None where none was found."""
    for _ in range(ATTEMPTS):
        draft = FAMILIES[family](rng, max(level, 1))
        shown = json.dumps([draft.instruction, draft.files, draft.setup])  # a level 0 repeats no level 1
        if shown not in known:
            known.add(shown)
            return draft
    return None


def _write(folder: Path, draft: Draft, metadata: dict[str, str | int]) -> None:
    quoted = f"Run: {draft.solution}" if metadata["level"] == 0 else draft.instruction
    dockerfile = [f"FROM {IMAGE}", f"ENV {DATES}", "WORKDIR /app"]
    dockerfile += ["COPY files/ ./"] * bool(draft.files) + [f"RUN {draft.setup}"] * bool(draft.setup)
    box = {"memory_mb": 512, "storage_mb": 256, "network_mode": "no-network"}
    table = {"metadata": metadata, "agent": {"timeout_sec": 600}, "verifier": {"timeout_sec": 120}, "environment": box}
    files = {
        "instruction.md": f"{quoted}\n",
        "task.toml": tomli_w.dumps(table),
        "environment/Dockerfile": "\n".join(dockerfile) + "\n",
        **{f"environment/files/{path}": text for path, text in draft.files.items()},
        "solution/solve.sh": f"{draft.solution}\n",
        "tests/test.sh": "exec python3 -I /tests/check.py\n",
        "tests/check.py": Path(check.__file__).read_text("utf-8"),
        "tests/expected.json": json.dumps(draft.checks, indent=1) + "\n",
        **{f"cheats/{name}.sh": f"{script}\n" for name, script in _cheats(draft).items()},
    }
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, "utf-8")


def _cheats(draft: Draft) -> dict[str, str]:
    """Attempts without merit: the solution's files are empty, hold everything or are links; the family's shortcut."""
    outputs = {one["path"] for one in draft.checks if "path" in one}
    outputs |= {path for one in draft.checks for path in one.get("files", ())}
    paths = " ".join(shlex.quote(path) for path in sorted(outputs))
    each = f'for path in {paths}; do mkdir -p "$(dirname "$path")"'
    commit = "[ -d .git ] && git add -A && git commit -q --allow-empty -m all"
    given = "find . -type f -not -path './.git/*' -exec cat {} + > /tmp/everything"
    return {
        "empty": f'{each}; : > "$path"; done\n{commit}',
        "everything": f'{given}\n{each}; cp /tmp/everything "$path"; chmod 777 "$path"; done\n{commit}',
        "forge": f"mkdir -p /logs/verifier; echo 1 > /logs/verifier/reward.txt; echo 1 > /logs/verifier/reward.json\n"
        f'{each}; rm -rf "$path"; ln -s /tests/expected.json "$path"; done',
        "shortcut": draft.shortcut,
    }
