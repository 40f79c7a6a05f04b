"""The budget is a promise: what is begun never exceeds it, and what is reserved is there in the end."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from whet.gepa.calls.budget import CallBudget, CostCap, least_calls, pairs_for
from whet.gepa.types import BudgetSpent


def test_calls_that_do_not_all_fit_are_refused_as_a_whole() -> None:
    budget = CallBudget(10)
    budget.promise(7, "baseline")
    with pytest.raises(BudgetSpent, match="4 calls do not fit into the 3 that are left"):
        budget.promise(4, "minibatch")
    budget.promise(3, "minibatch")


def test_what_is_kept_back_is_left_for_the_final_comparison_alone() -> None:
    budget = CallBudget(10, reserved=4)
    assert budget.left == 6
    with pytest.raises(BudgetSpent):
        budget.promise(7, "race")
    budget.promise(6, "race")
    budget.promise(4, "confirmation")


def test_promised_calls_that_are_not_begun_are_free_again() -> None:
    budget = CallBudget(5)
    promised = budget.promise(5, "baseline")
    promised.begin()
    promised.release()
    assert budget.room("race") == 4
    assert budget.left == 4


def test_a_repeated_search_is_told_the_same_is_left_as_the_first_time() -> None:
    first = CallBudget(10)
    promised = first.promise(2, "baseline")
    promised.begin()
    promised.begin()
    told = first.left

    second = CallBudget(10, begun={"a": 1, "b": 1, "lost": 1})
    assert second.left == 10, "nothing was asked for yet"
    second.recall(["a", "b"])
    assert second.left == told
    assert second.room("race") == 7, "the lost call is paid for nevertheless"


def test_a_call_that_is_asked_for_twice_counts_once() -> None:
    budget = CallBudget(10, begun={"a": 2})
    budget.recall(["a"])
    budget.recall(["a"])
    assert budget.spent == 2


def test_resume_after_a_comparison_reserves_its_calls_once() -> None:
    budget = CallBudget(30, reserved=10, begun={f"{n}": 1 for n in range(18)}, confirming=8)
    assert budget.room("race") == 10
    assert budget.room("confirmation") == 12


@given(
    st.integers(1, 40),
    st.integers(0, 20),
    st.lists(st.tuples(st.integers(0, 12), st.sampled_from(["race", "confirmation"]), st.integers(0, 12))),
)
def test_whatever_is_asked_for_no_more_is_begun_than_was_allowed(
    most: int, reserved: int, rounds: list[tuple[int, str, int]]
) -> None:
    budget = CallBudget(most, min(reserved, most))
    searched = 0
    for asked, phase, begun in rounds:
        try:
            promised = budget.promise(asked, phase)  # type: ignore[arg-type]
        except BudgetSpent:
            continue
        for _ in range(min(asked, begun)):
            promised.begin()
            searched += phase == "race"
        promised.release()
        assert budget.begun <= most
        assert searched <= most - budget.reserved


def test_the_first_call_is_made_alone_where_its_cost_is_not_known() -> None:
    cap = CostCap(1.0)
    assert cap.allows(0.0, 0)
    assert not cap.allows(0.0, 1)


def test_calls_in_flight_count_as_what_the_dearest_has_cost() -> None:
    cap = CostCap(1.0)
    cap.learn(0.1)
    cap.learn(0.3)
    assert cap.allows(0.4, 1)
    assert not cap.allows(0.4, 2)


def test_no_call_is_begun_once_all_is_spent() -> None:
    cap = CostCap(1.0)
    cap.learn(0.1)
    assert not cap.allows(1.0, 0)
    assert not cap.affords(1.0, 1)
    assert CostCap(None).allows(10**6, 10**6)


def test_what_the_final_comparison_will_cost_is_kept_back() -> None:
    cap = CostCap(1.0)
    cap.learn(0.1)
    assert cap.affords(0.5, 5)
    assert not cap.affords(0.5, 5, kept_back=1)
    assert not cap.allows(0.5, 1, kept_back=4)


def test_one_round_is_the_seed_one_accepted_proposal_and_the_comparison() -> None:
    assert least_calls(num_val=50, minibatch_size=3, held_out=20) == 50 + 6 + 50 + 40


def test_a_fifth_of_the_calls_pays_for_the_comparison_unless_said_otherwise() -> None:
    assert pairs_for(500, None) == 50
    assert pairs_for(500, 30) == 15
