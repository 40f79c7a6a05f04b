"""A budget is the run's: what was used before a resume counts, and the first that is used up is named."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from whet.rl.supervision.ending import Budget, BudgetConfig


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (90, 90),
        ("90", 90),
        ("90 s", 90),
        ("45 min", 2700),
        ("45m", 2700),
        ("2h", 7200),
        ("2h 30min", 9000),
        ("1.5d", 129600),
    ],
)
def test_time_is_seconds_or_a_text(given: object, expected: float) -> None:
    assert BudgetConfig(max_time=given).max_time == expected


@pytest.mark.parametrize("given", ["soon", "2 weeks", "", "-3 s", 0, "0 s"])
def test_what_is_no_time_is_refused(given: object) -> None:
    with pytest.raises(ValidationError):
        BudgetConfig(max_time=given)


def test_without_limits_nothing_is_ever_used_up() -> None:
    assert Budget(tokens=10**15, cost=1e9).spent(1e12) is None


def test_each_limit_is_named_when_it_is_used_up() -> None:
    assert "max_time = 60 s" in str(Budget(BudgetConfig(max_time=60)).spent(60))
    assert "max_tokens = 100" in str(Budget(BudgetConfig(max_tokens=100), tokens=120).spent(0))
    assert "2.5000 dollars" in str(Budget(BudgetConfig(max_cost=2), cost=2.5).spent(0))
    assert Budget(BudgetConfig(max_time=60, max_tokens=100, max_cost=2), tokens=99, cost=1.9).spent(59) is None


def test_what_was_used_before_a_resume_counts() -> None:
    before = Budget(BudgetConfig(max_time=100), time=10, tokens=5, cost=1.0)
    after = Budget(BudgetConfig(max_time=100))
    after.load_state_dict(before.state_dict(elapsed=30))
    assert (after.time, after.tokens, after.cost) == (40, 5, 1.0)
    assert after.remaining_time() == 60


def test_a_checkpoint_from_before_there_were_budgets_has_used_nothing() -> None:
    budget = Budget(BudgetConfig(max_tokens=1))
    budget.load_state_dict({"curriculum": {}})
    assert budget.spent(0) is None
