"""The whole way: `whet gepa run` over HTTP finds the prompt that was planted, and what it prints in the end is true."""

from __future__ import annotations

import json
import re
import shlex
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from planted.policy import answer
from planted.reflection import Proposer
from planted.server import Endpoint, Trouble
from planted.world import HARMFUL, SEED_PROMPT, World, sentences_in

pytest.importorskip("gepa")
pytest.importorskip("openai")

PLANTED = Path(__file__).parent / "planted"
KINDS, CALLS = 2, 500
SEARCH = {"max_calls": CALLS, "num_val": 40, "max_concurrent": 32}


class Models:
    """The two endpoints of a world."""

    def __init__(self, seed: int, policy: Endpoint, reflection: Endpoint) -> None:
        self.seed, self.policy, self.reflection = seed, policy, reflection
        self.world = World.of(seed, kinds=KINDS)

    def command(self, *options: str, **search: Any) -> list[str]:
        """`whet gepa run` of the planted environment, without the first word."""
        given = {"seed": self.seed, **SEARCH, **search}
        words = ["gepa", "run", str(PLANTED), "-a", json.dumps({"seed": self.seed, "kinds": KINDS})]
        words += ["-m", "policy", "-b", self.policy.url]
        words += ["-M", "reflection", "--reflection-base-url", self.reflection.url, "--name", "planted"]
        return [*words, *(f"--{name.replace('_', '-')}={value}" for name, value in given.items()), *options]

    def is_best(self, prompt: str) -> bool:
        """Whether no other prompt has a higher chance: all that is needed is in it, and nothing that does harm."""
        present = set(sentences_in(prompt))
        return self.world.best <= present and not present & set(HARMFUL)


@contextmanager
def models(seed: int, *, reflection_s: float = 0.0, **trouble: Any) -> Iterator[Models]:
    world = World.of(seed, kinds=KINDS)
    proposer = Proposer(seed, insight=0.6)
    with (
        Endpoint(partial(answer, world), trouble=Trouble(**trouble)) as policy,
        Endpoint(proposer.answer, latency_s=reflection_s, trouble=Trouble(**trouble)) as reflection,
    ):
        yield Models(seed, policy, reflection)


def evaluated(directory: Path) -> float:
    """The mean reward of the one evaluation under a directory."""
    (results,) = directory.rglob("results.jsonl")
    rewards = [json.loads(line)["reward"] for line in results.read_text().splitlines()]
    return sum(rewards) / len(rewards)


def test_best_prompt_within_budget_is_confirmed_by_the_printed_command(warm: Any, tmp_path: Path) -> None:
    with models(0, busy_every=40, busy_for=3) as two:
        printed = warm.run(*two.command(), cwd=tmp_path)
        run = tmp_path / "runs" / "planted"
        prompt = (run / "best_prompt.txt").read_text()
        assert two.is_best(prompt), prompt
        assert prompt.startswith(SEED_PROMPT)
        assert len(two.policy.requests) <= CALLS
        assert "confirmed:" in printed

        command = re.search(r"^evaluate +whet (.*)$", printed, re.MULTILINE)[1]
        words = shlex.split(command)
        warm.run(*words, cwd=tmp_path)
        words[words.index("--env-args") + 1] = json.dumps({"seed": two.seed, "kinds": KINDS})
        warm.run(*words, "-o", "with-the-seed-prompt", cwd=tmp_path)
        assert evaluated(tmp_path / "outputs") > 0.75 > 0.5 > evaluated(tmp_path / "with-the-seed-prompt")


@pytest.mark.parts
def test_resume_after_a_stop_during_reflection_equals_an_uninterrupted_search(warm: Any, tmp_path: Path) -> None:
    whole, stopped = tmp_path / "whole", tmp_path / "stopped"
    whole.mkdir()
    stopped.mkdir()
    with models(1) as two:
        warm.run(*two.command(max_calls=250), cwd=whole)
        asked = len(two.reflection.requests)
    with models(1, reflection_s=60.0) as two:
        process = warm.start(*two.command(max_calls=250), cwd=stopped)
        for line in process.stdout:
            if line.startswith("candidate 0"):
                break
        while not two.reflection.in_flight:
            time.sleep(0.01)
        process.send_signal(signal.SIGINT)
        assert re.search(r"continue +whet gepa run --resume runs/planted", process.finish(128 + signal.SIGINT))
        two.reflection.latency_s = 0.0
        warm.run("gepa", "run", "--resume", "runs/planted", cwd=stopped)
        # The question that was under way is put again; nothing else is asked twice.
        assert len(two.reflection.requests) == asked + 1
        assert len(two.policy.requests) <= 250
    candidates = "runs/planted/candidates.jsonl"
    assert (stopped / candidates).read_text() == (whole / candidates).read_text()


@pytest.mark.long
def test_the_description_of_a_tool_is_found_in_the_same_way(warm: Any, tmp_path: Path) -> None:
    with models(0) as two:
        words = two.command("--components", "tools")
        words[words.index("-a") + 1] = json.dumps({"seed": 0, "kinds": KINDS, "tool": True})
        printed = warm.run(*words, cwd=tmp_path)
        (found,) = json.loads((tmp_path / "runs" / "planted" / "best_components.json").read_text()).items()
        assert found[0] == "tool:look_up"
        assert two.is_best(found[1]), found[1]
        command = re.search(r"^evaluate +whet (.*)$", printed, re.MULTILINE)[1]
        warm.run(*shlex.split(command), cwd=tmp_path)
        assert evaluated(tmp_path / "outputs") > 0.75


JUDGED = """
import os

import whet


async def agrees(judge, prompt, completion, answer, state) -> float:
    verdict = await judge(prompt, completion, answer, state)
    return float(verdict == answer)


def load_environment():
    endpoint = whet.ClientConfig(api_base_url=os.environ["JUDGE"], api_key_var="WHET_TEST_KEY")
    rubric = whet.JudgeRubric(judge_client=whet.OpenAIChatCompletionsClient(endpoint), judge_model="judge")
    rubric.add_reward_func(agrees)

    def rows(first, number):
        return [{"question": f"Question {first + i}", "answer": ("yes", "no")[i % 2]} for i in range(number)]

    return whet.SingleTurnEnv(
        dataset=lambda: rows(0, 200), eval_dataset=lambda: rows(200, 40), rubric=rubric, system_prompt="Answer."
    )
"""


@pytest.mark.long
def test_the_prompt_of_a_judge_is_found_and_keeps_its_placeholders(warm: Any, tmp_path: Path) -> None:
    """The judge is lenient until it is told to be strict; a proposal that loses the placeholders is put right."""
    texts = ["Be strict.", "Be strict. {question} {answer} {response}"]
    asked = []

    def judge(body: dict[str, Any], number: int) -> dict[str, Any]:
        text = body["messages"][0]["content"]
        return {"role": "assistant", "content": "no" if "strict" in text and "no" in text.split() else "yes"}

    def propose(body: dict[str, Any], number: int) -> dict[str, Any]:
        asked.append(body["messages"][-1]["content"])
        return {"role": "assistant", "content": f"<new_text>{texts[min(len(asked), 2) - 1]}</new_text>"}

    (tmp_path / "judged.py").write_text(JUDGED)
    with (
        Endpoint(lambda *_: {"role": "assistant", "content": "Something."}) as policy,
        Endpoint(judge) as judging,
        Endpoint(propose) as reflection,
    ):
        words = ["gepa", "run", "./judged.py", "--components", "judge", "-m", "m", "-b", policy.url, "-M", "r"]
        words += ["--reflection-base-url", reflection.url, "-B", "200", "-N", "20", "--seed", "0", "--name", "judged"]
        warm.run(*words, cwd=tmp_path, env={"JUDGE": judging.url})
    best = json.loads((tmp_path / "runs" / "judged" / "best_components.json").read_text())
    assert best == {"judge": texts[1]}
    assert "what the judge said]]\nyes" in asked[0]
    assert "it has lost {answer}, {question}, {response}" in asked[1]


@pytest.mark.long
def test_it_is_found_for_nearly_every_seed(warm: Any, tmp_path: Path) -> None:
    """Chance is in the rewards: of 20 searches two may miss an instruction (of 500, eight did)."""
    found = []
    for seed in range(20):
        with models(seed) as two:
            (place := tmp_path / str(seed)).mkdir()
            warm.run(*two.command(), cwd=place)
            found.append(two.is_best((place / "runs" / "planted" / "best_prompt.txt").read_text()))
    assert sum(found) >= 18
