"""An environment that puts its secrets into everything that is written: `load_environment(hint, fails=False)`."""

import logging
import os
import sys
import warnings

import whet

NAMES = ("LEAKY_FILE", "LEAKY_API_KEY", "LEAKY_SERVICE")


def load_environment(hint: str = "", fails: bool = False) -> whet.Environment:
    secret = " and ".join(os.environ[name] for name in NAMES)

    class LeakyEnv(whet.MultiTurnEnv):
        async def setup_state(self, state, **kwargs):
            state = await super().setup_state(state, **kwargs) or state
            print("setting up with", secret)
            print(secret, file=sys.stderr)
            logging.getLogger("leaky").warning("the key is %s", secret)
            warnings.warn(f"the key is {secret}", stacklevel=1)
            state["info"]["key"] = secret
            state["info"][secret] = [secret]
            state["leak"] = {"deep": [secret], secret: 1}
            if fails or state["info"]["task"] == 1:
                raise ConnectionError(f"401 from https://judge/?key={secret}")
            return state

        async def env_response(self, messages, state, **kwargs):
            return [{"role": "user", "content": f"You may use {secret}."}]

        @whet.stop
        async def two_turns(self, state, **kwargs):
            return len(state["trajectory"]) > 1

    def reward(completion, **kwargs):
        print(secret)
        return float(len(completion[0]["content"] or "")) / 10

    rows = [
        {"question": f"{number}: the key is {secret}", "answer": secret, "info": {"task": number}}
        for number in range(8)
    ]
    return LeakyEnv(
        dataset=rows,
        eval_dataset=rows,
        system_prompt=f"Key: {secret}",
        rubric=whet.Rubric(funcs=[reward]),
    )
