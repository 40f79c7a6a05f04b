"""`whet env verify` names nothing where rewards are right: environments here, templates, generated tasks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from whet.authoring.review.verify import verify_environment
from whet.authoring.scaffold import KINDS, init_package
from whet.authoring.terminal.generate import FAMILIES, generate
from whet.integrations.harbor_env import HarborEnv
from whet.integrations.harbor_verify import verify_tasks

pytestmark = pytest.mark.parts

HERE = Path(__file__).parents[3] / "environments"
ARGUMENTS: dict[str, dict[str, Any]] = {
    "bfcl": {"categories": ["simple_python", "multiple", "parallel"]}  # of the irrelevant ones, no call is right
}
ENVIRONMENTS = sorted(path.name for path in HERE.iterdir() if (path / "pyproject.toml").is_file())


def faults(path: Path, arguments: dict[str, Any], tasks: int) -> list[Any]:
    found = verify_environment(str(path), arguments, tasks=tasks, timeout_s=900, sandbox=False)
    assert found.tasks > 0
    return found.faults


@pytest.mark.timeout(1000)
@pytest.mark.parametrize("name", ENVIRONMENTS)
def test_nothing_is_named_in_an_environment_of_this_repository(name: str) -> None:
    slow = name in ("code_tests", "humaneval", "math_python", "wiki_search")  # each answer runs programs
    assert faults(HERE / name, ARGUMENTS.get(name, {}), 4 if slow else 16) == []


@pytest.mark.timeout(1000)
@pytest.mark.parametrize("kind", KINDS)
def test_nothing_is_named_in_a_template(kind: Any, tmp_path: Path) -> None:
    init_package("clean-one", kind, tmp_path)
    assert faults(tmp_path / "clean_one", {}, 16) == []


@pytest.mark.timeout(1000)
def test_each_family_of_generated_tasks_is_sound(tmp_path: Path, bubblewrap: Any) -> None:
    folder = generate(tmp_path / "tasks", 3, len(FAMILIES))
    checks = verify_tasks(HarborEnv(str(folder)))
    assert len(checks) == len(FAMILIES)
    assert [check.describe() for check in checks if not check.ok] == []


def test_these_are_twenty_environments_or_more() -> None:
    assert len(ENVIRONMENTS) + len(KINDS) + 1 >= 20
