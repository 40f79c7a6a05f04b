"""Scripted models attempt some of an environment's tasks, through its real rollouts and rubric.

First the right answers in every form; the form that earns most is then the form of the answers without merit.
"""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

from whet.authoring.review import probes
from whet.authoring.review.observations import BatchCost, BatchStarted, Rolled, Tried
from whet.authoring.review.row_facts import answer_text, most_common_answer, spread_out
from whet.clients.scripted import ScriptedClient
from whet.config import StrictModel
from whet.envs.env_group import EnvGroup, environment_of, member_of
from whet.envs.environment import Environment
from whet.errors import ModelError
from whet.parsers.parser import Parser
from whet.parsers.xml_parser import XMLParser
from whet.rubrics.rubric_group import rubrics_of
from whet.system.files import json_line
from whet.types import RolloutInput, RolloutOutput, State

TOGETHER = "all probes of a task"
HEARTBEAT_S = 0.02
ANSWERS = 12  # of other tasks, to give all at once
Row = Mapping[str, Any]
Emit = Callable[[StrictModel], None]
Planned = tuple[str, int, probes.Say]  # probe, index of its task, what the model says


class EndlessRollout(ModelError):
    """The scripted model has said enough."""


async def rehearse(env: Environment, dataset: Sequence[Row], count: int, emit: Emit) -> None:
    """Attempt `count` rows (-1 = all) with every probe: a `Rolled` for each rollout, a `BatchCost` for each batch."""
    rows = spread_out(dataset, count)
    for index, row in enumerate(rows):
        member = member_of(row) if isinstance(env, EnvGroup) else ""
        emit(Tried(task=index, member=member, example_id=row["example_id"], answer=answer_text(row)[:1000]))
    most_common = most_common_answer(dataset)
    answers = [answer_text(row) for row in spread_out(dataset, ANSWERS)]
    answers = list(dict.fromkeys(filter(None, answers)))
    parsers = [_parser(environment_of(env, row)) for row in rows]
    right = [
        (name, index, say)
        for index, row in enumerate(rows)
        for name, say in probes.right_answers(row, parsers[index]).items()
    ]
    earned = await _attempt(env, rows, right, emit)
    planned = []
    for index, row in enumerate(rows):
        form = probes.forms(parsers[index])[_best_form(earned, index)]
        tools = environment_of(env, row).tool_defs or []
        say = probes.without_merit(row, answers, most_common, form, tools)
        planned += [(name, index, words) for name, words in say.items()]
    await _attempt(env, rows, planned, emit)


async def _attempt(
    env: Environment, rows: Sequence[Row], planned: Sequence[Planned], emit: Emit
) -> dict[tuple[str, int], float]:
    """Run what is planned, probe by probe, or task by task where rewards are of groups; what each earned."""
    earned: dict[tuple[str, int], float] = {}
    grouped = env.requires_group_rollouts
    batches: dict[object, list[Planned]] = defaultdict(list)
    for one in planned:
        batches[one[1] if grouped else one[0]].append(one)
    for key, batch in batches.items():
        label = f"{TOGETHER} ({key})" if grouped else str(key)
        emit(BatchStarted(probe=label))
        began = time.perf_counter()
        longest = [0.0]
        heart = asyncio.create_task(_beat(longest))
        try:
            outputs = await _run(env, rows, batch, grouped)
        finally:
            heart.cancel()
        seconds = time.perf_counter() - began
        for (name, index, _), output in zip(batch, outputs, strict=True):
            rolled = _rolled(name, index, output)
            emit(rolled)
            if rolled.reward is not None:
                earned[name, index] = rolled.reward
        emit(BatchCost(probe=label, rollouts=len(batch), seconds=seconds, longest_pause=longest[0]))
    return earned


async def _run(env: Environment, rows: Sequence[Row], batch: Sequence[Planned], grouped: bool) -> list[RolloutOutput]:
    says = {f"{name}/{index}": say for name, index, say in batch}

    def answer(state: State, turn: int) -> Any:
        if turn >= probes.MAX_TURNS:
            return EndlessRollout(f"still going after {turn} turns")
        return says[state["trajectory_id"]](turn)

    outputs: list[RolloutOutput] = await env.run_group(
        [cast(RolloutInput, dict(rows[index])) for _, index, _ in batch],
        ScriptedClient(answer),
        "scripted",
        {},
        trajectory_ids=list(says),
        independent_scoring=not grouped,
    )
    return outputs


async def _beat(longest: list[float]) -> None:
    """The longest time that this task had to wait for its turn, beyond what it slept."""
    while True:
        began = time.perf_counter()
        await asyncio.sleep(HEARTBEAT_S)
        longest[0] = max(longest[0], time.perf_counter() - began - HEARTBEAT_S)


def _rolled(name: str, index: int, output: RolloutOutput) -> Rolled:
    error = output.get("error")
    messages = output.get("completion") or []
    replies = [message for message in messages if message["role"] != "assistant"]
    return Rolled(
        probe=name,
        task=index,
        reward=output.get("reward"),
        metrics={str(key)[:200]: value for key, value in (output.get("metrics") or {}).items()},
        error=error["error"] if error else None,
        message=error["error_chain_repr"][:1000] if error else "",
        turns=len(messages) - len(replies),
        replies=hashlib.blake2b(json_line(replies).encode(), digest_size=8).hexdigest(),
    )


def _best_form(earned: Mapping[tuple[str, int], float], index: int) -> str:
    """The name of the form in which the right answer earned most in this task; plain where none earned anything."""
    prefix = f"{probes.RIGHT}, "
    best, most = "plain", 0.0
    for (name, where), reward in earned.items():
        if where == index and name.startswith(prefix) and reward > most:
            best, most = name.removeprefix(prefix), reward
    return best


def _parser(env: Environment) -> Parser:
    """The parser that says most about the form of an answer."""
    known = [env.parser, *(rubric.parser for rubric in rubrics_of(env.rubric))]
    special = [parser for parser in known if type(parser) is not Parser]
    return next((parser for parser in special if isinstance(parser, XMLParser)), (special or known)[0])
