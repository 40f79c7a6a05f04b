"""Solve programming problems with a shell at hand, in Python, JavaScript or C; each hidden test passed earns its share.

When the model is done, its program, and nothing else, is taken into a fresh sandbox and given the hidden tests' inputs
one after the other. What it writes is compared here, on the host: expected outputs never enter a sandbox, and what the
model left running in the background does not exist there.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import whet
from code_tests.tasks import LANGUAGES, LEVELS, Language, hidden_tests, make_tasks, same

PROGRAM_BYTES = 100_000
OUTPUT_BYTES = 100_000
BUILD_SECONDS = 60
PATIENCE = 2  # tests that may run out of time before the rest count as failed


class CodeTestsEnv(whet.SandboxEnv):
    def __init__(self, seconds_per_test: float, **kwargs: Any) -> None:
        super().__init__(sandbox_name="code-tests", **kwargs)
        self.seconds_per_test = seconds_per_test

    async def post_rollout(self, state: whet.State) -> None:
        """Test the program. Not after an error or a cancellation: such a rollout is not scored."""
        if state["error"] is not None or not state["is_completed"]:
            return
        language = LANGUAGES[state["info"]["language"]]
        tests = hidden_tests(state["info"])
        program = await self.written_program(state["sandbox_id"], language)
        await self.sandbox_client.delete(state["sandbox_id"])  # or rollouts that wait for a second place wait for ever
        state["tests_total"] = len(tests)
        if program is None:
            state["tests_passed"], state["test_report"] = 0, f"there is no {language.file}"
            return
        request = self.get_sandbox_request(state)
        request.start_command = None
        handle = await self.sandbox_client.create(request)
        try:
            sandbox = await self.sandbox_client.sandbox(handle.id)
            await sandbox.write(language.file, program)
            state["tests_passed"], state["test_report"] = await self.passed(sandbox, language, tests)
        finally:
            await self.sandbox_client.delete(handle.id)

    async def written_program(self, sandbox_id: str, language: Language) -> bytes | None:
        """The bytes of the model's file; None where it is missing, no plain file, or too large to be a solution."""
        sandbox = await self.sandbox_client.sandbox(sandbox_id)
        command = f"[ -f {language.file} ] && exec cat {language.file}"
        result = await sandbox.exec(["sh", "-c", command], output_bytes=PROGRAM_BYTES, timeout_s=BUILD_SECONDS)
        return result.stdout_bytes if result.ok else None

    async def passed(self, sandbox: Any, language: Language, tests: Sequence[Any]) -> tuple[int, str]:
        """How many tests the program passes, and the first thing that went wrong."""
        if language.build is not None:
            built = await sandbox.exec(list(language.build), timeout_s=BUILD_SECONDS, output_bytes=OUTPUT_BYTES)
            if not built.ok:
                return 0, f"it does not build: {built.stderr[:500] or built.describe()}"
        count, late, report = 0, 0, ""
        for test in tests:
            result = await sandbox.exec(
                list(language.run),
                stdin=test.input.encode(),
                timeout_s=self.seconds_per_test,
                output_bytes=OUTPUT_BYTES,
            )
            if result.ok and same(result.stdout, test.output):
                count += 1
                continue
            wrong = "it wrote something else" if result.ok else result.describe()
            report = report or f"{wrong} for the input {test.input[:200]!r}"
            late += result.limit == "time"
            if late >= PATIENCE:
                break
        return count, report


def tests_passed(state: whet.State) -> float:
    """The share of the hidden tests that the program passes."""
    return state["tests_passed"] / state["tests_total"]


def all_tests_passed(state: whet.State) -> float:
    return float(state["tests_passed"] == state["tests_total"])


def load_environment(
    num_train: int = 1000,
    num_eval: int = 128,
    seed: int = 0,
    difficulty: str = "easy",
    languages: tuple[str, ...] = ("python", "javascript", "c"),
    tests_per_task: int = 10,
    max_turns: int = 8,
    seconds_per_test: float = 10,
    timeout_per_command_seconds: float = 20,
    max_output_chars: int = 4000,
    max_sandboxes: int | None = None,
    backend: str | None = None,
) -> whet.Environment:
    """
    Args:
        num_train: Tasks to train on.
        num_eval: Tasks to evaluate on.
        seed: Draws the tasks and their tests.
        difficulty: "easy", "medium", "hard", or "mixed" for all three.
        languages: Which of "python", "javascript" and "c" programs are to be written in.
        tests_per_task: Hidden tests of each task.
        max_turns: Model turns after which the program is tested as it is.
        seconds_per_test: Time for one test. After two that run out of it, the rest count as failed.
        timeout_per_command_seconds: Time for one of the model's own commands.
        max_output_chars: The middle of a longer output is left out before the model reads it.
        max_sandboxes: Sandboxes at once; None = as many as the process may have.
        backend: Kind of sandbox; None = bubblewrap on Linux, docker elsewhere.
    """
    if difficulty not in (*LEVELS, "mixed"):
        raise ValueError(f"difficulty must be one of {', '.join(LEVELS)} and mixed, got {difficulty!r}")
    unknown = sorted(set(languages) - set(LANGUAGES))
    if unknown or not languages:
        raise ValueError(f"languages must be some of {', '.join(LANGUAGES)}, got {', '.join(languages) or 'none'}")
    if not 1 <= tests_per_task <= 50:
        raise ValueError(f"tests_per_task must be between 1 and 50, got {tests_per_task}")
    levels = LEVELS if difficulty == "mixed" else (difficulty,)
    rubric = whet.Rubric(funcs=[tests_passed])
    rubric.add_metric(all_tests_passed)
    return CodeTestsEnv(
        dataset=lambda: make_tasks("train", num_train, seed, levels, list(languages), tests_per_task),
        eval_dataset=lambda: make_tasks("eval", num_eval, seed, levels, list(languages), tests_per_task),
        rubric=rubric,
        max_turns=max_turns,
        seconds_per_test=seconds_per_test,
        timeout_per_command_seconds=timeout_per_command_seconds,
        max_output_chars=max_output_chars,
        max_sandboxes=max_sandboxes,
        backend=backend,
        programs=[program for language in languages for program in LANGUAGES[language].programs],
    )
