"""What an engine lacks of the weights that all have to have, and whether it may answer meanwhile."""

from __future__ import annotations

from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from whet.inference.pool.placement import LatestWeights
from whet.inference.protocol import WeightUpdate


def update(version: int, adapter: str | None = None) -> WeightUpdate:
    return WeightUpdate(version, Path(f"{version}"), adapter=adapter)


def test_a_new_engine_loads_the_policy_before_adapters() -> None:
    first, second, policy = update(1, "one"), update(1, "two"), update(4)
    latest = LatestWeights().with_update(first).with_update(second).with_update(policy)
    assert latest.version == 4
    assert latest.next_for({}) is policy
    assert latest.next_for({None: policy}) is first
    assert latest.next_for({None: policy, "one": first}) is second
    assert latest.next_for({None: policy, "one": first, "two": second}) is None


def test_an_adapter_has_no_part_in_the_version_of_the_policy() -> None:
    assert LatestWeights(3).with_update(update(9, "one")).version == 3


def test_an_adapter_that_was_unloaded_goes_first() -> None:
    old, new = update(1), update(2)
    latest = LatestWeights().with_update(old).with_update(update(5, "one")).without("one").with_update(new)
    assert latest.next_for({None: old, "one": update(5, "one")}) == "one"
    assert latest.next_for({None: old}) is new


def test_older_weights_answer_nothing_and_adapters_matter_to_their_requests_alone() -> None:
    policy, adapter = update(2), update(1, "one")
    latest = LatestWeights().with_update(policy).with_update(adapter)
    assert not latest.answered_by({None: update(2)}, None), "another update of the same version is not the same"
    assert latest.answered_by({None: policy}, None)
    assert not latest.answered_by({None: policy}, "one")
    assert latest.answered_by({None: policy, "one": adapter}, "one")


CHANGES = st.lists(st.tuples(st.sampled_from([None, "one", "two"]), st.booleans()), max_size=12)


@given(CHANGES, CHANGES)
def test_from_any_state_the_steps_lead_to_what_is_wanted(
    before: list[tuple[str | None, bool]], after: list[tuple[str | None, bool]]
) -> None:
    latest = LatestWeights()
    loaded: dict[str | None, WeightUpdate] = {}
    for number, (adapter, removes) in enumerate([*before, *after]):
        if number == len(before):
            loaded = dict(latest.updates)
        if removes and adapter is not None:
            latest = latest.without(adapter)
        else:
            latest = latest.with_update(update(number, adapter))
    steps = 0
    while (due := latest.next_for(loaded)) is not None:
        if isinstance(due, str):
            del loaded[due]
        else:
            loaded[due.adapter] = due
        steps += 1
    assert loaded == dict(latest.updates)
    assert steps <= 6
    assert all(latest.answered_by(loaded, adapter) for adapter in [None, *latest.adapters])
