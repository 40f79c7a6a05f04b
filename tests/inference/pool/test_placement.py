"""Which engine takes a request: rollouts stay, groups stay together, load is even."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from scripted_members import request

from whet.inference.pool import placement
from whet.inference.pool.placement import EngineAffinity, weight_of

IDLE = {"a": 0, "b": 0, "c": 0}


def test_the_least_loaded_takes_what_belongs_nowhere() -> None:
    assert EngineAffinity().choose(request(), {"a": 30, "b": 10, "c": 20}) == "b"


def test_a_rollout_stays_however_loaded_its_engine_is() -> None:
    placing = EngineAffinity()
    assert placing.choose(request(rollout_key="r"), {"a": 5, "b": 0}) == "b"
    assert placing.choose(request(rollout_key="r"), {"a": 0, "b": 10**9}) == "b"


def test_a_rollout_moves_when_its_engine_is_gone_and_stays_there() -> None:
    placing = EngineAffinity()
    placing.choose(request(rollout_key="r"), {"a": 0, "b": 5})
    assert placing.choose(request(rollout_key="r"), {"b": 5, "c": 7}) == "b"
    assert placing.choose(request(rollout_key="r"), {"a": 0, "b": 5}) == "b"


def test_a_group_stays_together_until_its_engine_is_far_more_loaded() -> None:
    placing, one = EngineAffinity(slack=4), weight_of(request())
    loads = dict(IDLE)
    chosen = []
    for number in range(12):
        name = placing.choose(request(rollout_key=str(number), group_key="g"), loads)
        loads[name] += one
        chosen.append(name)
    assert chosen[:5] == ["a"] * 5
    assert set(chosen) == {"a", "b", "c"}
    assert chosen == sorted(chosen, key=chosen.index), "the rest of the group stays together as well"


def test_a_released_rollout_is_forgotten() -> None:
    placing = EngineAffinity()
    placing.choose(request(rollout_key="r"), {"a": 1, "b": 0})
    assert placing.release("r") == "b"
    assert placing.release("r") is None
    assert placing.choose(request(rollout_key="r"), {"a": 0, "b": 1}) == "a"


def test_what_is_remembered_is_bounded(monkeypatch: object) -> None:
    placing = EngineAffinity()
    original, placement.KEPT_KEYS = placement.KEPT_KEYS, 10
    try:
        for number in range(100):
            placing.choose(request(rollout_key=str(number), group_key=str(number)), IDLE)
    finally:
        placement.KEPT_KEYS = original
    assert [number for number in range(100) if placing.release(str(number))] == list(range(90, 100))


KEYS = st.one_of(st.none(), st.sampled_from("rstuvw"))
STEPS = st.lists(
    st.tuples(KEYS, KEYS, st.integers(1, 50), st.sets(st.sampled_from("abc"), min_size=1)), min_size=1, max_size=60
)


@given(STEPS, st.integers(0, 5))
def test_of_any_requests_each_goes_to_a_living_engine_and_rollouts_stay_while_it_lives(
    steps: list[tuple[str | None, str | None, int, set[str]]], slack: int
) -> None:
    placing, homes, loads = EngineAffinity(slack), dict[str, str](), dict(IDLE)
    for rollout, group, tokens, living in steps:
        asked = request(range(tokens), rollout_key=rollout, group_key=group)
        chosen = placing.choose(asked, {name: loads[name] for name in sorted(living)})
        assert chosen in living
        if rollout is not None:
            assert homes.get(rollout, chosen) == chosen or homes[rollout] not in living
            homes[rollout] = chosen
        else:
            least = min(loads[name] for name in living)
            assert loads[chosen] <= (2 * least + slack * weight_of(asked) if group is not None else least)
        loads[chosen] += weight_of(asked)
