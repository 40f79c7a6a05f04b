"""`MathTaskSet` of `verifiers.envs.experimental.composable.tasksets.math`: an agent writes answers into files."""

from __future__ import annotations

import os
from typing import Any

from whet.compat.experimental.composable_tasks import ComposableSandbox, SandboxTaskSet
from whet.compat.hybrid_math_rubric import ANSWER_PATH, RemoteHybridMathRubric
from whet.errors import ConfigError


class MathTaskSet(SandboxTaskSet):
    """Questions of a data set of the Hugging Face hub, whose answer an agent writes into a file."""

    def __init__(
        self,
        dataset_name: str = "PrimeIntellect/INTELLECT-3-RL",
        dataset_subset: str | None = "math",
        dataset_split: str = "train",
        filter_fn: str | None = None,
        question_key: str = "question",
        answer_key: str = "answer",
        instruction_prompt: str = "Solve the following problem.\n\n",
        answer_path: str = ANSWER_PATH,
        docker_image: str = ComposableSandbox.image,
        difficulty_key: str | None = None,
        min_avg_reward: float = 0.0,
        max_avg_reward: float = 1.0,
        judge_model: str = "openai/gpt-5-nano",
        judge_base_url: str | None = None,
        judge_api_key_var: str | None = "OPENAI_API_KEY",
        use_judge_fallback: bool = True,
        judge_prompt: str | None = None,
        judge_timeout: float = 1200.0,
        **_for_datasets: Any,
    ) -> None:
        """Make a taskset; the arguments are those of 0.1.14. `ds_*`, about the cache of `datasets`, have no effect."""
        self.instruction_prompt, self.answer_path, self.docker_image = instruction_prompt, answer_path, docker_image
        self.rubric_arguments: dict[str, Any] = {"use_judge_fallback": use_judge_fallback, "judge_model": judge_model}
        if judge_prompt is not None:
            self.rubric_arguments["judge_prompt"] = judge_prompt
        self.judge = (judge_base_url, judge_api_key_var, judge_timeout)

        def rows() -> list[dict[str, Any]]:
            from datasets import load_dataset

            loaded = load_dataset(dataset_name, dataset_subset, split=dataset_split)
            if difficulty_key in loaded.column_names:
                loaded = loaded.filter(lambda row: min_avg_reward <= row[difficulty_key] <= max_avg_reward)
            return [{"info": {"question": row[question_key]}, "answer": str(row[answer_key])} for row in loaded]

        super().__init__(rows, f"math/{dataset_name}", filter_fn)

    def get_instruction(self, info: dict[str, Any]) -> str:
        return f"{self.instruction_prompt}{info['question']}\n\nWrite your final answer to `{self.answer_path}`."

    def get_sandbox_spec(self, info: dict[str, Any]) -> ComposableSandbox:
        return ComposableSandbox(image=self.docker_image, cpu_cores=1, memory_gb=2, disk_size_gb=4)

    def get_rubric(self) -> RemoteHybridMathRubric:
        url, variable, timeout = self.judge
        client = None
        if self.rubric_arguments["use_judge_fallback"]:
            from openai import AsyncOpenAI

            if not variable or variable not in os.environ:
                raise ConfigError(f"the judge needs its key in {variable}; or leave it out: use_judge_fallback=False.")
            client = AsyncOpenAI(base_url=url, api_key=os.environ[variable], timeout=timeout)
        return RemoteHybridMathRubric(self.answer_path, judge_client=client, **self.rubric_arguments)
