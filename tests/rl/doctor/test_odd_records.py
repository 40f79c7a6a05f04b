"""Whatever a run's files hold, the doctor says something or nothing, and never falls over: the report waits for it."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from whet.rl.doctor import diagnose
from whet.rl.doctor.reading import read_record
from whet.rl.doctor.record import RunRecord
from whet.rl.report.data import RunData

Run = Callable[..., Path]
VALUES = (None, 0.0, -1.0, 1e30, -1e30, 1e-30, 5.0)


def mangled(row: Mapping[str, Any], rng: random.Random) -> dict[str, Any]:
    """A line of metrics with some numbers changed and some gone."""
    kept = {name: value for name, value in row.items() if name == "step" or rng.random() > 0.1}
    return {
        name: rng.choice(VALUES) if name != "step" and rng.random() < 0.3 else value for name, value in kept.items()
    }


def emptied(rows: Sequence[Mapping[str, Any]], rng: random.Random) -> list[dict[str, Any]]:
    return [{name: None if rng.random() < 0.1 else value for name, value in row.items()} for row in rows]


@pytest.mark.parametrize("patient", ["healthy", "paid for one letter", "one against the other", "too hard", "masked"])
def test_a_record_with_holes_is_read(run_of: Run, patient: str) -> None:
    whole, rng = read_record(run_of(patient)), random.Random(0)
    for _ in range(60):
        steps = whole.data.metrics[: rng.randint(0, len(whole.data.metrics))]
        config = {key: value for key, value in whole.data.config.items() if rng.random() < 0.8}
        data = replace(whole.data, metrics=[mangled(row, rng) for row in steps], config=config)
        run = replace(
            whole,
            data=data,
            rollouts=emptied(whole.rollouts, rng),
            first_rollouts=emptied(whole.first_rollouts, rng),
        )
        assert all(finding.line for finding in diagnose(run))


CALL = '{"name": "look", "arguments": {"at": 1}}'


@pytest.mark.parametrize(
    ("text", "found"),
    [
        (CALL, True),
        (f"```json\n{CALL}\n```", True),
        ('{"answer": 5}', False),
        (f"I would write {CALL}", False),
        ("{" * 9, False),
    ],
)
def test_calls_written_as_plain_json_are_named(text: str, found: bool) -> None:
    def row(words: str, metrics: dict[str, float]) -> dict[str, Any]:
        return {"environment": "x", "completion": [{"role": "assistant", "content": words}], "metrics": metrics}

    data = RunData(Path(), {"env": [{"id": "x"}]}, [], [])
    rows = [row(text, {"total_tool_calls": 0.0}), *[row("5", {"total_tool_calls": 0.0})] * 3]
    findings = [finding for finding in diagnose(RunRecord(data, rollouts=rows)) if finding.rule == "bare-calls"]
    assert len(findings) == found
    assert all("1 of 4 rollouts" in finding.evidence[0] and "look" in finding.evidence[1] for finding in findings)
    assert not diagnose(RunRecord(data, rollouts=[row(text, {})] * 4))  # without tools it is an answer


def test_lengths_of_fine_tuning_which_has_no_rewards_are_no_finding() -> None:
    rows = [{"step": step, "seq_len/trained_mean": 10.0 if step < 6 else 100.0} for step in range(1, 12)]
    assert diagnose(RunRecord(RunData(Path(), {}, rows, []))) == []
