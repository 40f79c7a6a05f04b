"""docs/scaling.md: its configs are accepted, and its table is what whet computes from them."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

pytest.importorskip("torch")

_spec = importlib.util.spec_from_file_location(
    "scaling_table", Path(__file__).parents[2] / "scripts" / "scaling_table.py"
)
assert _spec is not None
assert _spec.loader is not None
scaling_table = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(scaling_table)


def test_configs_ask_for_the_gpus_they_say() -> None:
    totals = {title: config.gpus.total for title, config in scaling_table.configs().items()}
    assert totals == {"1 GPU": 1, "2 GPUs": 2, "8 GPUs": 8, "64 GPUs": 64}


def test_the_table_is_that_of_the_configs() -> None:
    assert scaling_table.PAGE.read_text() == scaling_table.page(), "run: python scripts/scaling_table.py"
