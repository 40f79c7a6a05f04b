"""Several evaluations as a table: what a person reads of each, and of all."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

from rich.console import Console

from whet.evals.summary import EvalSummary, summarize
from whet.evals.tables import print_table
from whet.evals.view import print_summaries
from whet.types import RolloutOutput


def summary(rewards: list[float | None], **fields: Any) -> EvalSummary:
    rows = [
        RolloutOutput(
            example_id=number // 2,
            reward=reward,
            error=None if reward is not None else {"error": "ModelError"},
            metrics={},
            is_truncated=False,
            prompt=[],
            completion=[],
            token_usage={"input_tokens": 3.0, "output_tokens": 20.0, "cost": 0.25},
            timing={"generation": {"duration": 0.5}},
            parse_failed=reward == 0.0,
        )
        for number, reward in enumerate(rewards)
    ]
    known = {"environment": "sums", "model": "m", "sampling": "temperature 1", "results": Path("out/x")}
    return summarize(rows, **{**known, **fields}, rollouts_per_example=2, pass_threshold=0.5, seconds=2.0)


def printed(print_them: Any, summaries: list[EvalSummary]) -> list[str]:
    file = io.StringIO()
    print_them(summaries, Console(file=file, width=200, highlight=False))
    return file.getvalue().splitlines()


def test_each_evaluation_is_a_line_with_what_was_varied_in_a_column() -> None:
    lines = printed(
        print_table,
        [
            summary([0.0, 1.0, 1.0, 1.0], varied={"temperature": 0.5, "model": "m"}),
            summary([1.0, None, 1.0, 1.0], varied={"temperature": 1.0, "model": "m"}),
        ],
    )
    assert lines[0].split() == [
        *["environment", "model", "temperature", "reward", "95", "%", "interval", "pass@k", "errors", "tokens"],
        *["seconds", "cost", "readiness"],
    ]
    first, second = (line.split() for line in lines[1:3])
    assert first[:5] == ["1", "sums", "m", "0.5", "0.750"]
    assert first[5:] == ["0.000", "to", "1.000", "@2", "1.000", "0/4", "20", "2.0", "$1.0000", "easy"]
    assert second[0:5] == ["2", "sums", "m", "1", "1.000"]
    assert second[-6:] == ["1/4", "20", "2.0", "$1.0000", "too", "easy"]


def test_advice_that_several_share_is_said_once_and_each_directory_is_named() -> None:
    lines = printed(print_table, [summary([1.0, 1.0]), summary([1.0, 1.0], results=None)])
    shared = [line for line in lines if line.startswith("1, 2: ")]
    assert shared[0] == "1, 2: Little is left to learn: make the tasks harder (-a), or the reward stricter."
    assert lines[-1] == "saved  1: out/x"


def test_an_evaluation_in_which_everything_failed_has_no_reward() -> None:
    line = printed(print_table, [summary([None, None]), summary([1.0, 1.0])])[1]
    assert line.split() == ["1", "sums", "m", "2/2", "20", "2.0", "$0.5000", "unknown"]


def test_one_evaluation_is_told_in_full_with_percentiles_and_what_no_parser_could_read() -> None:
    lines = printed(print_summaries, [summary([0.0, 1.0, 1.0, 1.0], varied={"temperature": 0.5})])
    assert "varied     temperature=0.5" in lines
    assert "unread     the parser found no answer in 25% of the rollouts" in lines
    assert "tokens     3 in, 20 out a rollout (out: median 20, 90 % 20, 99 % 20)" in lines
    assert "time       a rollout: median 0.5 s, 90 % 0.5 s, 99 % 0.5 s" in lines


def test_names_from_environments_are_harmless() -> None:
    lines = printed(
        print_table, [summary([1.0], environment="a\x1b[2Jb"), summary([1.0], varied={"x": "\x1b]0;t\x07"})]
    )
    assert "\x1b" not in "".join(lines)
