"""Whatever a run's files hold, the doctor says something or nothing, and never falls over: the report waits for it."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import whet
from whet.clients.scripted import ScriptedClient
from whet.rl.doctor import diagnose, examine, read_record
from whet.rl.doctor.record import RunRecord
from whet.rl.report.data import RunData
from whet.rollouts.groups import run_group
from whet.rollouts.token_rows import rollout_row

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
            errors=emptied([{"step": 3, "environment": "x", "error": "E", "rollouts": 2}] * 4, rng),
        )
        assert all(finding.line for finding in diagnose(run))


@pytest.mark.parametrize("missing", ["step", "environment", "error", "rollouts"])
def test_a_field_that_is_missing_is_unknown(missing: str, tmp_path: Path) -> None:
    metrics = [{"step": step, "rollouts/errored_frac": 0.1} for step in range(1, 7)] + [{"rollouts/errored_frac": 0.9}]
    row: dict[str, Any] = {"step": 5, "environment": "x", "error": "ToolError: no", "rollouts": 3}
    lines: dict[str, list[dict[str, Any]]] = {
        "metrics.jsonl": metrics,
        "errors.jsonl": [row, {key: row[key] for key in row if key != missing}],
    }
    (tmp_path / "config.toml").write_text('[[env]]\nid = "x"\n')
    for name, rows in lines.items():
        (tmp_path / name).write_text("".join(json.dumps(row) + "\n" for row in rows))
    (finding,) = [one for one in examine(tmp_path).findings if one.rule == "errors"]
    other = ["3 of 6 in None: ToolError: no"] if missing == "environment" else []
    total = 6 if other else 3
    assert finding.evidence[1:] == [f"3 of {total} in x: ToolError: no", *other]
    (tmp_path / "errors.jsonl").write_text(json.dumps({"step": 5, "environment": "x", "error": "ToolError"}) + "\n")
    (finding,) = [one for one in examine(tmp_path).findings if one.rule == "errors"]
    assert finding.evidence[1:] == ["some in x: ToolError"]


CALL = '{"name": "look", "arguments": {"at": 1}}'


@pytest.mark.parametrize(
    ("text", "found"),
    [
        (CALL, True),
        (CALL.replace("arguments", "parameters"), True),
        (f"[{CALL}, {CALL}]", True),
        (f"{CALL}\n{CALL}", True),
        (f"```json\n{CALL}\n```", True),
        (f"I look there:\n\n```\n{CALL}\n```\nThen I answer.", True),
        (CALL.replace("look", "another"), False),
        ('{"answer": 5}', False),
        ('{"name": ["look"], "arguments": {}}', False),
        (f"I would write {CALL}", False),
        ("{" * 9, False),
        ("[" * 100_000, False),
        ("```{" * 50_000, False),
    ],
)
def test_calls_written_as_plain_json_are_named(text: str, found: bool) -> None:
    def rows(env: whet.Environment) -> list[dict[str, Any]]:
        said = iter((text, "5", "5", "5"))
        client = ScriptedClient(lambda **_: next(said))
        states = asyncio.run(run_group(env, list(env.get_dataset()) * 4, client, "m", {}))  # type: ignore[arg-type]
        return [rollout_row(state, group="0", environment="x", advantage=0.0) for state in states]

    tool = {"name": "look", "description": "Looks.", "parameters": {"type": "object", "properties": {}}}
    tasks, rubric = [{"question": "q"}], whet.Rubric([])
    data = RunData(Path(), {"env": [{"id": "x"}]}, [], [])
    record = RunRecord(data, rollouts=rows(whet.SingleTurnEnv(dataset=tasks, rubric=rubric, tool_defs=[tool])))
    findings = [finding for finding in diagnose(record) if finding.rule == "bare-calls"]
    assert len(findings) == found
    assert all("1 of 4 rollouts" in finding.evidence[0] and "task" in finding.evidence[1] for finding in findings)
    without = RunRecord(data, rollouts=rows(whet.SingleTurnEnv(dataset=tasks, rubric=rubric)))
    assert not [finding for finding in diagnose(without) if finding.rule == "bare-calls"]  # it is an answer there


def test_lengths_of_fine_tuning_which_has_no_rewards_are_no_finding() -> None:
    rows = [{"step": step, "seq_len/trained_mean": 10.0 if step < 6 else 100.0} for step in range(1, 12)]
    assert diagnose(RunRecord(RunData(Path(), {}, rows, []))) == []
