r"""`HybridMathRubric` of `verifiers.rubrics.experimental`: math-verify first, and a judge where that says no.

What math-verify found is in `state["math_verify_score"]`, what the judge found in `state["judge_result"]` and
`state["judge_score"]`. Both are metrics; the reward is 1 where either says that the answer is right.
"""

from __future__ import annotations

from typing import Any

from whet.decorators import cleanup
from whet.parsers.parser import Parser, extract_boxed_answer
from whet.rubrics.judge_rubric import JudgeRubric
from whet.rubrics.math_rubric import MathRubric
from whet.types import AssistantMessage, Messages, State

ANSWER_PATH = "/app/answer.txt"
DEFAULT_JUDGE_PROMPT = """\
Compare the final answer of a response with a reference answer. The reference is right. Do not solve the question
yourself, and look at the final answer alone, not at how it was found.

* Another notation of the same value, formula or choice is the same answer.
* An answer with several parts is right when all of its parts are.
* A response that ends before it gives an answer, that repeats itself without end, or that refuses, has none.

Question:
```
{question}
```

Reference answer:
```
{answer}
```

Response:
```
{response}
```

Reason briefly, then give your verdict as the last line: \\boxed{{A}} where the answer is right, \\boxed{{B}} where
it is wrong, \\boxed{{C}} where there is none."""


class HybridMathRubric(JudgeRubric):
    """1 where math-verify finds the answer right or, with `use_judge_fallback`, a judge does."""

    DEFAULT_JUDGE_PARSER = None
    DEFAULT_JUDGE_MODEL = "gpt-5-nano"
    DEFAULT_JUDGE_CLIENT = None
    DEFAULT_JUDGE_PROMPT = DEFAULT_JUDGE_PROMPT
    DEFAULT_JUDGE_SAMPLING_ARGS: dict[str, Any] = {}  # noqa: RUF012  read only
    DEFAULT_USE_JUDGE_FALLBACK = False

    def __init__(
        self,
        parser: Parser | None = None,
        use_judge_fallback: bool = False,
        judge_client: Any = None,
        judge_model: str = DEFAULT_JUDGE_MODEL,
        judge_prompt: str = DEFAULT_JUDGE_PROMPT,
        judge_sampling_args: dict[str, Any] | None = None,
        timeout_seconds: float = 5,
        max_workers: int = 50,
        **kwargs: Any,
    ) -> None:
        """Make a rubric.

        Args:
            parser: reads the answer out of a completion, for both.
            use_judge_fallback: call a judge where math-verify finds the answer wrong.
            judge_client: as in `JudgeRubric`; not needed without the judge.
            judge_model: the judge's name, as the client knows it.
            judge_prompt: with `{question}`, `{answer}` and `{response}`; the judge answers A in a box for right.
            judge_sampling_args: for every question.
            timeout_seconds: CPU seconds for one comparison of math-verify.
            max_workers: processes that compare answers at once.
            kwargs: arguments of `JudgeRubric`.
        """
        if judge_client is None and not use_judge_fallback:
            judge_client = _NoJudge()
        super().__init__(
            parser=parser,
            judge_client=judge_client,
            judge_model=judge_model,
            judge_prompt=judge_prompt,
            judge_sampling_args=judge_sampling_args or self.DEFAULT_JUDGE_SAMPLING_ARGS,
            **kwargs,
        )
        self.use_judge_fallback = use_judge_fallback
        self.math_rubric = MathRubric(parser=self.parser, max_workers=max_workers, timeout_seconds=timeout_seconds)
        self.add_reward_func(self.math_verify_score, weight=0)
        self.add_reward_func(self.judge_score, weight=0)
        self.add_reward_func(self.correct_answer, weight=1)

    async def teardown(self) -> None:
        await self.math_rubric.teardown()
        await super().teardown()

    async def math_verify_score(self, completion: Messages, answer: Any, state: State, **kwargs: Any) -> float:
        score = await self.math_rubric.correct_answer(self.parser, completion, answer)
        state["math_verify_score"] = score
        return score

    async def judge_score(
        self, prompt: Messages, completion: Messages, answer: Any, state: State, **kwargs: Any
    ) -> float:
        """The judge's verdict where it was called, else that of math-verify."""
        score = float(state.get("math_verify_score", 0.0))
        if score == 1 or not self.use_judge_fallback:
            return score
        verdict = await self.judge(prompt, completion, answer, state)
        result = verdict if len(verdict) == 1 else extract_boxed_answer(verdict)
        state["judge_result"] = result
        state["judge_score"] = float(result == "A")
        return float(state["judge_score"])

    async def correct_answer(self, state: State, **kwargs: Any) -> float:
        return float(state.get("math_verify_score") or state.get("judge_score") or 0.0)


class _NoJudge:
    """Replaces the client where no judge is used."""

    def __repr__(self) -> str:
        return "no judge: use_judge_fallback is False"


class RemoteHybridMathRubric(HybridMathRubric):
    """Scores what an agent wrote into a file of its sandbox; the comparison runs outside of the sandbox."""

    def __init__(self, answer_path: str = ANSWER_PATH, **kwargs: Any) -> None:
        """Make a rubric of a `ComposableEnv` with `keep_sandbox_for_scoring=True`; kwargs: see `HybridMathRubric`."""
        super().__init__(**kwargs)
        self.answer_path = answer_path

    async def _written(self, state: State) -> Messages:
        """The answer, as the completion that the comparisons read."""
        answer = await state["sandbox_client"].read_file(state["sandbox_id"], self.answer_path)
        return [AssistantMessage(content=answer.content.strip())]

    async def math_verify_score(self, completion: Messages, answer: Any, state: State, **kwargs: Any) -> float:
        return await super().math_verify_score(await self._written(state), answer, state)

    async def judge_score(
        self, prompt: Messages, completion: Messages, answer: Any, state: State, **kwargs: Any
    ) -> float:
        return await super().judge_score(prompt, await self._written(state), answer, state)

    @cleanup
    async def cleanup_sandbox(self, state: State) -> None:
        if state.get("sandbox_id"):
            await state["sandbox_client"].delete(state["sandbox_id"])
