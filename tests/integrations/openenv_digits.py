"""OpenEnv's environments for whet/tiny, which can say a digit: what it says is made into their actions."""

import re

import whet

SAY = "I think of a whole number from 0 to 7. Guess it: I say higher or lower. Answer with one number only."


def echo(digit):
    return None  # its tools are what it has


def move(digit):
    return ["UP", "DOWN", "LEFT", "RIGHT"][digit] if digit < 4 else None


def number(digit):
    return str(digit)


def guess(digit):
    return f"[{digit}]"


ACTIONS = {"echo": echo, "grid_world": move, "maze": number, "reasoning_gym": number, "textarena": guess}


class DigitParser(whet.Parser):
    def __init__(self, action):
        super().__init__()
        self._action = action

    def parse_answer(self, completion):
        found = re.match(r"\d", completion[-1]["content"] or "")
        return self._action(int(found[0])) if found else None


def said(completion):
    """1 for every second text: of sixteen rollouts some have it, whatever the model says."""
    texts = [message["content"] or "" for message in completion if message["role"] == "assistant"]
    return float(sum(map(ord, "".join(texts))) % 2)


# The seed is one of a sum whose result the model may say: it begins with 3 or 4.
def load_environment(name: str, folder: str, python: str, reset_args: dict | None = None) -> whet.Environment:
    parser = DigitParser(ACTIONS[name])
    more = {"rubric": whet.Rubric([said], parser=parser)} if name == "echo" else {}  # its server gives no reward
    return whet.load_environment(
        f"openenv:{folder}/{name}_env", python=python, reset_args=reset_args, max_turns=3, observation_fields=[],
        num_train_examples=1, num_eval_examples=1, seed=1, invalid_reward=-1.0, step_errors_are_invalid=True,
        instructions=SAY, parser=parser, **more,
    )  # fmt: skip
