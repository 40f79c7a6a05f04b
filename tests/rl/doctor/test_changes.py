"""The changes that the doctor asks for are keys of the config, and cure."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from whet.rl.doctor import Advice, examine
from whet.rl.doctor.record import toml_value

Run = Callable[..., Path]


def keys_of(changes: list[Advice]) -> dict[str, Any]:
    return {change.key: change.value for change in changes if change.key is not None}


@pytest.mark.parametrize(
    "patient",
    [
        "cut off",
        "flat groups",
        "steps of a hundredfold",
        "a rate of 0.1",
        "groups of one",
        "cold",
        "paid for noise",
        "no room",
        "masked",
        "rounded",
        "cut sampling",
    ],
)
def test_the_changes_of_a_finding_make_a_config_that_holds(
    run_of: Run, config_of: Callable[..., Any], tmp_path: Path, patient: str
) -> None:
    for finding in examine(run_of(patient)).findings:
        changes = keys_of(list(finding.changes))
        assert changes
        config = config_of(patient, tmp_path, changes)
        assert config != config_of(patient, tmp_path)


@pytest.mark.parametrize(
    ("patient", "rule", "count"),
    [
        ("no room", "clipped", 2),
        ("rounded", "sampler-learner-mismatch", 1),
        ("masked", "tokens-without-loss", 1),
        ("cut sampling", "cut-sampling", 1),
        pytest.param("cold", "identical-outputs", 1, marks=pytest.mark.long),
        pytest.param("paid for noise", "entropy-explosion", 1, marks=pytest.mark.long),
        pytest.param("paid for one letter", "truncation", 1, marks=pytest.mark.long),
        pytest.param("old rollouts", "staleness", 2, marks=pytest.mark.long),
    ],
)
def test_with_the_change_the_finding_is_gone(run_of: Run, patient: str, rule: str, count: int) -> None:
    [finding] = [finding for finding in examine(run_of(patient)).findings if finding.rule == rule]
    changes = keys_of(list(finding.changes[:count]))
    assert changes
    cured = examine(run_of(patient, changes))
    assert cured.state == "finished"
    assert rule not in {finding.rule for finding in cured.findings}


def proposed(run: Path, rule: str) -> dict[str, Any]:
    [finding] = [finding for finding in examine(run).findings if finding.rule == rule]
    return keys_of(list(finding.changes))


def test_a_learning_rate_far_out_of_range_is_brought_into_it(run_of: Run) -> None:
    assert proposed(run_of("a rate of 0.1"), "reward-unstable")["learning_rate"] == 1e-3


def test_groups_of_one_become_groups_of_eight_with_a_batch_that_holds_them(run_of: Run) -> None:
    assert proposed(run_of("groups of one"), "no-variance") == {"rollouts_per_example": 8, "batch_size": 8}


def test_groups_of_one_are_no_fault_where_rollouts_are_compared_with_the_batch(run_of: Run) -> None:
    run = run_of("groups of one", {"algorithm.advantage": "reinforce_pp"})
    assert "no-variance" not in [finding.rule for finding in examine(run).findings]


def test_a_change_reads_as_it_stands_in_the_file() -> None:
    assert Advice("why", "learning_rate", 3e-5, 3e-4).text == "learning_rate = 3e-05  (now 0.0003): why"
    assert Advice("why", "sampling.temperature", 1.0).text == "sampling.temperature = 1.0: why"
    assert Advice("mend the rubric").text == "mend the rubric"
    assert [toml_value(value) for value in (True, "float32", [1.0, 2.0], 7)] == ["true", '"float32"', "[1.0, 2.0]", "7"]
