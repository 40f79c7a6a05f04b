"""What a review can say: every finding's code and severity, in one table, and the report they add up to. Pure.

An error is a defect, a warning most likely one, a note something to know. The table of docs/authoring.md is that of
`CODES`.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import Any, Literal

Severity = Literal["error", "warning", "note"]
SEVERITIES: tuple[Severity, ...] = ("error", "warning", "note")

CODES: dict[str, tuple[Severity, str]] = {
    # The package's files
    "no-package": ("warning", "a module without a pyproject.toml cannot be installed or shared"),
    "pyproject": ("error", "pyproject.toml cannot be read, or `[tool.whet]` has an unknown key"),
    "metadata": ("warning", "name, version or description is missing, or the name is not the module's"),
    "no-licence": ("warning", "without a licence others may not use it"),
    "no-readme": ("warning", "there is no README"),
    "readme-arguments": ("note", "the README does not name every argument"),
    "no-tests": ("warning", "there are no tests"),
    "no-eval-default": ("warning", "`[tool.whet.eval]` does not say how to evaluate it"),
    "undeclared-dependency": ("warning", "a package is imported that the dependencies do not bring"),
    "secret": ("error", "a file holds what looks like a key or a password"),
    "unread-files": ("note", "the package has more files than were read"),
    # Importing the module
    "import-fails": ("error", "importing the module raises"),
    "import-slow": ("warning", "importing the module takes more than 5 s"),
    "import-writes": ("error", "importing writes or removes files"),
    "import-process": ("error", "importing starts a process"),
    "import-network": ("error", "importing uses the network"),
    "import-thread": ("warning", "importing starts a thread"),
    "import-output": ("warning", "importing prints"),
    "import-environment": (
        "warning",
        "importing changes environment variables, working directory or signal handlers",
    ),
    # load_environment
    "load-fails": ("error", "`load_environment` raises, or returns no environment"),
    "load-slow": ("warning", "`load_environment` and its data take more than 30 s"),
    "needs-keys": ("note", "the environment requires environment variables, which were filled with placeholders"),
    "signature": ("warning", "an argument has no type, no default, no line in the docstring's Args, or no name"),
    # Tasks
    "rows": ("error", "the data set cannot be built, or a row is not a task"),
    "row-types": ("warning", "`answer` is not text, or `info` has what JSON cannot hold"),
    "splits-overlap": ("error", "a task is in both splits"),
    "splits-share-prompts": ("warning", "a prompt is in both splits, with another answer"),
    "no-eval-split": ("warning", "nothing is held out: evaluation falls back to the training tasks"),
    "duplicates": ("note", "a task comes several times in one split"),
    "rows-vary": ("warning", "the same arguments give other tasks the next time"),
    # Rewards
    "no-reward": ("error", "no reward function has a weight, so every reward is 0"),
    "metric-names": ("warning", "a reward function is called like another, a field of rows, or a statistic"),
    "rollout-fails": ("error", "odd but possible answers of a model make rollouts fail"),
    "unprobed": ("note", "rollouts need something that is not here, so that nothing is known about rewards"),
    "right-answer": ("note", "no scripted answer was rewarded, so it is not shown that a right one would be"),
    "reward-hack": ("error", "an answer without merit earns nearly what a right one does"),
    "reward-leak": ("warning", "an answer without merit earns half of what a right one does, or more"),
    "reward-range": ("warning", "rewards leave the range from 0 to 1, or the declared one"),
    "reward-constant": ("warning", "every answer that was tried got the same reward"),
    "reward-varies": ("error", "the same conversation gets another reward in another process"),
    "turns-vary": ("warning", "the environment answers the same messages differently in another process"),
    "endless": ("warning", "a rollout does not end as long as the model continues"),
    "slow-rollout": ("warning", "the environment's own part of a rollout takes more than 1 s, or 10 s at worst"),
    "blocks": ("warning", "the event loop is blocked for more than 1 s"),
    "teardown-fails": ("error", "closing the environment raises"),
    # The check itself
    "unfinished": ("error", "the check was ended by its time limit, or its process died"),
    "not-isolated": ("note", "the package's code ran without a sandbox"),
}


FIXES = {
    "no-package": "Begin with `whet env init` and move the module there.",
    "pyproject": "Correct it.",
    "metadata": "Add it.",
    "no-licence": 'Add license = "..." to [project].',
    "no-readme": "Say what the task, the arguments and the reward are, in README.md.",
    "readme-arguments": "Describe every argument there.",
    "no-tests": "Test that right answers earn and others do not, in tests/test_*.py.",
    "no-eval-default": "Add [tool.whet.eval] with num_examples and rollouts_per_example.",
    "secret": "Take it out, revoke it, and read it from an environment variable (whet.ensure_keys).",
    "import-fails": "Make it importable with its declared dependencies alone.",
    "import-slow": "Import heavy libraries where they are used.",
    "import-writes": "Do that in load_environment, if at all.",
    "import-process": "Start it when a rollout needs it.",
    "import-network": "Fetch data in load_environment, or in its dataset.",
    "import-thread": "Start it when a rollout needs it.",
    "import-output": "Log instead, from inside functions.",
    "import-environment": "Leave environment variables, working directory and signals to the caller.",
    "load-slow": "Prepare the data beforehand.",
    "signature": "Give each argument a type, a default and a line in the docstring.",
    "rows": "Make every row a task.",
    "row-types": "Keep `answer` text and `info` plain JSON values.",
    "splits-overlap": "Decide by a hash of the task itself which split it is in.",
    "splits-share-prompts": "Decide by a hash of the prompt which split it is in.",
    "no-eval-split": "Hold tasks out, for instance by a hash of the task, and give them as eval_dataset.",
    "rows-vary": "Draw them from a seed, and do not depend on the order of sets.",
    "no-reward": "Give the environment a rubric.",
    "metric-names": "Give every reward function and metric a name of its own.",
    "rollout-fails": "Whatever a model writes should end in a reward or in an answer of the environment.",
    "right-answer": "Show it in the package's tests.",
    "reward-range": "Scale the rewards, or declare [tool.whet.check] reward_range in pyproject.toml.",
    "reward-constant": "Make sure that the reward function reads the answer.",
    "reward-varies": "Make rewards depend on the conversation alone: no clock, unseeded randomness or order of sets.",
    "turns-vary": "Draw what is random from a seed in the task.",
    "endless": "Give the environment max_turns.",
    "slow-rollout": "Look for work that could be done once, or in parallel.",
    "blocks": "Await what waits, and move long computations to a process.",
    "teardown-fails": "Let @teardown handlers end well.",
    "unfinished": "Look for what is so large.",
}
"""What to do, where that follows from the code."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One finding, with what to do about it."""

    code: str
    severity: Severity
    where: str  # a file with a line, an argument, a reward function, ...; may be empty
    message: str
    fix: str

    @classmethod
    def of(cls, code: str, message: str, fix: str | None = None, *, where: str = "") -> Finding:
        """A finding with the severity of its code, and where none is given with what to do about that code."""
        return cls(code, CODES[code][0], where, message, FIXES.get(code, "") if fix is None else fix)

    def excused(self, reason: str) -> Finding:
        """The same as a note, for a reason that the package gives."""
        return replace(self, severity="note", message=f"{self.message} (the package says: {reason})", fix="")


@dataclass(frozen=True, slots=True)
class Report:
    """A review. `facts` are the raw measurements behind the findings."""

    environment: str
    path: str
    findings: tuple[Finding, ...]  # most severe first
    facts: dict[str, Any]

    @property
    def ok(self) -> bool:
        return not any(finding.severity == "error" for finding in self.findings)

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)

    def count(self, severity: Severity) -> int:
        return sum(finding.severity == severity for finding in self.findings)


def ordered(findings: list[Finding], excuses: dict[str, str]) -> tuple[Finding, ...]:
    """Most severe first, otherwise in the order of the table; what the package excuses is a note."""
    codes = list(CODES)
    said = [finding.excused(excuses[finding.code]) if finding.code in excuses else finding for finding in findings]
    return tuple(sorted(said, key=lambda one: (SEVERITIES.index(one.severity), codes.index(one.code))))
