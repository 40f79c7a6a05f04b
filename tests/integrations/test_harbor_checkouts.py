"""Tasks of public checkouts: each is sound here, or what is refused or fails is named with its file.

`WHET_TEST_HARBOR` is a folder of tasks, or several joined by `:`; `WHET_TEST_HARBOR_ARGS` are arguments of `harbor:`.
"""

from __future__ import annotations

import json
import os
import re

import pytest

import whet
from whet.errors import ConfigError
from whet.integrations.harbor_verify import TaskCheck, verify_tasks

NAMED = re.compile(
    r"Dockerfile:\d+: |task\.toml|tests/|instruction\.md|solution/solve\.sh|steps is |its solution has the reward"
)


@pytest.mark.parts
@pytest.mark.timeout(7200)
def test_tasks_of_checkouts_are_sound_or_say_why_not(bubblewrap: None) -> None:
    if "WHET_TEST_HARBOR" not in os.environ:
        pytest.skip("WHET_TEST_HARBOR is not set")
    arguments = {"leave_out_refused": True, **json.loads(os.environ.get("WHET_TEST_HARBOR_ARGS", "{}"))}
    checks: list[TaskCheck] = []
    for folder in os.environ["WHET_TEST_HARBOR"].split(":"):
        try:
            checks += verify_tasks(whet.load_environment(f"harbor:{folder}", **arguments))
        except ConfigError as error:  # there is no other task
            checks.append(TaskCheck(folder, None, None, problem=str(error)))
    for check in checks:
        print(check.describe()[:300])
    print(f"{sum(check.ok for check in checks)} of {len(checks)} tasks are sound")
    sound_else = [
        check for check in checks if not check.ok and not (check.nothing == 1.0 or NAMED.search(check.problem))
    ]
    assert [check.describe() for check in sound_else] == []
    assert any(check.ok for check in checks)
