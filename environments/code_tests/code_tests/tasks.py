"""Problems drawn from a seed: kind, parameters, prompt and tests.

Two examples are shown. The hidden tests are made again from the task's own seed where they are needed, so they are in
no row, no prompt and no sandbox. Their outputs all differ from each other, from the examples' and from the inputs: a
program that prints one answer whatever it reads, or repeats its input, passes at most one test or none.
"""

from __future__ import annotations

import json
import random
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from code_tests import hard_families
from code_tests.families import FAMILIES, Parameters

LEVELS = ("easy", "medium", "hard")
EXAMPLES = 2
ATTEMPTS = 60  # for each test, before a problem counts as one that gives too few different outputs

assert hard_families  # importing it has added its kinds to FAMILIES


@dataclass(frozen=True)
class Language:
    """How a program is written, built and run."""

    title: str
    file: str
    build: tuple[str, ...] | None
    run: tuple[str, ...]
    programs: tuple[str, ...]


LANGUAGES = {
    "python": Language("Python", "solution.py", None, ("python3", "solution.py"), ("python3",)),
    "javascript": Language("JavaScript (Node.js)", "solution.js", None, ("node", "solution.js"), ("node",)),
    "c": Language(
        "C", "solution.c", ("gcc", "-O2", "-std=c11", "-o", "solution", "solution.c", "-lm"), ("./solution",), ("gcc",)
    ),
}


@dataclass(frozen=True)
class Test:
    """What a program reads, and what it should write."""

    input: str
    output: str


def same(written: str, expected: str) -> bool:
    """Equal but for spaces at the ends of lines and empty lines at the end."""
    return [line.rstrip() for line in written.rstrip().split("\n")] == expected.split("\n")


def make_tests(kind: str, parameters: Parameters, seed: int, count: int) -> list[Test] | None:
    """The two examples, then `count` hidden tests; None where the problem gives too few different outputs."""
    family = FAMILIES[kind]
    rng = random.Random(f"tests {kind} {json.dumps(parameters, sort_keys=True)} {seed}")
    tests: list[Test] = []
    seen: set[str] = set()
    for _ in range(ATTEMPTS * (count + EXAMPLES)):
        text = family.make_input(rng, parameters)
        output = family.solve(parameters, text)
        if output not in seen and not same(text, output):
            seen.add(output)
            tests.append(Test(text, output))
            if len(tests) == count + EXAMPLES:
                return tests
    return None


def split_of(kind: str, parameters: Parameters) -> Literal["train", "eval"]:
    """A quarter of all problems is for evaluation, in whatever language they are to be solved."""
    key = f"{kind} {json.dumps(parameters, sort_keys=True)}"
    return "eval" if zlib.crc32(key.encode()) % 4 == 0 else "train"


def question(kind: str, parameters: Parameters, language: Language, examples: Sequence[Test]) -> str:
    shown = "\n\n".join(
        f"Example {number}, input:\n```\n{test.input.rstrip()}\n```\nOutput:\n```\n{test.output}\n```"
        for number, test in enumerate(examples, 1)
    )
    run = " ".join(language.run)
    build = f" It is built with `{' '.join(language.build)}` and" if language.build else " It is"
    return (
        f"Write a program in {language.title} that reads from standard input and writes to standard output.\n\n"
        f"{FAMILIES[kind].statement(parameters)}\n\n{shown}\n\n"
        f"Use the bash tool to write the program to the file {language.file} in the current folder and to try it out."
        f"{build} run with `{run}`, on other inputs than these. Answer without calling a tool when it is finished."
    )


def make_tasks(
    split: Literal["train", "eval"], size: int, seed: int, levels: Sequence[str], languages: Sequence[str], tests: int
) -> list[dict[str, Any]]:
    """`size` different tasks of one split, fewer where there are no more; kinds and languages take turns."""
    rng = random.Random(f"{split} {seed} {sorted(levels)} {sorted(languages)}")
    kinds = [kind for kind, family in FAMILIES.items() if family.level in levels]
    rows: dict[str, dict[str, Any]] = {}
    tries = 0
    while len(rows) < size and tries < 40 * size:
        kind, language = kinds[tries % len(kinds)], languages[tries // len(kinds) % len(languages)]
        tries += 1
        parameters = FAMILIES[kind].draw(rng)
        key = json.dumps([kind, parameters, language], sort_keys=True)
        if key in rows or split_of(kind, parameters) != split:
            continue
        made = make_tests(kind, parameters, seed, tests)
        if made is not None:
            info = {"kind": kind, "parameters": parameters, "language": language, "seed": seed, "tests": tests}
            text = question(kind, parameters, LANGUAGES[language], made[:EXAMPLES])
            rows[key] = {"question": text, "answer": "", "info": info}
    return list(rows.values())


def hidden_tests(info: dict[str, Any]) -> list[Test]:
    """The hidden tests of a task."""
    made = make_tests(info["kind"], info["parameters"], info["seed"], info["tests"])
    assert made is not None, "make_tasks has kept problems only that have enough tests"
    return made[EXAMPLES:]
