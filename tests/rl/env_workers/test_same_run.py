"""Worker processes for environments (`workers_per_env`): the same run as in one process."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from whet.rl.run import run_training

ODD = '''
"""Everything that an environment may do to its states, in one."""
import datetime
import os
import random
import whet
from whet.clients.usage import charge
from whet.types import Response, ResponseMessage, State, Usage


class OddError(Exception):
    pass


class Odd(whet.MultiTurnEnv):
    async def setup_state(self, state):
        state["handle"] = open(os.devnull)  # no JSON
        state["task_seed"] = state["info"]["n"]

    async def get_prompt_messages(self, state):
        turn, n = len(state["trajectory"]), state["info"]["n"]
        if turn == 0:
            return state["prompt"]
        if turn == 1 and n % 2:  # compaction: the conversation begins anew
            said = state["trajectory"][-1]["completion"][-1]["content"]
            return [{"role": "user", "content": f"So far: {said[:8]}. Go on."}]
        return await super().get_prompt_messages(state)

    async def env_response(self, messages, state, **kwargs):
        if len(state["trajectory"]) == 2:  # a sub-agent, forked off what was said
            fork = State(input=dict(state["input"]), trajectory=list(state["trajectory"]),
                         trajectory_id=state["trajectory_id"] + "-fork", client=state["client"],
                         model=state["model"], sampling_args=state["sampling_args"], usage=state["usage"],
                         tool_defs=[])
            answer = await self.get_model_response(fork, messages + [{"role": "user", "content": "In short?"}])
            await state["client"].release(fork)
            state["fork_tokens"] = len(answer["message"]["tokens"]["completion_ids"])
            return [{"role": "user", "content": f"{answer['message']['content'][:5]}, and?"}]
        if state["info"]["n"] == 2 and state["trajectory_id"].endswith("-1") and state["input"]["once"]:
            raise OddError("a task that fails") from KeyError("cause")
        return [{"role": "user", "content": "More."}]

    async def add_trajectory_step(self, state, step):
        mask = step["tokens"]["completion_mask"]
        if len(mask) > 2 and state["info"]["n"] % 3 == 0:
            step["tokens"]["completion_mask"] = [0, *mask[1:]]
        step["extras"]["number"] = len(state["trajectory"])
        if state["info"]["n"] % 3 == 1:
            step["advantage"] = 0.25 * (len(state["trajectory"]) + 1)
        state["trajectory"].append(step)

    @whet.stop
    async def said_enough(self, state):
        sampled = sum(len(step["tokens"]["completion_ids"]) for step in state["trajectory"])
        return sampled > 15 and state["info"]["n"] in (4, 5)


def length(completion, state, **kwargs):
    usage = Usage(prompt_tokens=3, completion_tokens=2)
    answer = Response(id="j", model="judge", message=ResponseMessage("ok"), usage=usage)
    charge(answer, 0.001)
    return len(str(completion)) / 100 + state.get("task_seed", 0)


def best(states, **kwargs):
    most = max(len(str(state["completion"])) for state in states)
    return [float(len(str(state["completion"])) == most) for state in states]


class OwnAdvantages(whet.Rubric):
    has_advantages = True

    async def score_group(self, states):
        await super().score_group(states)
        for number, state in enumerate(states):
            state["advantage"] = number - 1.5


def rows(n):
    same = {"day": datetime.date(2026, 1, 1)}
    return [{"question": f"Say {i}.", "answer": str(i), "info": {"n": i}, "once": i < 4} | same for i in range(n)]


def load_environment(kind="odd"):
    if kind == "group":
        parts = [load_environment("odd"), load_environment("own")]
        return whet.EnvGroup(parts, env_names=["odd", "own"])
    if kind == "own":
        rubric = OwnAdvantages(funcs=[length])
        return whet.SingleTurnEnv(dataset=rows(8), eval_dataset=rows(2), rubric=rubric)
    rubric = whet.Rubric(funcs=[length, best], weights=[1.0, 0.5])
    return Odd(dataset=rows(8), eval_dataset=rows(2), rubric=rubric, max_turns=4, max_seq_len=100)
'''


@pytest.fixture(scope="module")
def odd(make_room: Callable[[str], Any]) -> Any:
    room = make_room(ODD)
    for name, workers in (("one", 1), ("two", 2)):
        assert room.run(name, workers, kinds="odd group").state == "finished", name
    return room


def test_a_synchronous_run_with_workers_is_that_of_one_process_bit_by_bit(odd: Any) -> None:
    assert odd.metrics("one") == odd.metrics("two")
    assert odd.rollouts("one") == odd.rollouts("two")
    assert odd.trained("one") == odd.trained("two")
    assert (odd.directory("one") / "errors.jsonl").read_text() == (odd.directory("two") / "errors.jsonl").read_text()


def test_that_run_has_what_may_go_wrong_between_processes(odd: Any) -> None:
    """Else the comparison above shows little."""
    rows = [json.loads(line) for text in odd.rollouts("two").values() for line in text.splitlines()]
    turns = [turn for row in rows for turn in row["turns"]]
    assert {row["stop_condition"] for row in rows} >= {"max_turns_reached", "said_enough"}
    assert any("completion_mask" in turn for turn in turns)
    assert any("advantage" in turn for turn in turns)
    assert any(row["is_truncated"] for row in rows)
    assert max(metrics["rollouts/branches"] for metrics in odd.metrics("two")) > 1
    assert "OddError: a task that fails <- KeyError: 'cause'" in (odd.directory("two") / "errors.jsonl").read_text()


def test_what_judges_cost_in_workers_counts_for_the_budget(odd: Any) -> None:
    used = [
        json.loads((odd.directory(name) / "checkpoints" / "step_2" / "curriculum.json").read_text())["budget"]
        for name in ("one", "two")
    ]
    assert used[0]["cost"] > 0
    assert used[1]["cost"] == pytest.approx(used[0]["cost"])
    assert used[1]["tokens"] == used[0]["tokens"]


@pytest.mark.parts
def test_groups_of_a_worker_that_died_are_run_again_and_nothing_of_the_run_changes(
    orders: Any, order: Callable[[str], None]
) -> None:
    order("die once")
    assert orders.run("died", 2).state == "finished"
    assert "exited with code 7; it is replaced, and" in orders.log("died")
    assert_same_tokens(orders.rollouts("died"), orders.rollouts("one"))
    assert orders.trained("died") == orders.trained("one")


ROUNDED = ("completion_logprobs", "learner_logprobs", "ratio")


def assert_same_tokens(some: dict[str, str], others: dict[str, str]) -> None:
    """Groups that are run again meet other sequences in the engine's batch, which may round in the last digit."""
    assert some.keys() == others.keys()
    for name, text in some.items():
        rows, expected = ([json.loads(line) for line in lines.splitlines()] for lines in (text, others[name]))
        turns, expected_turns = ([turn for row in found for turn in row["turns"]] for found in (rows, expected))
        for turn, other in zip(turns, expected_turns, strict=True):
            for key in ROUNDED:
                assert turn.pop(key) == pytest.approx(other.pop(key), abs=1e-4)
        assert rows == expected


@pytest.mark.parts
def test_a_run_resumes_with_another_number_of_workers_and_is_the_same(orders: Any) -> None:
    schedule = ("--sampling.temp_scheduler.steps", "3")
    assert orders.run("resumed", 1, *schedule, steps=2).state == "finished"
    longer = orders.load("resumed", 2, *schedule, steps=3)
    assert run_training(longer, resume=True, json_output=True).state == "finished"
    assert orders.rollouts("resumed") == orders.rollouts("one")
    assert orders.trained("resumed") == orders.trained("one")


def test_what_workers_log_and_warn_of_is_in_the_log_of_the_run(orders: Any, order: Callable[[str], None]) -> None:
    order("warn")
    assert orders.run("warned", 2, steps=1).state == "finished"
    assert "an odd answer to" in orders.log("warned")
    assert "an old way to score" in orders.log("warned")


def test_a_mistake_that_only_workers_find_is_one_message(orders: Any, order: Callable[[str], None]) -> None:
    order("refuse in workers")
    outcome = orders.run("refused", 2)
    assert (outcome.state, outcome.step) == ("failed", 0)
    assert outcome.message == "made-up: this machine has no licence. Ask for one."
