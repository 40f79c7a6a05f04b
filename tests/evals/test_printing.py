"""Several evaluations as a table: what a person reads of each, and of all."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

from rich.console import Console

from whet.evals.analysis.summary import EvalSummary, SummaryBuilder
from whet.evals.printing import print_summaries, print_table, summary_lines
from whet.types import RolloutOutput


def summary(rewards: list[float | None], judge_usage: dict[str, float] | None = None, **fields: Any) -> EvalSummary:
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
            **({} if judge_usage is None else {"judge_usage": judge_usage}),
        )
        for number, reward in enumerate(rewards)
    ]
    known = {"environment": "sums", "model": "m", "sampling": "temperature 1", **fields}
    results = known.pop("results", Path("out/x"))
    return SummaryBuilder(**known, rollouts_per_example=2, pass_threshold=0.5).summarize(
        rows, seconds=2.0, results=results
    )


def printed(print_them: Any, summaries: list[EvalSummary]) -> list[str]:
    file = io.StringIO()
    print_them(summaries, Console(file=file, width=200, highlight=False))
    return file.getvalue().splitlines()


def test_each_evaluation_is_a_line_with_what_was_varied_in_a_column() -> None:
    lines = printed(
        print_table,
        [
            summary([0.0, 1.0, 1.0, 1.0], varied={"temperature": 0.5, "args.level": 2}),
            summary([1.0, None, 1.0, 1.0], varied={"temperature": 1.0, "args.level": 2}, environment="words"),
        ],
    )
    assert lines[0] == "evaluated  model m"
    assert lines[1].split() == [
        *["environment", "temperature", "level", "reward", "tasks", "pass@k", "errors", "tokens", "seconds", "cost"],
        "readiness",
    ]
    first, second = (line.split() for line in lines[2:4])
    assert first[:5] == ["1", "sums", "0.5", "2", "0.750"]
    assert first[5:] == ["(0.000", "to", "1.000)", "2", "@2", "1.000", "0/4", "20", "2.0", "$1.0000", "easy"]
    assert second[0:5] == ["2", "words", "1", "2", "1.000"]
    assert second[-6:] == ["1/4", "20", "2.0", "$1.0000", "too", "easy"]


def test_a_suite_ends_with_a_line_over_all_environments_of_a_model() -> None:
    suite = [summary([0.0, 1.0, 1.0, 1.0]), summary([1.0, 0.0, None, 0.0], environment="words")]
    line = printed(print_table, suite)[4].split()
    assert line[:3] == ["all", "2", "0.542"]  # (3/4 + 1/3) / 2: each environment counts alike
    assert line[-4:] == ["4", "1/8", "4.0", "$2.0000"]
    levels = [summary([1.0, 0.0], varied={"args.level": level}) for level in (1, 2, 3)]
    assert printed(print_table, levels)[5].split()[:3] == ["all", "3", "0.500"]
    for others in (
        [summary([1.0, 1.0]), summary([1.0, 1.0], varied={"temperature": 1})],
        [summary([1.0, 1.0]), summary([1.0, 1.0], environment="words", varied={"temperature": 1})],
        [summary([1.0, 1.0]), summary([None, None], environment="words")],
        [summary([1.0, 1.0]), summary([1.0, 1.0], environment="words", model="n")],
    ):
        assert "all 2" not in "\n".join(printed(print_table, others))


def test_what_all_have_in_common_stands_above_and_shared_advice_is_said_once() -> None:
    lines = printed(print_table, [summary([1.0, 1.0]), summary([1.0, 1.0], results=None)])
    assert lines[0] == "evaluated  environment sums, model m"
    shared = [line for line in lines if line.startswith("1, 2 ")]
    assert shared[0] == "1, 2       Little is left to learn: make the tasks harder (-a), or the reward stricter."
    assert lines[-1] == "saved      1: out/x"


def test_an_evaluation_in_which_everything_failed_has_no_reward() -> None:
    line = printed(print_table, [summary([None, None]), summary([1.0, 1.0])])[2]
    assert line.split() == ["1", "1", "2/2", "20", "2.0", "$0.5000", "unknown"]


def test_a_terminal_folds_what_is_read_and_not_what_is_copied() -> None:
    file = io.StringIO()
    console = Console(file=file, width=60, highlight=False, force_terminal=True, color_system=None)
    results = Path("outputs/evals/a-very-long-name-of-an-environment/0123456789abcdef")
    print_table([summary([1.0, 1.0], results=results)], console)
    lines = file.getvalue().splitlines()
    advice = next(number for number, line in enumerate(lines) if line.startswith("1          Little"))
    assert lines[advice + 1].startswith(" " * 11 + "(-a), or")
    assert lines[-1] == f"saved      1: {results}"


def test_one_evaluation_is_told_in_full_with_percentiles_and_what_no_parser_could_read() -> None:
    lines = printed(print_summaries, [summary([0.0, 1.0, 1.0, 1.0], varied={"temperature": 0.5})])
    assert "varied     temperature=0.5" in lines
    assert "unread     the parser found no answer in 25% of the rollouts" in lines
    assert "tokens     3 in, 20 out a rollout (out: median 20, 90 % 20, 99 % 20)" in lines
    assert "time       a rollout: median 500 ms, 90 % 500 ms, 99 % 500 ms" in lines


def test_names_from_environments_are_harmless() -> None:
    lines = printed(
        print_table, [summary([1.0], environment="a\x1b[2Jb"), summary([1.0], varied={"x": "\x1b]0;t\x07"})]
    )
    assert "\x1b" not in "".join(lines)


def test_what_judges_cost_has_a_column_of_its_own_where_one_was_asked() -> None:
    unpriced = {"input_tokens": 600.0, "output_tokens": 5.0}
    judged = [summary([1.0, 0.0], judge_usage=used) for used in ({**unpriced, "cost": 0.5}, unpriced, None)]
    lines = printed(print_table, judged)
    assert lines[1].split()[-3:] == ["cost", "judges", "readiness"]
    assert [line.partition("$0.5000")[2].split()[:2] for line in lines[2:4]] == [
        ["$1.0000", "good"],
        ["1,210", "tokens"],
    ]


def test_a_summary_says_what_all_judges_used() -> None:
    judged = summary([1.0, 0.0], judge_usage={"input_tokens": 600.0, "output_tokens": 5.0, "cost": 0.5})
    assert ("judges", "1,200 in, 10 out, $1.0000 in all") in summary_lines(judged)
    assert "judges" not in dict(summary_lines(summary([1.0, 0.0])))
