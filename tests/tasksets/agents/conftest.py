"""Rollouts of agents against an engine that samples given texts, through the real gateway, sandbox and renderer."""

from __future__ import annotations

import asyncio
import importlib.util
import itertools
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("uvicorn")
pytest.importorskip("prometheus_client")

from scripts.tiny_model.tokenizer import build_tokenizer

import whet
from whet.inference.policy_client import PolicyClient
from whet.inference.rendering.chat_renderer import ChatRenderer
from whet.rl.data.batch import sequences_of
from whet.rollouts.groups import run_group

_spec = importlib.util.spec_from_file_location(
    "scripted_engine", Path(__file__).parents[2] / "contract/token_truth/scripted_engine.py"
)
_engines = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(_engines)
CONTEXT = 400_000  # the tokenizer is one of bytes
DONE = "I have done it."


def call(name: str, **arguments: Any) -> str:
    """A call as the model writes it, in Qwen's format."""
    return f"<tool_call>\n{json.dumps({'name': name, 'arguments': arguments})}\n</tool_call>"


class TextEngine(_engines.ScriptedEngine):
    """Samples the next text; after the last one, that it is done."""

    def __init__(self, tokenizer: Any, texts: Sequence[str], hold: Any = None) -> None:
        """The first request is sampled until `hold.go_on` is set, if there is a `hold`."""
        self._hold = hold
        ends = tokenizer.convert_tokens_to_ids("<|im_end|>")
        answers = [*texts, *itertools.repeat(DONE, 30)]
        super().__init__([[*tokenizer.encode(text, add_special_tokens=False), ends] for text in answers])

    async def sample(self, request: Any, *, on_tokens: Any = None) -> Any:
        sample = await super().sample(request, on_tokens=on_tokens)
        if self._hold is not None and len(self.requests) == 1:
            self._hold.begun.set()
            await self._hold.go_on.wait()
        return sample


@dataclass
class Attempt:
    state: Any
    engine: TextEngine

    @property
    def branches(self) -> list[Any]:
        return sequences_of(self.state["trajectory"], temperature=1.0, rollout="r")

    @property
    def left_out(self) -> set[int]:
        """The turns that are not trained."""
        trajectory = enumerate(self.state["trajectory"])
        return {number for number, step in trajectory if {"abandoned", "helper"} & {*step["extras"]}}

    def differing_tokens(self) -> int:
        """How many tokens are not trained as the engine sampled them, after the prompt it was given, and once."""
        seen, different = [], 0
        for branch in self.branches:
            for number, start, end in branch.turns:
                request, sample = self.engine.requests[number], self.engine.samples[number]
                seen.append(number)
                if number in self.left_out:
                    different += list(branch.ids[start:end]) != sample.ids or bool(branch.trained[start:end].any())
                    continue
                different += list(branch.ids[:start]) != request.prompt_ids
                different += list(branch.ids[start:end]) != sample.ids
                different += [round(float(p), 5) for p in branch.logprobs[start:end]] != [
                    round(p, 5) for p in sample.logprobs
                ]
                different += not branch.trained[start:end].all()
            counted = [end - start for number, start, end in branch.turns if number not in self.left_out]
            different += int(branch.trained.sum()) != sum(counted)
        return different + (sorted(seen) != list(range(len(self.engine.samples))))

    def prompts(self) -> list[list[tuple[str, str]]]:
        """Role and content of the messages of each call."""
        return [[(m["role"], str(m.get("content"))) for m in step["prompt"]] for step in self.state["trajectory"]]


@pytest.fixture(scope="session")
def bytes_tokenizer():
    return build_tokenizer()


@pytest.fixture
def attempt(bytes_tokenizer):
    """`attempt(program, texts)`: a rollout of a harness's program, scored."""

    def run(program: Any, texts: Sequence[str], hold: Any = None) -> Attempt:
        engine = TextEngine(bytes_tokenizer, texts, hold)
        client = PolicyClient(engine, ChatRenderer(bytes_tokenizer), max_context=CONTEXT)

        def wrote(state) -> float:
            return float(state["artifacts"].get("out") == "hello\n")

        rows = [{"question": "Write hello into the file out.txt in the current folder."}]
        artifacts = {"out": {"path": "out.txt", "optional": True}}
        env = whet.Env(
            whet.Taskset(source=rows, rewards=[wrote]),
            whet.Harness(program if callable(program) else {"artifacts": artifacts, **program}, max_turns=20),
        )

        async def go() -> Any:
            try:
                (state,) = await run_group(env, [env.get_dataset()[0]], client, "m", {"max_tokens": 4096})
                return state
            finally:
                await env.close()

        return Attempt(asyncio.run(go()), engine)

    return run


@pytest.fixture
def called():
    return call
