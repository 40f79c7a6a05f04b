"""The virtual environments of other packages that tests here need (`scripts/integration_venvs.py`)."""

import importlib.util
import json
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
Need = Callable[..., Path]
_spec = importlib.util.spec_from_file_location("tests_harbor_tasks", Path(__file__).with_name("harbor_tasks.py"))
assert _spec is not None
assert _spec.loader is not None
_harbor_tasks = sys.modules[_spec.name] = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(_harbor_tasks)
harbor_cache, task, rollout = _harbor_tasks.harbor_cache, _harbor_tasks.task, _harbor_tasks.rollout
play = _harbor_tasks.play


@pytest.fixture(scope="session")
def need() -> Need:
    """The folder of `.venv-KIND`, where it holds these parts; else the test is skipped with the reason."""

    def need(kind: str, *parts: str) -> Path:
        venv = ROOT / f".venv-{kind}"
        stamp = venv / f"whet-{kind}.json"
        missing = json.loads(stamp.read_text())["missing"] if stamp.exists() else dict.fromkeys(parts, "not made yet")
        for part in parts:
            if part in missing:
                pytest.skip(f"no {part} in {venv.name} ({missing[part]}); make it with: make {kind}")
        return venv

    return need
