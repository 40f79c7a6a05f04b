"""Rollouts fail: which error, in which environment, how often."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from whet.rl.doctor.finding import Change, Finding
from whet.rl.doctor.record import RunRecord

NAME = "errors"
SOME, MANY = 0.02, 0.3
"""Shares of the rollouts. A group with one error is replaced whole, so 2 % of the rollouts cost 15 % of groups of 8."""
HINTS = {
    "timeout": "raise the environment's time limit, or make what is slow faster",
    "ratelimit": "fewer rollouts at once (max_concurrent) keep below the rate that the service allows",
    "tool": "mend the tool, or let it answer what was wrong instead of raising: the model can learn from that",
    "reward": "mend the reward function: it has to score whatever a model writes",
    "sandbox": "fewer sandboxes at once (max_concurrent), or more memory and time for each",
}
"""What to do, by a word of the error's name."""


def check(run: RunRecord) -> Iterator[Finding]:
    failed = run.series("rollouts/errored_frac").last()
    if not len(failed) or failed.mean < SOME:
        return
    kinds: Counter[tuple[str, str]] = Counter()
    for row in run.errors:
        if failed.steps[0] <= row["step"] <= failed.steps[-1]:
            kinds[str(row["environment"]), str(row["error"])] += int(row["rollouts"])
    evidence = [f"{failed.mean:.1%} of the rollouts of {failed.span} failed, and their groups were sampled again"]
    total = kinds.total()
    for (environment, error), count in kinds.most_common(3):
        evidence.append(f"{count} of {total} in {environment}: {error[:300]}")
    what = "rollouts fail"
    hint = "mend what fails: its groups are sampled again, which costs time and changes which tasks are trained"
    if kinds:
        (environment, error), _ = kinds.most_common(1)[0]
        what = f"rollouts of {environment} fail with {error.partition(':')[0]}"
        names = " ".join(link.partition(":")[0] for link in error.split(" <- ")).casefold()
        hint = next((text for word, text in HINTS.items() if word in names), hint)
    yield Finding(NAME, "error" if failed.mean >= MANY else "warning", what, evidence, [Change(hint)])
