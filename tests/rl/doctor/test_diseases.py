"""Every rule finds its disease in a run that really has it, and says nothing of a healthy one."""

from __future__ import annotations

import re
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from whet.rl.doctor import DoctorFinding, examine

Run = Callable[..., Path]

DISEASES = [
    ("nobody reads it", "reward-flat-low", "error", "the parser finds no answer", "nothing was found to score", None),
    ("not credited", "reward-flat-low", "error", "the reward does not credit it", "say the expected answer", None),
    ("too hard", "reward-flat-low", "error", "too hard", "0.000", None),
    ("cut off", "reward-flat-low", "error", "cut off", "max_tokens = 3", "sampling.max_tokens = 12"),
    ("too easy", "reward-flat-high", "warning", "nothing to teach", "1.000 in steps 1 to 6", None),
    ("flat groups", "no-variance", "warning", "teach nothing", "100% of the groups", "rollouts_per_example = 8"),
    ("steps of a hundredfold", "reward-unstable", "error", "lost", "0.530 in step 1", "learning_rate = 0.001"),
    (
        "steps of tenfold",
        "held-out-falls",
        "error",
        "held-out tasks of clinic",
        "0.533 at step 0",
        "learning_rate = 0.0003",
    ),
    ("by turns", "reward-unstable", "warning", "swings", "steps 1 to 12", None),
    ("cold", "identical-outputs", "error", "all the same", "groups that are not solved", "sampling.temperature = 1.0"),
    ("paid for noise", "entropy-explosion", "error", "random", "in step 1", "algorithm.entropy_coef = 0.003"),
    ("paid for length", "lengths", "warning", "far longer", "sampled tokens", "algorithm.length_penalty = 0.1"),
    ("paid for brevity", "lengths", "warning", "shrink", "sampled tokens", None),
    ("paid for brevity", "overfitting", "warning", "held-out tasks of held-out get worse", "held-out reward", None),
    ("paid for one letter", "reward-hacking", "warning", "letters falls", "correlation", None),
    ("paid for one letter", "truncation", "warning", "more and more", "100% of", "sampling.max_tokens = 48"),
    ("one against the other", "forgetting", "warning", "long is forgotten", "25% of a batch", "env.0.weight = 2.0"),
    ("one against the other", "entropy-collapse", "warning", "stopped exploring", "nats", "learning_rate = 0.00067"),
    ("a judge with gaps", "errors", "warning", "RewardError", "no judge for this answer", None),
    ("a slow judge", "slow", "warning", "scoring of clinic", "s of scoring on average", None),
    ("rounded", "sampler-learner-mismatch", "info", "bfloat16", "policy/kl_engine", 'inference.dtype = "float32"'),
    ("no room", "clipped", "warning", "drops many tokens", "of the tokens", "algorithm.eps_high = 0.2"),
    (
        "cut sampling",
        "cut-sampling",
        "warning",
        "draws from less",
        "% of the probability",
        "algorithm.renormalise_cuts",
    ),
    ("long and given up", "length-bias", "warning", "left out", "% of those trained", "max_off_policy_steps = 4"),
    ("masked", "tokens-without-loss", "warning", "not learned from", "carry no loss", "sampling.max_tokens = 20"),
    ("all masked", "failed", "error", "the run failed", "every rollout of the batch was cut off", None),
    ("rare and large", "gradient-spikes", "warning", "spikes", "is usual", "optimizer.max_grad_norm"),
]


TREATED = (
    *("a rate of 0.1", "cold", "cut off", "cut sampling", "flat groups", "groups of one", "masked", "no room"),
    *("paid for noise", "rounded", "steps of a hundredfold"),
)
"""Patients that test_changes.py examines too, and so have been run."""


@pytest.mark.parametrize(
    ("patient", "rule", "severity", "what", "evidence", "change"),
    [pytest.param(*row, marks=() if row[0] in TREATED else pytest.mark.parts) for row in DISEASES],
)
def test_a_disease_is_found_with_its_evidence_and_the_change_to_make(
    run_of: Run, patient: str, rule: str, severity: str, what: str, evidence: str, change: str | None
) -> None:
    finding = found(run_of(patient), rule)
    assert finding.severity == severity
    assert what in finding.what
    assert any(evidence in line for line in finding.evidence), finding.evidence
    first = finding.changes[0]
    if change is None:
        assert first.key is None
    else:
        assert first.text.startswith(change), first.text


@pytest.mark.parts
def test_a_run_that_may_leave_long_rollouts_out_says_so_when_it_begins(run_of: Run) -> None:
    log = (run_of("long and given up") / "logs" / "run.log").read_text()
    assert "a rollout that takes longer than 1 step of the learner is never trained" in log


def found(run: Path, rule: str) -> DoctorFinding:
    findings = {finding.rule: finding for finding in examine(run).findings}
    assert rule in findings, list(findings)
    return findings[rule]


STALLS = """
import asyncio
import whet

class Stalls(whet.SingleTurnEnv):
    async def setup_state(self, state, **kwargs):
        await asyncio.Event().wait()

def load_environment():
    rows = [{"question": "Say 1", "answer": "1"}]
    return Stalls(dataset=rows, eval_dataset=rows, rubric=whet.Rubric(funcs=[zero]))

def zero(completion):
    return 0.0
"""


def test_a_run_that_is_stalled_is_not_called_well(warm: Any, tmp_path: Path) -> None:
    (tmp_path / "stalls.py").write_text(STALLS)
    settings = "batch_size = 4\nrollouts_per_example = 4\n[eval]\nbefore = false\n[watchdog]\nreport_seconds = 0.3\n"
    (tmp_path / "run.toml").write_text(f'name = "run"\n{settings}[[env]]\nid = "./stalls.py"\n')
    process = warm.start("train", "run", "run.toml", cwd=tmp_path)
    assert any(re.match(r"stalled: .* for environment stalls.py, task 0", line) for line in process.stdout)
    until = time.monotonic() + 60
    while "environment stalls.py" not in str((diagnosis := examine(tmp_path / "runs" / "run")).findings):
        assert time.monotonic() < until
    process.send_signal(signal.SIGINT)
    process.finish(130)
    [finding] = diagnosis.findings
    assert (finding.rule, finding.severity) == ("stalled", "warning")
    assert any(re.search(r"has waited .* for environment stalls.py, task 0", line) for line in finding.evidence)
