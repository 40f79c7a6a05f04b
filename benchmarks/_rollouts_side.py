"""One scenario of `rollouts.py` under one library, in this process: `_rollouts_side.py LIBRARY SCENARIO`; prints JSON.

Environment and scripted model are written once, in the words that both libraries share. The model answers in this
process; a latency is drawn from (task, turn), so both sides wait for exactly the same.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import json
import logging
import random
import resource
import sys
import time
from dataclasses import asdict, dataclass
from typing import Any

QUESTION, REPLY, ANSWER = "Say the word.", "Again, please.", "<answer>word</answer>"
TICK_S = 0.001


@dataclass(frozen=True)
class Scenario:
    rollouts: int
    turns: int
    latency_s: tuple[float, float] | None = None
    yields: bool = False  # a model without latency that lets the event loop turn once before it answers

    def latencies(self) -> list[list[float]]:
        """Seconds, by task and turn."""
        if self.latency_s is None:
            return []
        rng = random.Random(0)
        return [[rng.uniform(*self.latency_s) for _ in range(self.turns)] for _ in range(self.rollouts)]


SCENARIOS = {
    "turns": Scenario(1000, 10),
    "turns-yielding": Scenario(1000, 10, yields=True),
    "single": Scenario(2000, 1),
    "latency": Scenario(4000, 10, (0.05, 0.5)),
    "many": Scenario(10_000, 10),
    "many-yielding": Scenario(10_000, 10, yields=True),
    "in-flight": Scenario(10_000, 10, (1.0, 3.0)),
}


class Pauses:
    """The longest time the event loop kept a task waiting that wanted to run every millisecond.

    `wall_s` counts what else the machine did meanwhile; `cpu_s` is what this thread itself computed between two ticks.
    """

    def __init__(self) -> None:
        self.wall_s = self.cpu_s = 0.0
        self._task: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Pauses:
        self._task = asyncio.create_task(self._tick())
        await asyncio.sleep(10 * TICK_S)
        self.wall_s = self.cpu_s = 0.0
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._task is not None
        await asyncio.sleep(TICK_S)
        self._task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._task

    async def _tick(self) -> None:
        while True:
            wall, cpu = time.perf_counter(), time.thread_time()
            await asyncio.sleep(TICK_S)
            self.wall_s = max(self.wall_s, time.perf_counter() - wall - TICK_S)
            self.cpu_s = max(self.cpu_s, time.thread_time() - cpu)


def make_client(library: Any, types: Any, scenario: Scenario) -> Any:
    class Scripted(library.Client):  # type: ignore[misc]
        """A model that says the same at every turn."""

        def __init__(self) -> None:
            super().__init__(None)
            self.in_flight = self.most_in_flight = 0
            self.latencies = scenario.latencies()

        async def get_response(
            self, prompt: Any, model: str, sampling_args: Any, tools: Any = None, **kwargs: Any
        ) -> Any:
            state = kwargs["state"]
            turn = len(state["trajectory"])
            if self.latencies:
                self.in_flight += turn == 0
                self.most_in_flight = max(self.most_in_flight, self.in_flight)
                await asyncio.sleep(self.latencies[state["input"]["example_id"]][turn])
                self.in_flight -= turn + 1 == scenario.turns
            elif scenario.yields:
                await asyncio.sleep(0)
            message = types.ResponseMessage(content=ANSWER, finish_reason="stop", is_truncated=False, tokens=None)
            usage = types.Usage(prompt_tokens=20, reasoning_tokens=0, completion_tokens=5, total_tokens=25)
            return types.Response(id="0", created=0, model=model, usage=usage, message=message)

        def setup_client(self, config: Any) -> None: ...
        async def to_native_tool(self, tool: Any) -> Any: ...
        async def to_native_prompt(self, messages: Any) -> Any: ...
        async def get_native_response(self, *args: Any, **kwargs: Any) -> Any: ...
        async def raise_from_native_response(self, response: Any) -> None: ...
        async def from_native_response(self, response: Any) -> Any: ...
        async def close(self) -> None: ...

    return Scripted()


def make_environment(library: Any, scenario: Scenario) -> Any:
    parser = library.XMLParser(["answer"])

    def correct(parser: Any, completion: Any, answer: str) -> float:
        return float(parser.parse_answer(completion) == answer)

    rubric = library.Rubric(funcs=[correct], parser=parser)
    rows = [{"question": f"{QUESTION} ({task})", "answer": "word"} for task in range(scenario.rollouts)]
    if library.__name__ == "verifiers":
        from datasets import Dataset

        rows = Dataset.from_list(rows)
    if scenario.turns == 1:
        return library.SingleTurnEnv(dataset=rows, parser=parser, rubric=rubric)

    class Repeating(library.MultiTurnEnv):  # type: ignore[misc]
        async def env_response(self, messages: Any, state: Any, **kwargs: Any) -> Any:
            return [{"role": "user", "content": REPLY}]

    return Repeating(dataset=rows, parser=parser, rubric=rubric, max_turns=scenario.turns)


async def measure(name: str, scenario: Scenario) -> dict[str, Any]:
    library = importlib.import_module(name)
    client = make_client(library, importlib.import_module(f"{name}.types"), scenario)
    env = make_environment(library, scenario)
    inputs = env.get_dataset()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    async with Pauses() as pauses:
        cpu, start = time.process_time(), time.perf_counter()
        results = await env.generate(inputs, client, "scripted")
        wall, cpu = time.perf_counter() - start, time.process_time() - cpu
    outputs = results["outputs"]
    assert len(outputs) == scenario.rollouts, f"{len(outputs)} results of {scenario.rollouts} rollouts"
    assert all(output["reward"] == 1.0 and output["error"] is None for output in outputs)
    return {
        "wall_s": wall,
        "cpu_s": cpu,
        "turns_per_s": scenario.rollouts * scenario.turns / wall,
        "rollouts_per_s": scenario.rollouts / wall,
        "pause_wall_s": pauses.wall_s,
        "pause_cpu_s": pauses.cpu_s,
        "longest_chain_s": max(map(sum, client.latencies), default=0.0),
        "most_in_flight": client.most_in_flight,
        "memory_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
        "memory_before_mib": before / 1024,
        "scenario": asdict(scenario),
    }


if __name__ == "__main__":
    logging.disable(logging.INFO)
    print(json.dumps(asyncio.run(measure(sys.argv[1], SCENARIOS[sys.argv[2]]))))
