"""The plan: what a budget affords, and what would be the least."""

from __future__ import annotations

from typing import Any

import pytest

from whet.clients.config import Price
from whet.errors import GepaError
from whet.gepa.config import EnvSection, GepaConfig
from whet.gepa.plan import describe, held_out_wanted, make_plan
from whet.gepa.splits import Splits
from whet.gepa.types import SearchExample


def config(**fields: Any) -> GepaConfig:
    return GepaConfig(name="run", env=(EnvSection(id="env"),), **fields)


def splits(val: int, held_out: int, text: str = "x" * 400) -> Splits:
    row = {"prompt": [{"role": "user", "content": text}]}
    parts = {"train": 10, "val": val, "held_out": held_out}
    made = {split: [SearchExample("env", split, n, n, row) for n in range(size)] for split, size in parts.items()}  # type: ignore[arg-type]
    return Splits(**made, notes=[])


def test_the_defaults_afford_six_proposals_if_all_were_accepted() -> None:
    plan = make_plan(config(), splits(50, 50))
    assert (plan.max_calls, plan.reserved, plan.baseline) == (500, 100, 50)
    assert (plan.per_rejected, plan.per_accepted) == (6, 56)
    assert (plan.fewest_proposals, plan.most_proposals) == (6, 50)


def test_the_most_proposals_are_those_that_the_search_would_begin() -> None:
    plan = make_plan(config(max_calls=130, gepa={"held_out": 0}), splits(50, 0))
    left, begun = 130 - 50, 0
    while left >= plan.per_accepted:
        left -= plan.per_rejected
        begun += 1
    assert plan.most_proposals == begun


@pytest.mark.parametrize("held_out", [None, 0, 20])
def test_the_least_budget_that_is_named_does_and_one_call_fewer_does_not(held_out: int | None) -> None:
    def plan(calls: int) -> None:
        asked = config(max_calls=calls, gepa={"held_out": held_out})
        make_plan(asked, splits(50, held_out_wanted(asked)))

    with pytest.raises(GepaError, match="Give at least -B") as refused:
        plan(20)
    least = int(str(refused.value).rpartition("-B ")[2].split(",")[0])
    plan(least)
    with pytest.raises(GepaError):
        plan(least - 1)


def test_more_examples_than_the_calls_kept_back_pay_for_are_refused() -> None:
    with pytest.raises(GepaError, match="held_out = 20 takes 40 calls, and confirm_calls = 30"):
        held_out_wanted(config(gepa={"held_out": 20, "confirm_calls": 30}))
    assert held_out_wanted(config(gepa={"confirm_calls": 30})) == 15
    assert held_out_wanted(config(gepa={"held_out": 7})) == 7


def test_the_cost_is_guessed_from_prompts_limits_and_prices() -> None:
    plan = make_plan(config(sampling={"max_tokens": 100}), splits(50, 50), Price(input=1.0, output=10.0))
    assert plan.cost_per_call == pytest.approx((100 * 1.0 + 100 * 10.0) / 1e6)
    assert any("$0.55 in all" in line for line in describe(plan))
    assert not any("$" in line for line in describe(make_plan(config(), splits(50, 50))))
