"""What is said of importing, loading, rows and rewards, given what was reported: pure, so nothing runs here."""

from __future__ import annotations

import pytest

from whet.authoring.review.about_runs import review_import, review_load, review_rewards, review_rows, scale_of
from whet.authoring.review.findings import CODES, Finding, ordered
from whet.authoring.review.observations import (
    EVENT,
    Argument,
    BatchCost,
    Event,
    Imported,
    Loaded,
    Rolled,
    Rows,
    SideEffect,
    Split,
)
from whet.authoring.review.package import CheckSettings


def told(findings: object) -> list[tuple[str, str]]:
    return [(finding.code, finding.message) for finding in findings if isinstance(finding, Finding)]  # type: ignore[attr-defined]


def loaded(**fields: object) -> Loaded:
    return Loaded(**{"seconds": 0.1, "error": None, **fields})  # type: ignore[arg-type]


def rows(**fields: object) -> Rows:
    return Rows(**{"train": Split(rows=9, digest="a"), "eval": Split(rows=3, digest="b"), **fields})  # type: ignore[arg-type]


def test_a_quiet_quick_import_has_no_findings() -> None:
    assert told(review_import([Imported(seconds=0.2, error=None)], "", None)) == []


def test_a_slow_or_talkative_import_is_told() -> None:
    findings = told(review_import([Imported(seconds=6.0, error=None)], "Hello\nthere\n", None))
    assert findings == [("import-slow", "importing it took 6.0 s"), ("import-output", "importing it prints: Hello")]


def test_each_effect_is_told_with_where_it_is() -> None:
    effect = SideEffect(effect="process", detail="subprocess.Popen 'true'", where="a.py:3")
    (finding,) = review_import([effect, Imported(seconds=0.0, error=None)], "", None)
    assert (finding.code, finding.where) == ("import-process", "a.py:3")


def test_an_import_that_never_ended_says_how_and_what_it_printed_last() -> None:
    (finding,) = review_import([], "one\nSegmentation fault\n", "it was killed by signal 11")
    assert finding.code == "unfinished"
    assert "signal 11 (Segmentation fault)" in finding.message


@pytest.mark.parametrize(
    ("lacks", "words"),
    [
        ({"typed": False}, "no type: size"),
        ({"has_default": False}, "no default: size"),
        ({"documented": False}, "no line in the docstring's Args: size"),
        ({"open": True}, "'size' takes whatever is given"),
    ],
)
def test_an_argument_should_have_name_type_default_and_description(lacks: dict[str, bool], words: str) -> None:
    good = {"name": "size", "typed": True, "has_default": True, "documented": True, "open": False}
    assert told(review_load([loaded(arguments=[Argument(**good)])], None, True)) == []
    ((code, message),) = told(review_load([loaded(arguments=[Argument(**{**good, **lacks})])], None, True))
    assert (code, words in message) == ("signature", True)


def test_what_load_environment_raised_is_told_with_what_the_sandbox_lacks() -> None:
    (finding,) = review_load([loaded(error="no such file")], None, True)
    assert "no network and no files" in finding.fix
    (finding,) = review_load([loaded(error="no such file")], None, False)
    assert "no network" not in finding.fix


def test_data_that_takes_long_counts_as_loading() -> None:
    slow = rows(train=Split(rows=9, digest="a", seconds=31.0))
    assert [code for code, _ in told(review_load([loaded(), slow], None, True))] == ["load-slow"]


def test_two_splits_that_stay_the_same_have_no_findings() -> None:
    assert told(review_rows([rows()], [rows()])) == []


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"eval": None}, "no-eval-split"),
        ({"overlap": 2, "overlapping": "x"}, "splits-overlap"),
        ({"shared_prompts": 1}, "splits-share-prompts"),
        ({"train": Split(rows=0, error="row 3 is a list")}, "rows"),
        ({"train": Split(rows=9, digest="a", type_problems=["'answer' is int"])}, "row-types"),
        ({"train": Split(rows=9, digest="a", duplicates=4)}, "duplicates"),
    ],
)
def test_every_defect_of_the_rows_has_its_code(fields: dict[str, object], code: str) -> None:
    assert [found for found, _ in told(review_rows([rows(**fields)], [rows(**fields)]))] == [code]


def test_a_prompt_with_several_answers_in_one_split_does_not_make_a_task() -> None:
    assert told(review_rows([rows(shared_prompts=1, prompts_are_tasks=False)], [])) == []


def test_rows_that_differ_the_next_time_are_told_for_each_split() -> None:
    other = rows(eval=Split(rows=3, digest="c"))
    assert told(review_rows([rows()], [other])) == [
        ("rows-vary", "the evaluation rows differ from one process to the next")
    ]


@pytest.mark.parametrize(
    "line",
    [
        "nonsense",
        "[]",
        '{"event": "imported"}',
        '{"event": "imported", "seconds": 0.1, "error": null, "extra": 1}',
        '{"event": "other"}',
        '{"event": "started", "probe": "' + "x" * 5000 + '"}',
    ],
)
def test_a_report_is_read_strictly(line: str) -> None:
    with pytest.raises(ValueError, match="validation error"):
        EVENT.validate_json(line)


LOADED = Loaded(seconds=0.0, error=None, weights={"correct": 1.0, "metric": 0.0})


def rolled(probe: str, reward: float | None, task: int = 0, **fields: object) -> Rolled:
    return Rolled(probe=probe, task=task, reward=reward, **fields)  # type: ignore[arg-type]


def review(*events: Event, again: tuple[Event, ...] = (), settings: CheckSettings | None = None) -> list[Finding]:
    return list(review_rewards([LOADED, *events], again, settings or CheckSettings()))


def codes(findings: list[Finding]) -> list[str]:
    return [finding.code for finding in findings]


RIGHT = rolled("right answer, boxed", 1.0)


def test_no_finding_where_only_right_answers_earn() -> None:
    assert review(rolled("right answer, plain", 0.0), RIGHT, rolled("nothing", 0.0)) == []


@pytest.mark.parametrize(("reward", "found"), [(0.49, []), (0.5, ["reward-leak"]), (0.9, ["reward-hack"])])
def test_what_a_probe_earns_is_measured_by_what_a_right_answer_earns(reward: float, found: list[str]) -> None:
    assert codes(review(RIGHT, rolled("nothing", reward))) == found
    half = [rolled("right answer, boxed", 0.6), rolled("refusal", 0.0), rolled("nothing", 0.6 * reward)]
    assert codes(review(*half)) == found


def test_where_no_right_answer_is_seen_the_weights_are_the_scale() -> None:
    assert codes(review(rolled("right answer, plain", 0.0), rolled("nothing", 0.5))) == ["right-answer", "reward-leak"]
    assert scale_of({"nothing": 0.1}, {"a": 0.5, "b": 0.25, "c": -1.0}, CheckSettings()).full == 0.75


def test_a_probe_is_judged_by_its_mean_over_the_tasks() -> None:
    some = [rolled("the most common answer", reward, task) for task, reward in enumerate((1.0, 0.0, 0.0, 0.0))]
    assert review(RIGHT, *some) == []


def test_the_same_reward_for_everything_is_no_reward() -> None:
    assert codes(review(RIGHT, rolled("nothing", 1.0))) == ["reward-constant"]


def test_nothing_but_zeros_may_be_a_task_that_no_script_can_solve() -> None:
    assert codes(review(rolled("right answer, plain", 0.0), rolled("nothing", 0.0))) == ["right-answer"]


def test_an_environment_whose_functions_are_all_metrics_rewards_nothing() -> None:
    loaded = LOADED.model_copy(update={"weights": {"metric": 0.0}})
    assert codes(list(review_rewards([loaded, RIGHT], [], CheckSettings()))) == ["no-reward"]


def test_a_reward_outside_the_range_is_found_unless_the_range_is_declared() -> None:
    events = (RIGHT, rolled("nothing", -0.5))
    assert codes(review(*events)) == ["reward-range"]
    assert review(*events, settings=CheckSettings(reward_range=(-1, 1))) == []


def test_another_reward_for_the_same_conversation_names_the_function() -> None:
    first = rolled("nothing", 0.0, replies="x", metrics={"a": 0.0, "b": 1.0})
    second = rolled("nothing", 0.25, replies="x", metrics={"a": 0.25, "b": 1.0})
    (finding,) = review(RIGHT, first, again=(RIGHT, second))
    assert (finding.code, finding.where) == ("reward-varies", "a")


def test_changed_conversation_blames_the_environment() -> None:
    first, second = rolled("nothing", 0.0, replies="x"), rolled("nothing", 0.25, replies="y")
    assert codes(review(RIGHT, first, again=(RIGHT, second))) == ["turns-vary"]


def test_failures_are_reported_once_per_kind_with_probes() -> None:
    failed = [rolled(probe, None, error="RewardError", message="IndexError") for probe in ("nothing", "refusal")]
    (finding,) = review(RIGHT, rolled("placeholder", 0.0), *failed)
    assert (finding.code, finding.where) == ("rollout-fails", "nothing, refusal")
    assert "2 of 4 rollouts" in finding.message


def test_what_a_host_lacks_is_not_the_packages_fault() -> None:
    assert codes(review(rolled("nothing", None, error="SandboxError", message="no bwrap"))) == ["unprobed"]


@pytest.mark.parametrize(
    ("seconds", "found"),
    [((0.9, 0.9, 9.0), []), ((0.1, 1.1, 1.2), ["slow-rollout"]), ((0.1, 0.1, 11.0), ["slow-rollout"])],
)
def test_the_usual_rollout_is_quick_and_none_is_very_slow(seconds: tuple[float, ...], found: list[str]) -> None:
    batches = [BatchCost(probe=str(n), rollouts=2, seconds=2 * s, longest_pause=0.0) for n, s in enumerate(seconds)]
    assert codes(review(RIGHT, rolled("nothing", 0.0), *batches)) == found


def test_an_event_loop_that_stands_still_is_found() -> None:
    batch = BatchCost(probe="no end of text", rollouts=5, seconds=2.0, longest_pause=1.5)
    (finding,) = review(RIGHT, rolled("nothing", 0.0), batch)
    assert (finding.code, finding.where) == ("blocks", "no end of text")


def test_findings_are_sorted_and_excused_ones_are_notes() -> None:
    findings = [Finding.of(code, "it is so", "mend it") for code in ("duplicates", "no-licence", "secret")]
    told = ordered(findings, {"no-licence": "not published"})
    assert [(one.code, one.severity) for one in told] == [
        ("secret", "error"),
        ("no-licence", "note"),
        ("duplicates", "note"),
    ]
    assert "not published" in told[1].message


def test_every_code_is_used_and_every_finding_has_a_known_one() -> None:
    import re
    from pathlib import Path

    import whet.authoring.review

    sources = [path.read_text() for path in Path(whet.authoring.review.__file__).parent.glob("[!f]*.py")]
    used = {code for text in sources for code in re.findall(r'"([a-z]+(?:-[a-z]+)*)"', text)}
    assert set(CODES) <= used
