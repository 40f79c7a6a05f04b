"""What is sent to vLLM for a request, and what its answers are read as."""

from __future__ import annotations

import base64
import io
import json
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from whet.errors import ModelError, RequestRefusedError
from whet.inference.protocol import SampleRequest, SamplingParams, Scoring
from whet.inference.vllm.completions import (
    CompletionPiece,
    DrawnStream,
    body_of,
    check_logprobs,
    check_scores,
    drawn_in,
)

REQUEST = SampleRequest(
    [1, 2],
    SamplingParams(
        max_tokens=3, temperature=0.5, top_p=0.9, top_k=7, min_p=0.1, stop=("x",), stop_token_ids=(4,), seed=1
    ),
)


def choice(ids: list[int], reason: str | None, **more: Any) -> dict[str, Any]:
    return {"token_ids": ids, "logprobs": {"token_logprobs": [-1.0] * len(ids)}, "finish_reason": reason, **more}


def events(*pieces: dict[str, Any]) -> bytes:
    lines = [json.dumps({"choices": [piece]}) for piece in pieces]
    return "".join(f"data: {line}\n\n" for line in [*lines, "[DONE]"]).encode()


def test_every_setting_of_a_request_is_sent() -> None:
    body = json.loads(body_of(REQUEST, "policy", stream=True))
    sent = {name: body[name] for name in ("model", "prompt", "max_tokens", "temperature", "top_p", "top_k", "min_p")}
    assert list(sent.values()) == ["policy", [1, 2], 3, 0.5, 0.9, 7, 0.1]
    assert (body["stop"], body["stop_token_ids"], body["stream"]) == (["x"], [4], True)
    assert (body["repetition_penalty"], body["presence_penalty"], body["frequency_penalty"]) == (1, 0, 0)
    assert "seed" not in body


def test_a_greedy_request_has_no_cuts() -> None:
    body = json.loads(body_of(replace(REQUEST, params=replace(REQUEST.params, temperature=0)), "policy", stream=False))
    assert [body[name] for name in ("temperature", "top_p", "top_k", "min_p")] == [0, 1, 0, 0]


@pytest.mark.parametrize(
    ("mode", "params", "says"),
    [
        ("raw_logprobs", SamplingParams(temperature=0.7), "temperature 0.7 needs .* processed_logprobs"),
        ("processed_logprobs", SamplingParams(top_p=0.9), "^top_p 0.9: "),
        ("processed_logprobs", SamplingParams(temperature=0.7, top_k=5, min_p=0.1), "^top_k 5, min_p 0.1: "),
    ],
)
def test_sampling_that_the_logprobs_do_not_fit_is_refused_by_name(mode: Any, params: SamplingParams, says: str) -> None:
    with pytest.raises(RequestRefusedError, match=says):
        check_logprobs(replace(REQUEST, params=params), mode)


@pytest.mark.parametrize(
    ("mode", "params"),
    [
        ("raw_logprobs", SamplingParams(top_p=0.9, top_k=5, min_p=0.1)),
        ("raw_logprobs", SamplingParams(temperature=0)),
        ("processed_logprobs", SamplingParams(temperature=0.7)),
        ("processed_logprobs", SamplingParams(temperature=0, top_p=0.5)),
    ],
)
def test_sampling_that_the_logprobs_fit_is_taken(mode: Any, params: SamplingParams) -> None:
    check_logprobs(replace(REQUEST, params=params), mode)


def test_an_answer_is_read() -> None:
    assert drawn_in(choice([5, 6], "stop")) == CompletionPiece([5, 6], [-1.0, -1.0], "stop")


def test_a_given_up_answer_has_no_finish_reason() -> None:
    assert drawn_in(choice([5], "abort")).finish_reason is None


def test_experts_are_read_as_they_were_recorded() -> None:
    file = io.BytesIO()
    np.save(file, np.arange(6, dtype=np.uint8).reshape(3, 2, 1))
    experts = drawn_in(choice([5], "stop", routed_experts=base64.b64encode(file.getvalue()).decode())).experts
    assert experts.dtype == np.int16
    assert experts.tolist() == [[[0], [1]], [[2], [3]], [[4], [5]]]


@pytest.mark.parametrize(
    ("answer", "says"),
    [
        ({"finish_reason": "stop", "logprobs": {"token_logprobs": [-1.0]}}, "no token ids"),
        (
            {"token_ids": [1, 2], "finish_reason": "stop", "logprobs": {"token_logprobs": [-1.0]}},
            "2 ids and 1 logprobs",
        ),
        (choice([1], "tool_calls"), "'tool_calls'"),
    ],
)
def test_an_answer_that_is_not_whole_is_refused(answer: dict[str, Any], says: str) -> None:
    with pytest.raises(ModelError, match=says):
        drawn_in(answer)


@pytest.mark.parametrize("size", [1, 7, 10_000])
def test_a_stream_is_read_in_pieces_of_any_size(size: int) -> None:
    heard: list[int] = []
    stream = DrawnStream(heard.extend)
    data = events(choice([5], None), choice([], None), choice([6, 7], "length"))
    for start in range(0, len(data), size):
        stream.feed(data[start : start + size])
    assert stream.complete
    assert stream.drawn == CompletionPiece([5, 6, 7], [-1.0] * 3, "length")
    assert heard == [5, 6, 7]


def test_an_error_in_a_stream_is_raised() -> None:
    with pytest.raises(ModelError, match="out of memory"):
        DrawnStream(list).feed(b'data: {"error": {"message": "out of memory"}}\n\n')


SCORED = replace(REQUEST, prompt_ids=[1, 2, 3], scoring=Scoring(prompt=True, prompt_top=2, prompt_last=1, top=2))


def test_scores_are_named_and_read() -> None:
    body = json.loads(body_of(SCORED, "policy", stream=False))
    assert (body["logprobs"], body["prompt_logprobs"]) == (2, 2)
    assert "prompt_logprobs" not in json.loads(body_of(replace(SCORED, scoring=Scoring(top=1)), "policy", stream=False))
    of_prompt = [
        None,
        {"2": {"logprob": -0.5, "rank": 1}},
        {"3": {"logprob": -4.0, "rank": 9}, "8": {"logprob": -0.7, "rank": 2}, "7": {"logprob": -0.6, "rank": 1}},
    ]
    answer = choice([5], "length", prompt_logprobs=of_prompt)
    answer["logprobs"]["top_logprobs"] = [{"token_id:5": -1.0, "token_id:9": -0.9}]
    piece = drawn_in(answer, SCORED)
    assert piece.prompt_scores is not None
    logprobs, top, targets, drawn = piece.prompt_scores
    np.testing.assert_array_equal(logprobs, np.array([np.nan, np.nan, -4.0], np.float32))
    assert top is not None
    assert top.ids[2].tolist() == [7, 8]
    np.testing.assert_array_equal(top.logprobs[2], np.array([-0.6, -0.7], np.float32))
    assert np.isnan(top.logprobs[:2]).all()
    assert (targets, drawn) == (None, None)
    assert piece.top is not None
    assert piece.top.ids.tolist() == [[9, 5]]
    with pytest.raises(ModelError, match="no logprobs of 3 prompt tokens"):
        drawn_in({**answer, "prompt_logprobs": None}, SCORED)
    with pytest.raises(ModelError, match="0 lists of most probable tokens for 1"):
        drawn_in(choice([5], "length", prompt_logprobs=of_prompt), SCORED)


@pytest.mark.parametrize(
    ("scoring", "says"),
    [
        (Scoring(targets=np.array([[3], [4]])), "nothing like scoring.targets; the embedded"),
        (Scoring(prompt_draws=2), "nothing like scoring.prompt_draws"),
        (Scoring(top=21), "at most 20 tokens"),
        (Scoring(prompt_top=500), "from 0 to 128"),
        (Scoring(prompt=True, prompt_last=3), "from 1 to 2"),
    ],
)
def test_scores_that_a_server_does_not_return_are_refused_by_name(scoring: Scoring, says: str) -> None:
    with pytest.raises(RequestRefusedError, match=says):
        check_scores(replace(SCORED, scoring=scoring), listens=False)
    check_scores(replace(SCORED, scoring=None), listens=True)
    with pytest.raises(RequestRefusedError, match="has no listener"):
        check_scores(SCORED, listens=True)
