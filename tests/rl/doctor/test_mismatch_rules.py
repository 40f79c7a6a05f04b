"""Which cause the doctor names where sampler and learner are apart: the engine, or the age of tokens."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from whet.rl.config import RunConfig
from whet.rl.doctor import DoctorFinding, diagnose
from whet.rl.doctor.record import RunRecord
from whet.rl.report.data import RunData

ASYNC = {"max_async_level": 1}
BF16 = {"inference": {"dtype": "bfloat16"}}


def record(config: dict[str, Any], steps: int = 12, **metrics: float) -> RunRecord:
    """A run whose metrics are the same in each step: `policy_kl_engine` is `policy/kl_engine`."""
    named = {name.replace("_", "/", 1): value for name, value in metrics.items()}
    rows = [{"step": step, "reward/mean": 0.5, "reward/std": 0.4, **named} for step in range(1, steps + 1)]
    return RunRecord(RunData(Path(), {**config}, rows, []))


def findings(config: dict[str, Any], **metrics: float) -> dict[str, DoctorFinding]:
    return {finding.rule: finding for finding in diagnose(record(config, **metrics))}


def keys(finding: DoctorFinding) -> dict[str, Any]:
    return {change.key: change.value for change in finding.changes if change.key is not None}


FRESH = {"policy_kl": 0.002, "policy_fresh_frac": 0.07, "staleness_mean": 1.0, "staleness_max": 1.0}


@pytest.mark.parametrize(
    ("engine", "config", "severity", "what"),
    [
        (1e-5, BF16, None, ""),
        (5e-4, BF16, "info", "bfloat16 makes sampler and learner differ a little"),
        (5e-3, BF16, "warning", "bfloat16 makes sampler and learner differ noticeably"),
        (5e-2, BF16, "error", "sampler and learner are not the same policy"),
        (1e-5, {}, None, ""),
        (5e-4, {}, "error", "sampler and learner are not the same policy"),
    ],
)
def test_the_engines_mismatch_is_judged_by_what_rounding_explains(
    engine: float, config: dict[str, Any], severity: str | None, what: str
) -> None:
    found = findings({**config, **ASYNC}, **FRESH | {"policy_kl_engine": engine, "policy_kl_stale": 1e-3})
    assert "policy-drift" not in found
    if severity is None:
        assert "sampler-learner-mismatch" not in found
    else:
        assert (found["sampler-learner-mismatch"].severity, found["sampler-learner-mismatch"].what) == (severity, what)


def test_the_evidence_is_the_share_of_the_engine_and_the_changes_are_the_engines_first() -> None:
    differences = {"policy_logprob_diff_mean": 0.03, "policy_logprob_diff_max": 2.5}
    config = {
        "inference": {"dtype": "bfloat16", "base_url": ["http://gpu:8000"]},
        "learner": {"dtype": "bfloat16"},
        **ASYNC,
    }
    found = findings(config, **FRESH, **differences, policy_kl_engine=0.006)["sampler-learner-mismatch"]
    assert found.evidence[0].startswith("policy/kl_engine 0.006 per token in steps 3 to 12")
    assert found.evidence[1] == "their log-probabilities differ by 0.03 on average, by 2.5 at most"
    named = [change.key or change.why.split()[0] for change in found.changes]
    assert named == ["inference.dtype", "learner.dtype", "the", "of", "algorithm.tis_limit"]
    assert "--logprobs-mode" in found.changes[2].why
    assert "router_replay" in found.changes[3].why


@pytest.mark.parametrize(
    ("algorithm", "limit"),
    [
        ({}, {"algorithm.tis_limit": 2.0}),
        ({"loss": "ppo", "eps_high": 0.2}, {"algorithm.tis_limit": 2.0}),
        ({"loss": "ppo", "eps_high": 2.0}, {"algorithm.mis_limit": 5.0}),
        ({"loss": "gspo", "eps_high": 4e-4}, {"algorithm.mis_limit": 5.0}),
        ({"tis_limit": 3.0}, {}),
        ({"mis_limit": 3.0}, {}),
        ({"loss": "my.losses:mine"}, {}),
    ],
)
def test_a_limit_is_proposed_where_the_loss_takes_one_and_has_none(
    algorithm: dict[str, Any], limit: dict[str, float]
) -> None:
    found = findings({"algorithm": algorithm}, policy_kl=0.05, policy_kl_engine=0.05, policy_fresh_frac=1.0)
    changes = keys(found["sampler-learner-mismatch"])
    assert changes == limit
    values = {name.removeprefix("algorithm."): value for name, value in changes.items()}
    RunConfig.model_validate({"name": "r", "env": [{"id": "e"}], "algorithm": {**algorithm, **values}})


def test_steps_count_by_the_tokens_that_were_measured() -> None:
    run = record({**BF16, **ASYNC}, policy_kl_engine=2e-5, policy_fresh_frac=0.5)
    run.data.metrics[-1].update({"policy/kl_engine": 5e-3, "policy/fresh_frac": 1e-3})  # a few odd tokens
    assert diagnose(run) == []


def test_without_a_fresh_token_nothing_is_said_of_the_engine() -> None:
    found = findings({**BF16, **ASYNC}, **FRESH | {"policy_kl": 0.01, "policy_fresh_frac": 0.0})
    assert "sampler-learner-mismatch" not in found


@pytest.mark.parametrize("policy_kl", [5e-4, 0.05])
def test_a_run_recorded_before_the_split_is_judged_by_the_whole(policy_kl: float) -> None:
    same = findings({}, policy_kl=policy_kl, staleness_mean=0.0)
    assert same["sampler-learner-mismatch"].severity == "error"
    old = findings(ASYNC, policy_kl=policy_kl, staleness_mean=1.0, staleness_max=1.0)
    assert "sampler-learner-mismatch" not in old
    assert ("policy-drift" in old) == (policy_kl > 0.02)


def test_drift_is_what_the_age_of_tokens_does_not_explain() -> None:
    found = findings(ASYNC, **FRESH | {"policy_kl": 0.05, "policy_kl_engine": 1e-5, "policy_kl_stale": 0.049})
    drift = found["policy-drift"]
    assert drift.severity == "warning"
    assert drift.evidence == ["policy/kl_stale 0.049 per token in steps 3 to 12; tokens 1.00 versions old explain 0.02"]
    assert keys(drift) == {"learning_rate": 3.3e-06, "oversampling_factor": 0.5, "algorithm.tis_limit": 2.0}
    older = FRESH | {"staleness_mean": 3.0, "policy_kl_stale": 0.049}
    assert "policy-drift" not in findings(ASYNC, **older)


def test_the_changes_against_drift_make_tokens_younger() -> None:
    config = {"max_async_level": 3, "oversampling_factor": 2.0}
    old = {"policy_kl": 0.5, "policy_kl_stale": 0.4, "staleness_mean": 3.0, "staleness_max": 7.5}
    found = findings(config, **old)["policy-drift"]
    changes = keys(found)
    assert changes.pop("learning_rate") < 1e-5
    assert changes == {
        "oversampling_factor": 1.0,
        "max_async_level": 1,
        "max_off_policy_steps": 5,
        "algorithm.tis_limit": 2.0,
    }
    assert found.evidence[1] == "the oldest token of a step is 7.5 versions old"
    keyed = {name: value for name, value in changes.items() if "." not in name}
    RunConfig.model_validate({"name": "r", "env": [{"id": "e"}], **config, **keyed, "algorithm": {"tis_limit": 2.0}})


def test_a_loss_that_drops_tokens_for_its_limits_is_told_to_widen_them() -> None:
    config = {"algorithm": {"loss": "importance_sampling", "tis_limit": 1.1, "mis_limit": 1.5}}
    shares = {"policy_clip_frac": 0.4, "policy_tis_frac": 0.3, "policy_mis_frac": 0.1}
    assert keys(findings(config, **shares)["clipped"])["algorithm.tis_limit"] == 2.2
    assert "algorithm.mis_limit" not in keys(findings(config, **shares)["clipped"])
