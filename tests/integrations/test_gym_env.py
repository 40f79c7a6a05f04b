"""`GymEnv`: episodes of anything with reset and step. What 0.1.14 does with it too is compared in tests/parity."""

import asyncio

import pytest

import whet


class Counter:
    """Counts up to 3; a step is rewarded by how far it goes."""

    opened = closed = 0

    def __init__(self, start=0):
        self.start = start
        type(self).opened += 1

    def reset(self, seed):
        self.at = self.start + seed % 2
        return self.at

    def step(self, action):
        self.at += action
        return self.at, float(action), self.at >= 3, {"at": self.at}

    def close(self):
        type(self).closed += 1


@pytest.fixture(autouse=True)
def fresh():
    Counter.opened = Counter.closed = 0


def play(answers, env_cls=Counter, **kwargs):
    arguments = {"action_parser": int, "num_train_episodes": 1, "num_eval_episodes": 0, **kwargs}
    env = whet.GymEnv(env_cls, **arguments)
    (row,) = env.evaluate_sync(whet.ScriptedClient(answers), "m")["outputs"]
    return row


def test_the_reward_is_the_sum_of_the_steps():
    row = play(["1", "2"])
    assert (row["reward"], row["stop_condition"], row["error"]) == (3.0, "is_done", None)
    assert [message["content"] for message in row["completion"]] == ["1", "1", "2", "3\nEpisode already ended."]


class AsyncCounter(Counter):
    async def reset(self, seed):
        return super().reset(seed), {}

    async def step(self, action):
        return super().step(action)

    async def close(self):
        super().close()


def test_reset_step_and_close_may_be_coroutines():
    row = play(["1", "2"], AsyncCounter)
    assert (row["reward"], row["prompt"][-1]["content"], row["error"]) == (3.0, "0", None)
    assert AsyncCounter.opened == AsyncCounter.closed == 2


def test_an_asynchronous_gym_can_be_made_on_a_running_event_loop():
    async def make():
        return whet.GymEnv(AsyncCounter, num_train_episodes=2, num_eval_episodes=0)

    assert asyncio.run(make()).get_dataset()["question"] == ["0", "1"]


def test_training_and_evaluation_have_seeds_of_their_own():
    env = whet.GymEnv(Counter, num_train_episodes=3, num_eval_episodes=2, seed=10)
    assert env.get_dataset()["answer"] == ["10", "11", "12"]
    assert env.get_eval_dataset()["answer"] == ["13", "14"]
    assert env.get_eval_dataset()["question"] == ["1", "0"]


def test_an_answer_that_is_no_action_ends_the_episode_without_reward():
    row = play(["1", "two"])
    assert (row["reward"], row["stop_condition"], row["error"]) == (1.0, "is_done", None)
    assert row["completion"][-1]["content"].startswith("Action Parsing Error: invalid literal")


def test_an_episode_that_does_not_end_stops_after_its_steps():
    row = play(["0"] * 4, max_episode_steps=4)
    assert (row["stop_condition"], row["metrics"]["num_turns"]) == ("max_turns_reached", 4.0)


def test_a_truncated_step_of_five_values_ends_the_episode():
    class Truncates(Counter):
        def step(self, action):
            return "cut off", 0.5, False, True, {}

    row = play(["1"], Truncates)
    assert (row["reward"], row["stop_condition"]) == (0.5, "is_done")


def test_obs_to_text_and_action_parser():
    row = play(
        ["<answer>3</answer>"], obs_to_text=lambda at: f"You are at {at}.", parser=whet.XMLParser(["answer"]), seed=1
    )
    assert row["prompt"][-1]["content"] == "You are at 1."
    assert row["reward"] == 3.0


def test_a_step_that_returns_something_else_fails_that_rollout():
    class Odd(Counter):
        def step(self, action):
            return "only an observation"

    row = play(["1", "1"], Odd)
    assert row["error"]["error"] == "EnvError"
    assert "should return four or five values" in row["error_chain"]


def test_every_environment_that_was_made_is_closed():
    play(["1", "1", "1"], env_kwargs={"start": 0})
    assert Counter.opened == Counter.closed == 2  # one for the rows, one for the episode


def test_an_episode_that_was_cut_off_is_not_done():
    env = whet.GymEnv(Counter, num_train_episodes=1, num_eval_episodes=0, max_episode_steps=1)
    (row,) = env.evaluate_sync(whet.ScriptedClient(["1"] * 9), "m", state_columns=["gym_done"])["outputs"]
    assert (row["stop_condition"], row["gym_done"]) == ("max_turns_reached", False)


def test_an_environment_may_have_episodes_of_one_kind_alone():
    env = whet.GymEnv(Counter, num_train_episodes=0, num_eval_episodes=2)
    assert (env.dataset, len(env.eval_dataset)) == (None, 2)
    env = whet.GymEnv(Counter, num_train_episodes=2, num_eval_episodes=0)
    assert (len(env.dataset), env.eval_dataset) == (2, None)
