"""The log of reflections: what was asked is answered from it, once each, whatever a kill left behind."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from whet.errors import RunError
from whet.gepa.reflection.log import ReflectionLog, ReflectionReply, ReflectionRequest
from whet.types import UserMessage


def request(text: str = "better?", **sampling: Any) -> ReflectionRequest:
    return ReflectionRequest("model", [UserMessage(text)], sampling)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "run" / "reflections.jsonl"


def test_a_reply_is_found_by_request_and_number_in_later_processes(path: Path) -> None:
    log = ReflectionLog(path)
    log.write(request(), 0, ReflectionReply("first", usage={"prompt_tokens": 7}), {})
    log.write(request(), 1, ReflectionReply(failure="refused", said="no"), {})
    later = ReflectionLog(path)
    assert later.find(request().key, 0) == ReflectionReply("first", usage={"prompt_tokens": 7}, replayed=True)
    assert later.find(request().key, 1) == ReflectionReply(failure="refused", said="no", replayed=True)
    assert later.find(request().key, 2) is None
    assert later.find(request("other?").key, 0) is None


def test_another_model_text_or_sampling_is_another_request() -> None:
    keys = {
        request().key,
        request("other?").key,
        request(temperature=1).key,
        ReflectionRequest("m", [UserMessage("")], {}).key,
    }
    assert len(keys) == 4


def test_a_torn_last_line_is_cut_off_and_what_was_before_it_kept(path: Path) -> None:
    log = ReflectionLog(path)
    log.write(request(), 0, ReflectionReply("first"), {})
    whole = path.read_bytes()
    log.write(request(), 1, ReflectionReply("second"), {})
    for end in range(len(whole) + 1, path.stat().st_size, 7):
        path.write_bytes((whole + path.read_bytes()[len(whole) :])[:end])
        assert ReflectionLog(path).find(request().key, 1) is None
        assert path.read_bytes() == whole
        ReflectionLog(path).write(request(), 1, ReflectionReply("again"), {})
        assert ReflectionLog(path).find(request().key, 1) is not None


def test_a_line_inside_that_is_not_json_is_named(path: Path) -> None:
    log = ReflectionLog(path)
    log.write(request(), 0, ReflectionReply("first"), {})
    path.write_bytes(b"{torn\n" + path.read_bytes())
    with pytest.raises(RunError, match=r"reflections.jsonl, line 1"):
        ReflectionLog(path)


def test_costs_of_all_processes_are_added_up_and_unknown_prices_are_no_cost(path: Path) -> None:
    log = ReflectionLog(path)
    log.write(request(), 0, ReflectionReply("free", usage={"prompt_tokens": 5, "completion_tokens": 2}), {})
    assert log.cost is None
    log.write(
        request(), 1, ReflectionReply("paid", usage={"prompt_tokens": 5, "completion_tokens": 2, "cost": 0.25}), {}
    )
    later = ReflectionLog(path)
    later.write(
        request(), 2, ReflectionReply("paid", usage={"prompt_tokens": 5, "completion_tokens": 2, "cost": 0.5}), {}
    )
    assert later.cost == 0.75


def test_what_was_asked_can_be_read_by_people(path: Path) -> None:
    ReflectionLog(path).write(request("better?"), 0, ReflectionReply("yes"), {"component": "system_prompt"})
    line = path.read_text()
    assert '"component": "system_prompt"' in line
    assert '"content": "better?"' in line
    assert '"answer": "yes"' in line
