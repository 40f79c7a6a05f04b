"""`whet lab setup`: a folder to work in, with examples of configs and environments. What is there is not changed."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args

from whet.authoring.scaffold import TEMPLATES
from whet.envs.loading import LOCAL_FOLDER

Template = Literal["examples", "empty"]
TEMPLATE_NAMES: tuple[Template, ...] = get_args(Template)
OF_THE_WORKSPACE = {"README.md": "README.md", "env.example": ".env.example", "gitignore": ".gitignore"}
ENDPOINTS = "configs/endpoints.toml"
_LEFT_OUT = shutil.ignore_patterns("__pycache__", "*.pyc", "*.egg-info", ".*", "dist", "build", "outputs", "runs")


@dataclass(frozen=True, slots=True)
class Workspace:
    """What was written into a folder, and what was there before and kept; paths below the folder."""

    folder: Path
    written: tuple[str, ...]
    kept: tuple[str, ...]


def set_up(folder: Path, template: Template = "examples") -> Workspace:
    """Write what a workspace needs and `folder` does not have.

    Args:
        folder: Made if missing.
        template: `examples` brings every example's config and environment, `empty` only the folders and settings.
    """
    written, kept = [], []
    for source, inside in _files(template):
        target = folder / inside
        if os.path.lexists(target):
            kept.append(str(inside))
            continue
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(source, target)
        written.append(str(inside))
    for name in ("configs/rl", "configs/eval", "configs/gepa", LOCAL_FOLDER):
        (folder / name).mkdir(parents=True, exist_ok=True)
    return Workspace(folder, tuple(written), tuple(kept))


def examples_folder() -> Path:
    """What holds `configs/` and `environments/`: in an installed whet its own data, in a checkout the checkout."""
    packaged = Path(__file__).parent / "examples"
    return packaged if packaged.is_dir() else Path(__file__).parents[3]


def _files(template: Template) -> Iterator[tuple[Path, Path]]:
    """Each file and where it goes, below the workspace."""
    for name, inside in OF_THE_WORKSPACE.items():
        yield TEMPLATES / "workspace" / name, Path(inside)
    examples = examples_folder()
    if template == "empty":
        yield examples / ENDPOINTS, Path(ENDPOINTS)
        return
    for top in ("configs", LOCAL_FOLDER):
        yield from _below(examples / top, Path(top))


def _below(folder: Path, inside: Path) -> Iterator[tuple[Path, Path]]:
    names = sorted(os.listdir(folder))
    ignored = _LEFT_OUT(str(folder), names)
    for name in names:
        if name not in ignored:
            path = folder / name
            if path.is_dir():
                yield from _below(path, inside / name)
            else:
                yield path, inside / name
