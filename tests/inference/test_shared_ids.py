"""Token lists that share memory behave as the lists that they stand for."""

import json
import operator
import pickle

import numpy as np
import pytest

from whet.inference.shared_ids import SharedIds, Zeros

WHOLE = [5, 6, 7, 8, 9]


def chain():
    first = SharedIds([5, 6])
    second = SharedIds([5, 6, 7, 8], first)
    return first, second, SharedIds(list(WHOLE), second)


def test_a_turn_gives_its_list_up_to_the_next():
    first, second, third = chain()
    assert (first, second, third) == ([5, 6], [5, 6, 7, 8], WHOLE)
    assert first._shared is third._shared


def test_two_turns_after_one_do_not_share_what_differs():
    first = SharedIds([1, 2])
    left, right = SharedIds([1, 2, 3], first), SharedIds([1, 2, 4, 5], first)
    assert (first, left, right) == ([1, 2], [1, 2, 3], [1, 2, 4, 5])


@pytest.mark.parametrize("made", [chain()[1], Zeros(4)])
def test_they_are_read_as_lists(made):
    plain = list(made)
    for part in (slice(None), slice(1, 3), slice(-2, None), slice(None, None, -1), slice(3, 0, -2), slice(9, 12)):
        assert made[part] == plain[part]
    assert [made[index] for index in range(-4, 4)] == [plain[index] for index in range(-4, 4)]
    for index in (4, -5):
        with pytest.raises(IndexError):
            made[index]
    assert operator.add(made, [1]) == [*plain, 1]
    assert operator.add([1], made) == [1, *plain]
    assert (made == plain, plain == made, made != plain) == (True, True, False)
    assert pickle.loads(pickle.dumps(made)) == plain
    assert json.dumps(made, default=lambda value: value.model_dump()) == json.dumps(plain)
    assert np.asarray(made).tolist() == plain
    assert made != [*plain, 0]
    assert made != 7
