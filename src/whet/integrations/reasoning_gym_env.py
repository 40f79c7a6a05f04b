"""`ReasoningGymEnv`: the procedural tasks of `reasoning-gym`, one or a mixture of them, with its own scoring.

    env = whet.ReasoningGymEnv("chain_sum", num_train_examples=1000, num_eval_examples=100)
    env = whet.ReasoningGymEnv(["leg_counting", {"name": "chain_sum", "weight": 2.0, "config": {"max_terms": 3}}])

Tasks are generated on first use. Names and arguments are those of the `verifiers` 0.1 contract. A task is
known by its number in one seeded series: training takes the first, evaluation those after. A generator with few
possible questions may repeat one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from whet.envs.config.arguments import nearest
from whet.envs.multiturn_env import SingleTurnEnv
from whet.errors import ConfigError, MissingExtraError
from whet.parsers.parser import Parser
from whet.parsers.xml_parser import XMLParser
from whet.rubrics.rubric import Rubric
from whet.system.origins import is_written_for_verifiers
from whet.types import Messages

Row = dict[str, Any]


class ReasoningGymEnv(SingleTurnEnv):
    """Tasks and scores of the `reasoning-gym` package."""

    def __init__(
        self,
        gym: str | Sequence[str | Mapping[str, Any]],
        num_train_examples: int = 1000,
        num_eval_examples: int = 100,
        system_prompt: str | None = None,
        parser: Parser | None = None,
        seed: int = 0,
        **kwargs: Any,
    ) -> None:
        """Make an environment.

        Args:
            gym: the name of a dataset in reasoning-gym, or a mixture: names, and dicts with name, weight and config.
            num_train_examples: how many tasks to train on.
            num_eval_examples: how many to evaluate on.
            system_prompt: the default is that of reasoning-gym, which requires `<answer>` tags.
            parser: reads the answer; an `XMLParser` of the field `answer` by default.
            seed: of the series of tasks.
            kwargs: arguments of `Environment`, other than datasets and rubric.
        """
        self.gym = gym
        self.num_train_examples = num_train_examples
        self.num_eval_examples = num_eval_examples
        self.seed = seed
        self.rg_dataset = self.build_rg_dataset(gym, num_train_examples + num_eval_examples, seed=seed)
        self._rows: tuple[Any, Any] | None = None
        parser = parser or XMLParser(["answer"])
        rubric = Rubric(parser=parser)
        rubric.add_reward_func(self.check_answer_reward_func)
        rubric.add_metric(parser.get_format_reward_func())
        super().__init__(
            dataset=(lambda: self._split()[0]) if num_train_examples else None,
            eval_dataset=(lambda: self._split()[1]) if num_eval_examples else None,
            system_prompt=_library().utils.SYSTEM_PROMPTS["default"] if system_prompt is None else system_prompt,
            parser=parser,
            rubric=rubric,
            **kwargs,
        )
        if is_written_for_verifiers(type(self)):
            self.rubric = rubric  # 0.1.14 counts no turns here

    def build_rg_dataset(self, gym: Any, total_examples: int = 1000, seed: int = 0) -> Any:
        """The series of tasks, from reasoning-gym."""
        rg = _library()
        try:
            if isinstance(gym, str):
                return rg.create_dataset(gym, size=total_examples, seed=seed)
            specs = [
                rg.composite.DatasetSpec(
                    **({"weight": 1.0, "config": {}} | ({"name": one} if isinstance(one, str) else one))
                )
                for one in gym
            ]
            return rg.create_dataset("composite", datasets=specs, size=total_examples, seed=seed)
        except (ValueError, TypeError, AssertionError) as error:
            known = sorted(rg.factory.DATASETS)
            raise ConfigError(
                f"reasoning-gym makes no tasks of {gym!r}: {error}. Give the name of one of its datasets, or a list of "
                "names and of dicts with name, weight and config."
                f"{nearest(gym, known) if isinstance(gym, str) and gym not in known else ''}"
            ) from error

    def rg_to_hf(self, rg_dataset: Any) -> tuple[Any, Any]:
        """The rows to train and to evaluate on; `answer` is the number of a task in the series."""
        rows: list[Row] = [
            {
                "question": entry["question"],
                "answer": str(index),
                "info": {"source_dataset": entry["metadata"]["source_dataset"]},
            }
            for index, entry in enumerate(rg_dataset)
        ]
        return rows[: self.num_train_examples], rows[self.num_train_examples :]

    async def check_answer_reward_func(self, completion: Messages, answer: str, parser: Parser) -> float:
        """What reasoning-gym gives for the answer, 0 to 1."""
        response = str(parser.parse_answer(completion)).strip()
        return float(self.rg_dataset.score_answer(answer=response, entry=self.rg_dataset[int(answer)]))

    def _split(self) -> tuple[Any, Any]:
        if self._rows is None:
            self._rows = self.rg_to_hf(self.rg_dataset)
        return self._rows


def _library() -> Any:
    try:
        import reasoning_gym
        import reasoning_gym.composite
        import reasoning_gym.factory
        import reasoning_gym.utils
    except ImportError as error:
        raise MissingExtraError("ReasoningGymEnv", "rg") from error
    return reasoning_gym
