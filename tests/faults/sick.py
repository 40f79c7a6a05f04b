"""An environment with one sick task, for runs to survive: `load_environment(sickness, everything=False)`."""

import asyncio
import re
import threading
import time

import whet

SICK = 4


class Sickness:
    def __init__(self, name: str, everything: bool) -> None:
        self.name, self.everything = name, everything
        self.scored = 0

    def strikes(self, info: dict) -> bool:
        return self.everything or info["task"] == SICK


def load_environment(sickness: str = "none", everything: bool = False) -> whet.Environment:
    sick = Sickness(sickness, everything)

    class SickEnv(whet.SingleTurnEnv):
        async def setup_state(self, state, **kwargs):
            state = await super().setup_state(state, **kwargs) or state
            if sick.strikes(state["info"]):
                if sick.name == "waits for ever":
                    await asyncio.Event().wait()
                if sick.name == "will not be cancelled":
                    while True:
                        try:
                            await asyncio.Event().wait()
                        except asyncio.CancelledError:
                            continue
                if sick.name == "never leaves its thread":
                    await asyncio.to_thread(threading.Event().wait)
                if sick.name == "blocks":
                    time.sleep(10_000)
                if sick.name == "returns nothing good":
                    state["completion"], state["trajectory"], state["timing"] = 7, None, "now"
                if sick.name == "100 MB":
                    state["info"]["text"] = "x" * 100_000_000
                    state["prompt"] = [{"role": "user", "content": "x" * 100_000_000}]
            return state

    def reward(completion, info, **kwargs):
        if sick.strikes(info):
            if sick.name == "loops":
                while True:
                    pass
            if sick.name == "loops and swallows":
                while True:
                    try:
                        while True:
                            pass
                    except Exception:
                        continue
            if sick.name == "matches for ever":
                re.match(r"(a+)+$", "a" * 100 + "b")
            if sick.name == "raises":
                raise RuntimeError("the judge at 127.0.0.1 is down")
            if sick.name in WRONG:
                return WRONG[sick.name]
        if sick.name == "raises after a while":
            sick.scored += 1
            if sick.scored > 10:
                raise RuntimeError("the judge at 127.0.0.1 is down")
        return float(len(completion[-1]["content"] or "")) / 10

    rows = [{"question": f"Say {number}", "answer": str(number), "info": {"task": number}} for number in range(8)]
    return SickEnv(dataset=rows, eval_dataset=rows, rubric=whet.Rubric(funcs=[reward]))


WRONG = {
    "nan": float("nan"),
    "infinite": float("inf"),
    "text": "good",
    "list": [1.0],
    "nothing": None,
    "huge": 10**400,
    "complex": 1j,
}
