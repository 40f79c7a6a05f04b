"""The branches of a rollout in its row are those that the trainer makes of its turns."""

import random

import pytest

from whet.records.branches import branch_tree
from whet.rl.data.batch import sequences_of
from whet.rollouts.token_rows import _turns


def step(prompt, completion):
    tokens = {
        "prompt_ids": prompt,
        "prompt_mask": [0] * len(prompt),
        "completion_ids": completion,
        "completion_mask": [1] * len(completion),
        "completion_logprobs": [-1.0] * len(completion),
        "policy_version": [[1, len(completion)]],
        "overlong_prompt": False,
        "is_truncated": False,
    }
    return {"tokens": tokens, "extras": {}}


def row(steps, advantage=0.5):
    return {"advantage": advantage, "turns": list(_turns(steps))}


@pytest.mark.parametrize("seed", range(40))
def test_branches_are_those_of_the_trainer(seed):
    draw, seen, steps = random.Random(seed), [[]], []
    for _ in range(draw.randrange(1, 12)):
        before = draw.choice(seen)
        prompt = [
            *before[: draw.choice([len(before), len(before), draw.randrange(len(before) + 1)])],
            draw.randrange(3),
        ]
        completion = [draw.randrange(3) for _ in range(draw.randrange(1, 4))]
        steps.append(step(prompt, completion))
        seen.append(prompt + completion)
    sequences = sequences_of(steps, temperature=1.0, rollout="r")
    branches = branch_tree(row(steps)).branches
    assert [branch.ids for branch in branches] == [sequence.ids.tolist() for sequence in sequences]
    assert [branch.learned for branch in branches] == [int(sequence.trained.sum()) for sequence in sequences]
    assert [[turn - 1 for turn in branch.turns] for branch in branches] == [
        [number for number, *_ in sequence.turns] for sequence in sequences
    ]
    for branch in branches:
        ends = [(segment.start, segment.start + segment.length) for segment in branch.segments]
        assert ends[0][0] == 0
        assert [end for _, end in ends[:-1]] == [start for start, _ in ends[1:]]
        assert ends[-1][1] == len(branch.ids)


def test_a_rewritten_history_shares_what_it_kept():
    tree = branch_tree(row([step([1, 2], [3, 4]), step([1, 2, 3, 4, 5], [6]), step([1, 9], [7])]))
    first, second = tree.branches
    assert (second.parent, second.shared, second.turns) == (1, 1, [3])
    assert [(one.kind, one.length, one.token) for one in second.segments] == [
        ("shared", 1, 0),
        ("given", 1, 6),
        ("trained", 1, 7),
    ]
    assert [one.kind for one in first.segments] == ["given", "trained", "given", "trained"]


def test_what_the_learner_left_out_is_not_trained():
    given = row([step([1], [2, 3, 4]), step([1, 2, 3, 4, 5], [6])])
    given["turns"][0]["masked"] = [True, False, True]
    given["turns"][1]["completion_mask"] = [0]
    (branch,) = branch_tree(given).branches
    assert (branch.learned, branch.sampled) == (1, 4)
    assert branch_tree({**given, "advantage": None}).branches[0].learned == 0


@pytest.mark.parametrize(
    "turn",
    [
        {"prompt_start": -5, "prompt_ids": "x", "completion_ids": [1]},
        {"prompt_start": 10**30, "prompt_ids": [1, None, "a"], "completion_ids": [2], "masked": 3, "advantage": "x"},
        {"prompt_start": True, "completion_ids": {"a": 1}},
        None,
        7,
    ],
)
def test_rows_that_are_none_draw_what_there_is(turn):
    tree = branch_tree({"advantage": 10**400, "turns": [turn, turn, step([1], [2])["tokens"]]})
    assert sum(len(branch.turns) for branch in tree.branches) in (1, 3)


def test_rollout_without_tokens_has_a_note():
    assert branch_tree({}).note
    assert branch_tree({"turns": [None]}).branches == []
