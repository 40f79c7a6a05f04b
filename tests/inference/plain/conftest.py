"""Checkpoints of families that run through transformers' own forward pass."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.inference.plain import small_models


@pytest.fixture(scope="session")
def others(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], tuple[Path, Any]]:
    return small_models.built_once(tmp_path_factory)
