"""Checkpoints of families that run through transformers' own forward pass."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.inference.plain import small_models


@pytest.fixture(scope="session")
def others(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], tuple[Path, Any]]:
    """(directory, model) of a family, each built once a session."""
    made: dict[str, tuple[Path, Any]] = {}

    def get(kind: str) -> tuple[Path, Any]:
        if kind not in made:
            directory = tmp_path_factory.mktemp(kind)
            made[kind] = directory, small_models.write(kind, directory)
        return made[kind]

    return get
