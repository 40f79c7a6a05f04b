"""What an evaluation says: errors left out and counted, pass@k, percentiles; the same in whatever order rows come."""

from __future__ import annotations

import random
from typing import Any

import pytest

from whet.evals.analysis.statistics import MeanInterval, Percentiles, clustered_mean
from whet.evals.analysis.summary import EvalSummary, SummaryBuilder
from whet.types import RolloutOutput


def row(example: int, reward: float | None, **fields: Any) -> RolloutOutput:
    error = {"error": "ModelError"} if reward is None else None
    metrics = {} if reward is None else {"exact_match": float(reward == 1.0)}
    base = {"example_id": example, "reward": reward, "error": error, "metrics": metrics, "is_truncated": False}
    return RolloutOutput({**base, "prompt": [], "completion": [], **fields})


def summary(rows: list[RolloutOutput], rollouts_per_example: int = 2) -> EvalSummary:
    builder = SummaryBuilder(
        environment="e",
        model="m",
        sampling="temperature 1",
        rollouts_per_example=rollouts_per_example,
        pass_threshold=0.5,
    )
    return builder.summarize(rows, seconds=1.0)


def test_errored_rollouts_are_counted_and_left_out_of_every_mean() -> None:
    found = summary([row(0, 1.0), row(0, None), row(1, 0.5), row(1, 0.0, is_truncated=True)])
    assert found.reward is not None
    assert found.reward.mean == pytest.approx(0.5)
    assert found.metrics == {"exact_match": pytest.approx(1 / 3)}
    assert (found.rollouts, found.errors, found.error_kinds) == (4, 1, {"ModelError": 1})
    assert found.truncated_frac == pytest.approx(1 / 3)


def test_an_evaluation_where_everything_failed_claims_no_score() -> None:
    found = summary([row(0, None), row(0, None)])
    assert (found.reward, found.truncated_frac, found.metrics, found.samples) == (None, None, {}, [])
    assert found.readiness.verdict == "unknown"
    assert "fix the errors" in found.readiness.advice[0]


def test_pass_at_k_is_unbiased_over_tasks() -> None:
    # One of two attempts passes: pass@1 = 1/2, pass@2 = 1; none: 0 and 0.
    found = summary([row(0, 1.0), row(0, 0.0), row(1, 0.0), row(1, 0.2)])
    assert found.pass_at_k == {"1": 0.25, "2": 0.5}
    assert found.pass_all_k == {"1": 0.25, "2": 0.0}


def test_tokens_are_averaged_where_the_model_reports_them() -> None:
    usage = [{"input_tokens": 10.0, "output_tokens": 4.0}, {"input_tokens": 20.0, "output_tokens": 8.0}]
    found = summary([row(0, 1.0, token_usage=usage[0]), row(0, 0.0, token_usage=usage[1])])
    assert (found.input_tokens, found.output_tokens) == (15.0, 6.0)
    assert summary([row(0, 1.0)]).output_tokens is None


def test_cost_is_that_of_all_rollouts_and_unknown_without_a_price() -> None:
    usage = [{"input_tokens": 1.0, "output_tokens": 1.0, "cost": cost} for cost in (0.25, 0.5)]
    rows = [row(0, 1.0), row(1, None, error={"error": "ModelError"})]
    for one, tokens in zip(rows, usage, strict=True):
        one["token_usage"] = tokens
    assert summary(rows).cost == 0.75
    assert summary([row(0, 1.0)]).cost is None


def test_what_judges_used_is_counted_by_itself() -> None:
    first = {"input_tokens": 100.0, "output_tokens": 2.0, "cost": 0.25}
    second = {"input_tokens": 50.0, "output_tokens": 1.0}
    found = summary([row(0, 1.0, judge_usage=first), row(0, 0.0, judge_usage=second), row(1, 1.0)])
    assert found.judge_usage == {"input_tokens": 150.0, "output_tokens": 3.0, "cost": 0.25}
    assert (found.cost, found.output_tokens) == (None, None)
    assert summary([row(0, 1.0)]).judge_usage == {}


def test_the_samples_are_the_best_and_the_worst_rollout() -> None:
    found = summary([row(0, 0.2), row(0, 0.9), row(1, 0.1)])
    assert [sample["reward"] for sample in found.samples] == [0.9, 0.1]


def test_the_order_in_which_rollouts_finish_changes_nothing() -> None:
    generator = random.Random(3)
    rows = [row(example, generator.random(), completion=str(place)) for example in range(9) for place in range(3)]
    rows += [row(9, 1.0, completion=str(place)) for place in range(3)]  # three that are all the best
    straight = summary(rows, 3)
    for _ in range(5):
        generator.shuffle(rows)
        assert summary(rows, 3) == straight


def test_a_summary_can_be_asked_for_before_all_rollouts_are_there() -> None:
    builder = SummaryBuilder(
        environment="e", model="m", sampling="greedy", rollouts_per_example=2, pass_threshold=0.5, varied={"level": 2}
    )
    assert builder.summary(seconds=0.0).reward is None
    builder.add(row(0, 1.0))
    half = builder.summary(seconds=1.0)
    assert (half.rollouts, half.pass_at_k, half.varied) == (1, {}, {"level": 2})
    builder.add(row(0, 0.0))
    assert builder.summary(seconds=2.0).pass_at_k == {"1": 0.5, "2": 1.0}


def test_the_text_of_rollouts_is_not_kept() -> None:
    builder = SummaryBuilder(environment="e", model="m", sampling="", rollouts_per_example=1, pass_threshold=0.5)
    for number in range(50):
        builder.add(row(number, 0.5, prompt="x" * 1000, completion="y" * 1000))
    assert len(repr(vars(builder))) < 20_000


def test_time_and_tokens_have_percentiles_over_every_rollout_also_one_that_failed() -> None:
    rows = [
        row(
            number,
            None if number == 100 else 1.0,
            token_usage={"input_tokens": 2.0 * number, "output_tokens": float(number)},
            timing={"generation": {"duration": number / 10}},
        )
        for number in range(1, 101)
    ]
    found = summary(rows, 1)
    assert found.output_token_percentiles == Percentiles(50.5, pytest.approx(90.1), pytest.approx(99.01))
    assert found.input_token_percentiles == Percentiles(101.0, pytest.approx(180.2), pytest.approx(198.02))
    assert found.rollout_seconds == Percentiles(pytest.approx(5.05), pytest.approx(9.01), pytest.approx(9.901))


def test_percentiles_are_unknown_where_nothing_was_measured() -> None:
    found = summary([row(0, 1.0)])
    assert (found.input_token_percentiles, found.output_token_percentiles, found.rollout_seconds) == (None, None, None)


def test_parse_failures_are_counted_over_rollouts_whose_answer_was_to_be_read() -> None:
    rows = [row(0, 1.0, parse_failed=False), row(1, 0.0, parse_failed=True), row(2, 0.5), row(3, None)]
    assert summary(rows).parse_failed_frac == 0.5
    assert summary([row(0, 1.0)]).parse_failed_frac is None


def test_members_of_a_group_are_summed_up_apart() -> None:
    builder = SummaryBuilder(
        environment="e",
        model="m",
        sampling="",
        rollouts_per_example=1,
        pass_threshold=0.5,
        members=["alpha", "two/beta", "gamma"],
    )
    for number, reward in enumerate([1.0, 0.0, None, 0.5]):
        builder.add(row(number, reward, info={"env_id": "alpha" if number < 3 else ["two", "beta"]}))
    found = builder.summary(seconds=1.0).members
    assert list(found) == ["alpha", "two/beta"]
    assert (found["alpha"].examples, found["alpha"].rollouts, found["alpha"].errors) == (3, 3, 1)
    assert found["alpha"].reward == clustered_mean({0: [1.0], 1: [0.0]})
    assert found["two/beta"].reward == MeanInterval(0.5, None, None)
