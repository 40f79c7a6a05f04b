"""Every row once an epoch, in an order of its own, whatever the sizes; and a run can stop anywhere in between."""

from collections import Counter

from hypothesis import given, settings
from hypothesis import strategies as st

from whet.rl.sft.data import Batches, Pick

SIZES = st.lists(st.integers(1, 50), min_size=1, max_size=20)


def all_batches(batches: Batches) -> list[list[Pick]]:
    found = []
    while batch := batches.next():
        found.append(batch)
    return found


@settings(max_examples=60, deadline=None)
@given(SIZES, st.integers(1, 9), st.one_of(st.none(), st.integers(1, 90)), st.integers(1, 3))
def test_every_row_is_trained_exactly_once_an_epoch(
    tokens: list[int], size: int, most: int | None, epochs: int
) -> None:
    batches = Batches(tokens, size, most, epochs, seed=0)
    steps = batches.left()
    found = all_batches(batches)
    assert len(found) == steps
    counted = Counter((pick.epoch, pick.row) for batch in found for pick in batch)
    assert counted == {(epoch + 1, row): 1 for epoch in range(epochs) for row in range(len(tokens))}
    if most is None:
        assert all(len(batch) == size for batch in found[:-1])
    else:
        assert all(len(batch) == 1 or sum(tokens[pick.row] for pick in batch) <= most for batch in found)


@settings(max_examples=30, deadline=None)
@given(SIZES, st.integers(1, 9), st.integers(0, 10))
def test_batches_go_on_from_the_rows_that_were_taken(tokens: list[int], size: int, done: int) -> None:
    whole = all_batches(Batches(tokens, size, 40, 3, seed=1))
    done = min(done, len(whole))
    taken = sum(map(len, whole[:done]))
    assert all_batches(Batches(tokens, size, 40, 3, seed=1, taken=taken)) == whole[done:]


def test_epochs_and_seeds_have_orders_of_their_own() -> None:
    def rows(seed: int) -> list[int]:
        return [pick.row for batch in all_batches(Batches([1] * 20, 20, None, 2, seed)) for pick in batch]

    first, other = rows(0), rows(1)
    assert len({tuple(first[:20]), tuple(first[20:]), tuple(other[:20])}) == 3


def test_without_epochs_there_is_always_another_batch() -> None:
    batches = Batches([1, 1, 1], 2, None, None, seed=0)
    assert [len(batches.next()) for _ in range(100)] == [2] * 100
