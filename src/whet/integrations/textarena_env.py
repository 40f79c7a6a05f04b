"""`TextArenaEnv`: a game of one player from `textarena`, played turn by turn.

    env = whet.TextArenaEnv("GuessTheNumber-v0", parser=whet.XMLParser(["guess"], answer_field="guess"), rubric=rubric)

What the parser finds in the model's answer is its move; what the game says to that, the model reads through
`feedback_fn`. A game with a list of words is given the word of its row (`answer`) as its secret. Any other game is
dealt by the seed of its row, `info["seed"]`; its chance is Python's `random`, which textarena seeds for the whole
process at each deal.

Names and arguments are those of the `verifiers` 0.1 contract. textarena's word games load word lists of NLTK, and
download them on first use.
"""

from __future__ import annotations

import contextlib
import io
import random
from collections.abc import Callable, Mapping
from copy import deepcopy
from typing import Any

from whet.decorators import cleanup
from whet.envs.multiturn_env import MultiTurnEnv
from whet.errors import ConfigError, MissingExtraError
from whet.parsers.parser import Parser
from whet.parsers.xml_parser import XMLParser
from whet.rubrics.rubric import Rubric
from whet.types import Messages, State, UserMessage


def unchanged(observation: str) -> str:
    return observation


def game_reward(state: State) -> float:
    """What the game gave its player; 0 for a game that was not played to its end."""
    return float(state.get("game_reward") or 0.0)


class TextArenaEnv(MultiTurnEnv):
    """A game of the `textarena` package for one player."""

    def __init__(
        self,
        game: str = "Wordle-v0",
        num_train_examples: int = 1000,
        num_eval_examples: int = 0,
        system_prompt: str | None = None,
        parser: Parser | None = None,
        rubric: Rubric | None = None,
        feedback_fn: Callable[[str], str] = unchanged,
        seed: int = 0,
        **kwargs: Any,
    ) -> None:
        """Make an environment.

        Args:
            game: the id of a game in textarena.
            num_train_examples: games to train on.
            num_eval_examples: games to evaluate on; other deals, while a word may come up in both.
            system_prompt: put before the rules of the game.
            parser: reads the move; an `XMLParser` of think and guess by default.
            rubric: scores the conversation; otherwise the game's own reward counts.
            feedback_fn: from what the game says to what the model reads.
            seed: of the choice of words or deals.
            kwargs: arguments of `MultiTurnEnv`.
        """
        self.game = game
        self.num_train_examples = num_train_examples
        self.num_eval_examples = num_eval_examples
        self.seed = seed
        self.feedback_fn = feedback_fn
        self._scores_itself = rubric is None
        self.ta_env = _make(game)
        self.shared_memo = self.build_shared_memo(self.ta_env)
        dataset, eval_dataset = self.ta_to_hf()
        parser = parser or XMLParser(["think", "guess"], answer_field="guess")
        super().__init__(
            dataset=dataset,
            eval_dataset=eval_dataset,
            system_prompt=system_prompt,
            parser=parser,
            rubric=rubric or Rubric([game_reward], parser=parser),
            **kwargs,
        )

    @staticmethod
    def build_shared_memo(ta_env: Any) -> dict[int, Any]:
        """What copies of the game share: its dictionary and its words, which are large and never change."""
        while hasattr(ta_env, "env"):
            ta_env = ta_env.env
        shared = (getattr(ta_env, name, None) for name in ("dictionary", "word_list"))
        return {id(thing): thing for thing in shared if thing is not None}

    def ta_to_hf(self) -> tuple[Any, Any]:
        """The rows to train on, and those to evaluate on or None."""
        count = self.num_train_examples + self.num_eval_examples
        words = getattr(self.ta_env, "word_list", None)
        rows = self._dealt_rows(count) if words is None else self._word_rows(words, count)
        return rows[: self.num_train_examples], rows[self.num_train_examples :] or None

    async def setup_state(self, state: State) -> None:
        game = deepcopy(self.ta_env, dict(self.shared_memo))
        info = state.get("info")
        if isinstance(info, Mapping) and "seed" in info:
            game.reset(num_players=1, seed=info["seed"])
            game.get_observation()  # the rules, which are the question already
        else:
            game.state.game_state["secret_word"] = state["answer"]
        state["ta_env"] = game

    async def env_response(self, messages: Messages, state: State, **kwargs: Any) -> Messages:
        game = self._play(state, messages)
        if game.state.done:
            response: Messages = [UserMessage(game.state.game_info[0]["reason"])]
            state["final_env_response"] = response
            return response
        _, observation = game.get_observation()
        return [UserMessage(str(self.feedback_fn(observation)))]

    @cleanup
    async def cleanup_ta_env(self, state: State) -> None:
        """Drop the game. The move of a last turn that `max_turns` allows is played first: it may have won."""
        if self._scores_itself and state.get("stop_condition") == "max_turns_reached" and "ta_env" in state:
            self._play(state, state["trajectory"][-1]["completion"])
        state.pop("ta_env", None)

    def _play(self, state: State, messages: Messages) -> Any:
        """Play the move in `messages`; returns the game."""
        game = state["ta_env"]
        game.step(str(self.parser.parse_answer(messages)))
        if self._scores_itself and game.state.done:
            state["game_reward"] = (game.state.rewards or {}).get(0)
        return game

    def _word_rows(self, words: Any, count: int) -> list[dict[str, Any]]:
        if isinstance(words, Mapping):
            words = [word for some in words.values() for word in (some if isinstance(some, list | tuple) else [some])]
        _, rules = self.ta_env.get_observation()
        chance = random.Random(self.seed)
        return [{"question": rules, "answer": chance.choice(words)} for _ in range(count)]

    def _dealt_rows(self, count: int) -> list[dict[str, Any]]:
        rows = []
        for seed in range(self.seed, self.seed + count):
            game = deepcopy(self.ta_env, dict(self.shared_memo))
            game.reset(num_players=1, seed=seed)
            _, rules = game.get_observation()
            rows.append({"question": rules, "info": {"seed": seed}})
        return rows


def _make(game: str) -> Any:
    """The game, ready for its first move."""
    try:
        import textarena
    except ImportError as error:
        raise MissingExtraError("TextArenaEnv", "ta") from error
    try:
        with contextlib.redirect_stdout(io.StringIO()):  # NLTK tells of its downloads there
            made = textarena.make(env_id=game)
            made.reset(num_players=1)
    except LookupError as error:
        raise ConfigError(
            f"the game '{game}' needs data of NLTK that could not be downloaded. Fetch it where there is a network: "
            "python -m nltk.downloader words averaged_perceptron_tagger_eng"
        ) from error
    except (ValueError, ImportError, TypeError, AssertionError) as error:
        raise ConfigError(f"textarena makes no game '{game}' of one player: {error}.") from error
    return made
