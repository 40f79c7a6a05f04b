"""`GymEnv`: anything with `reset(seed=...)` and `step(action)`, as the environments of Gym and Gymnasium have them.

    env = whet.GymEnv(Corridor, action_parser=int, num_train_episodes=100)

Observations become text, the model's answer becomes an action, and the reward of a rollout is the sum of what the steps
gave. Names and arguments are those of the `verifiers` 0.1 contract; neither library is needed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol, TypeAlias

from whet.calls import describe, resolve
from whet.decorators import cleanup, stop
from whet.envs.multiturn_env import MultiTurnEnv
from whet.errors import EnvError
from whet.messages import content_text
from whet.parsers.parser import Parser
from whet.rollouts.generate import run_sync
from whet.rubrics.rubric import Rubric
from whet.types import Messages, State, UserMessage

ResetOut: TypeAlias = Any | tuple[Any, dict[str, Any]]
StepOut: TypeAlias = tuple[Any, float, bool, dict[str, Any]] | tuple[Any, float, bool, bool, dict[str, Any]]


class StepResetEnv(Protocol):
    """What a `GymEnv` plays. `reset(seed=...)` returns an observation, or one and a dict; `step(action)` returns
    observation, reward, done and info, or observation, reward, terminated, truncated and info. Both, and `close`, may
    be coroutines."""

    reset: Callable[..., Any]
    step: Callable[..., Any]


def normalize_reset(out: Any) -> tuple[Any, dict[str, Any]]:
    return (out[0], out[1]) if isinstance(out, tuple) and len(out) == 2 else (out, {})


def normalize_step(out: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
    if not isinstance(out, tuple | list) or len(out) not in (4, 5):
        raise EnvError(f"step() returned {out!r:.80}; it should return four or five values, the observation first")
    observation, reward, done, *rest = out
    truncated = bool(rest[0]) if len(rest) == 2 else False
    return observation, float(reward), bool(done), truncated, rest[-1]


def sum_step_rewards(state: State) -> float:
    """What the steps of the episode gave, together."""
    return float(sum(step["reward"] or 0.0 for step in state["trajectory"]))


class EpisodicSumRubric(Rubric):
    def __init__(self, weight: float = 1.0, **kwargs: Any) -> None:
        super().__init__(funcs=[sum_step_rewards], weights=[weight], **kwargs)


def _as_it_is(text: str) -> Any:
    return text


class GymEnv(MultiTurnEnv):
    """An environment with `reset` and `step`, as Gym has them, played in messages."""

    def __init__(
        self,
        env_cls: Callable[..., StepResetEnv],
        env_kwargs: dict[str, Any] | None = None,
        action_parser: Callable[[str], Any] | None = None,
        obs_to_text: Callable[[Any], str] | None = None,
        num_train_episodes: int = 1000,
        num_eval_episodes: int = 20,
        max_episode_steps: int | None = None,
        seed: int = 0,
        system_prompt: str | None = None,
        few_shot: Sequence[Any] | None = None,
        parser: Parser | None = None,
        rubric: Rubric | None = None,
        **kwargs: Any,
    ) -> None:
        """Make an environment.

        Args:
            env_cls: makes one episode's environment.
            env_kwargs: what it is made with.
            action_parser: from what the model says to an action; one that raises ends the episode with reward 0.
            obs_to_text: from an observation to text; `str` by default.
            num_train_episodes: episodes to train on, the seeds from `seed` on.
            num_eval_episodes: episodes to evaluate on, the seeds after those.
            max_episode_steps: steps after which an episode ends; 1000 by default.
            seed: of the first episode.
            system_prompt, few_shot, parser, rubric, kwargs: as for `MultiTurnEnv`; the default rubric is the sum.
        """
        self.env_cls = env_cls
        self.env_kwargs = dict(env_kwargs or {})
        self.action_parser = action_parser or _as_it_is
        self.obs_to_text_fn = obs_to_text
        self.num_train_episodes = num_train_episodes
        self.num_eval_episodes = num_eval_episodes
        self.seed = seed
        dataset, eval_dataset = self.gym_to_hf()
        super().__init__(
            dataset=dataset,
            eval_dataset=eval_dataset,
            max_turns=max_episode_steps or 1000,
            system_prompt=system_prompt,
            few_shot=few_shot,
            parser=parser,
            rubric=rubric or EpisodicSumRubric(),
            **kwargs,
        )

    def gym_to_hf(self) -> tuple[Any, Any]:
        """The rows to train on and to evaluate on, None where there are none; `answer` is the seed of an episode."""
        rows = run_sync(self._first_observations())
        return rows[: self.num_train_episodes] or None, rows[self.num_train_episodes :] or None

    async def _first_observations(self) -> list[dict[str, str]]:
        rows = []
        gym = self.env_cls(**self.env_kwargs)
        try:
            for seed in range(self.seed, self.seed + self.num_train_episodes + self.num_eval_episodes):
                observation, _ = normalize_reset(await resolve(gym.reset(seed=seed)))
                rows.append({"question": self.obs_to_text(observation), "answer": str(seed)})
        finally:
            await _close(gym)
        return rows

    def obs_to_text(self, obs: Any) -> str:
        return str(obs) if self.obs_to_text_fn is None else self.obs_to_text_fn(obs)

    def wrap_response(self, text: str) -> Messages:
        return [UserMessage(text)]

    async def setup_state(self, state: State) -> None:
        state["gym_done"] = False
        await super().setup_state(state)

    async def env_response(self, messages: Messages, state: State, **kwargs: Any) -> Messages:
        if "gym_env" not in state:
            state["gym_env"] = gym = self.env_cls(**self.env_kwargs)
            await resolve(gym.reset(seed=int(state["answer"])))
        step = state["trajectory"][-1]
        answer = self.parser.parse_answer(messages)
        try:
            action = self.action_parser(content_text(step["completion"][-1]["content"]) if answer is None else answer)
        except Exception as error:
            self.logger.debug("no action: %s", describe(error))
            step["reward"] = 0.0
            return self._end(state, f"Action Parsing Error: {error}")
        observation, reward, terminated, truncated, info = normalize_step(await resolve(state["gym_env"].step(action)))
        step["reward"] = reward
        step["extras"]["gym_info"] = info
        text = self.obs_to_text(observation)
        if terminated or truncated:
            return self._end(state, f"{text}\nEpisode already ended.")
        return self.wrap_response(text)

    def _end(self, state: State, text: str) -> Messages:
        state["gym_done"] = True
        state["final_env_response"] = self.wrap_response(text)
        return self.wrap_response(text)

    @stop(priority=1)  # before the final response, which ends every game
    async def is_done(self, state: State) -> bool:
        return bool(state.get("gym_done", False))

    @cleanup
    async def cleanup_env(self, state: State) -> None:
        gym = state.pop("gym_env", None)
        if gym is not None:
            await _close(gym)


async def _close(gym: Any) -> None:
    close = getattr(gym, "close", None)
    if close is not None:
        await resolve(close())
