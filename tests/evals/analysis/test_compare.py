"""Two evaluations of the same tasks; see `whet.evals.analysis.compare`."""

import pytest

from whet.errors import RunError
from whet.evals.analysis.compare import compare, paired_difference


def rows(rewards, prompt="task {}", error=()):
    """Rows of tasks 0, 1, ...: `rewards[task]` are the rewards of its rollouts."""
    return [
        {
            "example_id": task,
            "prompt": [{"role": "user", "content": prompt.format(task)}],
            "reward": reward,
            "error": {"error": "ModelError"} if (task, place) in error else None,
        }
        for task, values in enumerate(rewards)
        for place, reward in enumerate(values)
    ]


def test_a_task_counts_once_with_the_mean_of_its_rollouts():
    found = compare(rows([[0, 1], [1, 1]]), rows([[1, 1], [1, 0]]))
    assert (found.before, found.after) == (0.75, 0.75)
    assert [(change.example_id, change.difference) for change in found.changes] == [(1, -0.5), (0, 0.5)]
    assert (found.better, found.worse, found.equal) == (1, 1, 0)


def test_the_largest_losses_come_first_with_their_question():
    found = compare(rows([[1], [1], [0]]), rows([[0.5], [0], [1]]))
    assert [change.question for change in found.changes] == ["task 1", "task 0", "task 2"]


def test_the_interval_is_that_of_paired_differences():
    # By hand: differences 0, 1, 1, 0; mean 0.5, sd sqrt(1/3), t(3) = 3.1824.
    estimate = paired_difference([0, 1, 1, 0])
    reach = 3.1824 * (1 / 3) ** 0.5 / 2
    assert estimate.mean == 0.5
    assert (estimate.low, estimate.high) == (pytest.approx(0.5 - reach), pytest.approx(0.5 + reach))


@pytest.mark.parametrize(
    ("after", "verdict"),
    [
        ([[0.9]] * 20, "B is better"),
        ([[0.1]] * 20, "B is worse"),
        ([[0.4], [0.6]] * 10, "no difference that these tasks could show"),
        ([[1]], "one task says nothing"),
    ],
)
def test_the_verdict_goes_by_the_interval(after, verdict):
    assert compare(rows([[0.5]] * len(after)), rows(after)).verdict == verdict


def test_errored_rollouts_are_left_out_and_tasks_of_one_side_counted():
    before = rows([[0, 1], [1], [1]], error={(0, 0), (1, 0)})
    found = compare(before, rows([[1], [1]]))
    assert [change.example_id for change in found.changes] == [0]
    assert (found.only_before, found.only_after) == (1, 1)


def test_one_id_with_two_tasks_is_refused():
    with pytest.raises(RunError, match=r"task 0 is not the same on both sides: 'task 0' and 'other 0'"):
        compare(rows([[1]]), rows([[1]], prompt="other {}"))


def test_nothing_in_common_is_refused():
    with pytest.raises(RunError, match="no task in common"):
        compare(rows([[1]]), [])
