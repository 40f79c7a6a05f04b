"""`python games_worker.py PATHS`: what reasoning-gym and textarena give, as JSON; in `.venv-openenv`, which has both.

PATHS are folders of whet and its packages for the import path.
"""

import json
import sys

sys.path += sys.argv[1].split(":")

from reasoning_gym.factory import DATASETS

import whet
from whet.errors import ConfigError

SOLVED = (
    "basic_arithmetic", "chain_sum", "count_bits", "gcd", "lcm", "leg_counting", "letter_counting", "number_sorting",
    "prime_factorization", "simple_equations", "spell_backward", "word_sorting",
)  # fmt: skip
GAMES = (
    "2048-v0", "Bandit-v0", "FifteenPuzzle-v0", "FrozenLake-v0", "GuessTheNumber-v0", "LightsOut-v0", "LogicPuzzle-v0",
    "Mastermind-v0", "Minesweeper-v0", "PegJump-v0", "Sudoku-v0", "TowerOfHanoi-v0",
)  # fmt: skip


def outputs(env, answer):
    rows = env.evaluate_sync(whet.ScriptedClient(answer), "m", num_examples=2)["outputs"]
    return [[row["reward"], row["error"]] for row in rows]


def solved(name):
    """The rewards of reasoning-gym's own answers."""
    env = whet.ReasoningGymEnv(name, num_train_examples=2, num_eval_examples=2)
    entries = {entry["question"]: entry["answer"] for entry in env.rg_dataset}
    return outputs(env, lambda prompt: f"<answer>{entries[prompt[-1]['content']]}</answer>")


def loaded(name):
    env = whet.ReasoningGymEnv(name, num_train_examples=2, num_eval_examples=1)
    return len(env.get_dataset()), len(env.get_eval_dataset())


def wrong():
    try:
        whet.ReasoningGymEnv("chain_sums")
    except ConfigError as error:
        return str(error)


single = sorted(set(DATASETS) - {"composite"})  # which is a mixture of others
result = {
    "loaded": {name: loaded(name) for name in single},
    "solved": {name: solved(name) for name in SOLVED},
    "games": {
        game: outputs(whet.TextArenaEnv(game, num_train_examples=2, max_turns=3), lambda prompt: "<guess>[1]</guess>")
        for game in GAMES
    },
    "wrong": wrong(),
}
print(f"\n{json.dumps(result)}")
