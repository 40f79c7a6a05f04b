"""A state goes to the session as JSON and is the same there, with the tokens as they were sampled."""

from __future__ import annotations

import datetime
import json
from typing import Any

import numpy as np
import pytest

from whet.clients.client import Client
from whet.clients.usage import UsageTotals
from whet.envs.multiturn_env import trajectory_step
from whet.errors import EnvError, InfraError
from whet.inference.token_sets import TokenSets
from whet.rollouts.results import error_info
from whet.rollouts.states import new_state
from whet.rollouts.token_rows import rollout_row
from whet.rollouts.workers.state_record import Answers, error_chain, error_of_chain, state_line, state_of_line
from whet.types import AssistantMessage, Response, ResponseMessage, ResponseTokens, State, Usage, UserMessage

CLIENT: Any = Client(None)
ROW = {"prompt": [UserMessage("Say it.")], "example_id": 3, "answer": "it", "info": {"n": 1}, "check": len}


def answer(text: str, first: int = 0, **more: Any) -> Response:
    ids = list(range(first, first + 4))
    tokens = ResponseTokens(list(range(first + 5)), ids, [-0.1, -1e-9, -0.3, -7.25], [[2, 1], [3, 3]], **more)
    message = ResponseMessage(text, finish_reason="stop", tokens=tokens)
    return Response(id="a", model="m", message=message, usage=Usage(5, 4))


def state_of(*answers: Response, max_seq_len: int | None = None) -> State:
    state = new_state({**ROW}, CLIENT, "m", {"temperature": 0.5, "seed": 7})
    prompt = state["prompt"]
    for response in answers:
        state["trajectory"].append(trajectory_step(prompt, response, "t-0", max_seq_len))
        prompt = [*prompt, *state["trajectory"][-1]["completion"], UserMessage("More.")]
    state.update(reward=0.5, advantage=None, metrics={"length": 2.0}, completion=prompt[1:], is_completed=True)
    return state


def through(state: State, *responses: Response) -> State:
    """As it arrives in the session, which gave these responses."""
    noted = Answers()
    for number, response in enumerate(responses):
        noted.note(number, response)
    return state_of_line(state_line(state, noted), ROW, CLIENT, "m", dict(enumerate(responses)))


def test_rows_and_tokens_are_those_of_the_state() -> None:
    first, second = answer("one"), answer("two", 9)
    state = state_of(first, second)
    arrived = through(state, first, second)
    before, after = (rollout_row(value, group="1", environment="e", advantage=1.0) for value in (state, arrived))
    assert after["turns"][1]["completion_ids"] == [9, 10, 11, 12]
    assert after == before
    assert [step["tokens"] for step in arrived["trajectory"]] == [step["tokens"] for step in state["trajectory"]]
    assert arrived["trajectory"][0]["response"] is first
    assert type(arrived["completion"][0]) is AssistantMessage
    assert arrived["timing"].model_dump() == state["timing"].model_dump()


def test_tokens_that_were_sampled_are_not_in_the_line() -> None:
    response, noted = answer("one"), Answers()
    noted.note(4, response)
    (step,) = json.loads(state_line(state_of(response), noted))["trajectory"]
    assert step["answer"] == 4
    assert step["tokens"]["completion_ids"] == {"first": 4}
    assert "response" not in step


def test_a_mask_that_the_environment_has_changed_arrives_also_where_it_changed_it_in_place() -> None:
    response = answer("one")
    state = state_of(response)
    noted = Answers()
    noted.note(0, response)
    state["trajectory"][0]["tokens"]["completion_mask"][0] = 0
    arrived = state_of_line(state_line(state, noted), ROW, CLIENT, "m", {0: answer("one")})
    assert arrived["trajectory"][0]["tokens"]["completion_mask"] == [0, 1, 1, 1]


@pytest.mark.parametrize("kept", [3, 5, 7, 100])
def test_a_turn_that_was_cut_is_cut_where_it_arrives_experts_and_kept_tokens_included(kept: int) -> None:
    sets = TokenSets(np.array([1, 2, 0, 1], np.int32), np.arange(4, dtype=np.int32))
    experts = np.arange(16, dtype=np.int16).reshape(8, 2, 1)
    response = answer("one", kept_mass=[1.0, 0.9, 0.8, 0.7], kept=sets, routed_experts=experts)
    state = state_of(response, max_seq_len=kept)
    (before,), (after,) = (value["trajectory"] for value in (state, through(state, response)))
    mine, theirs = (value["tokens"].pop("kept") for value in (before, after))
    assert np.array_equal(mine.counts, theirs.counts)
    assert np.array_equal(mine.ids, theirs.ids)
    assert np.array_equal(*(value["tokens"].pop("routed_experts") for value in (before, after)))
    assert after["tokens"] == before["tokens"]


def test_what_json_cannot_hold_stays_behind_and_the_row_has_its_own_columns() -> None:
    state = state_of()
    state.update(handle=object(), names={("a", 1): 2}, when=datetime.date(2026, 1, 2), count=np.int64(3), circle=[])
    state["circle"].append(state["circle"])
    arrived = through(state)
    assert {"handle", "names", "circle"}.isdisjoint(arrived)
    assert (arrived["when"], arrived["count"]) == ("2026-01-02", 3)
    assert arrived["input"]["check"] is len
    assert (arrived["answer"], arrived["info"], arrived["example_id"]) == ("it", {"n": 1}, 3)


def test_a_response_of_another_client_and_usage_arrive() -> None:
    state = state_of(answer("by a judge"))
    state["usage"].add(5, 4, 0.25)
    state["judge_usage"] = UsageTotals()
    arrived = through(state)
    assert arrived["trajectory"][0]["response"] == state["trajectory"][0]["response"]
    assert arrived["trajectory"][0]["tokens"] == state["trajectory"][0]["tokens"]
    assert arrived["usage"].snapshot() == {"input_tokens": 5.0, "output_tokens": 4.0, "cost": 0.25}
    assert arrived["judge_usage"].snapshot() is None


class OwnError(Exception):
    """A class that only the environment has."""


def test_an_error_arrives_with_its_causes_under_their_names() -> None:
    try:
        raise EnvError("get_prompt_messages raised OwnError")
    except EnvError as raised:
        error = raised
    error.__cause__ = OwnError("it", 3)
    error.__cause__.__cause__ = KeyError("k")
    arrived = error_of_chain(error_chain(error))
    assert isinstance(arrived, EnvError)
    assert isinstance(arrived.__cause__.__cause__, KeyError)  # type: ignore[union-attr]
    assert error_chain(arrived) == error_chain(error)
    assert error_info(arrived) == error_info(error)
    assert f"{__file__}:" in error_chain(error)[0]["place"]
    assert error_of_chain([]) is None
    assert not isinstance(arrived, InfraError)


@pytest.mark.parametrize("line", [b"", b"[]", b"{}", b'{"messages": [1]}'])
def test_a_line_that_is_no_state_raises_what_the_session_expects(line: bytes) -> None:
    with pytest.raises((ValueError, KeyError, TypeError)):
        state_of_line(line, ROW, CLIENT, "m", {})
