"""What a session takes from a worker, which runs the code of environments."""

from __future__ import annotations

import pytest

from whet.errors import ConfigError, MissingExtraError, ModelError, OverlongPromptError
from whet.rollouts.workers.child import read_head
from whet.system.channel import BrokenFrameError, error_from_words, error_to_words


def test_a_frame_is_a_line_of_json_and_rows_as_they_stand_in_the_file() -> None:
    head, body = read_head(b'{"kind": "rows", "job": 1, "indices": [0, 1]}\n{"a": 1}\n{"a": 2}\n')
    assert (head["indices"], body) == ([0, 1], b'{"a": 1}\n{"a": 2}\n')


@pytest.mark.parametrize(
    ("frame", "said"),
    [
        (b"\x80\x05 pickled", "not JSON"),
        (b"[1]", "no object"),
        (b'{"kind": "shutdown"}', "of the kind 'shutdown'"),
        (b'{"kind": []}', r"of the kind \[\]"),
        (b'{"job": 1}', "of the kind None"),
        (b'{"kind": "rows", "job": 1}', "'rows' without indices"),
        (b'{"kind": "mistake", "error": ["ToolError", "no"]}', "its class, its text and its line"),
        (b'{"kind": "mistake", "error": 7}', "its class, its text and its line"),
    ],
)
def test_what_is_no_message_is_refused(frame: bytes, said: str) -> None:
    with pytest.raises(BrokenFrameError, match=said):
        read_head(frame)


@pytest.mark.parametrize(
    "error", [ModelError("no answer"), OverlongPromptError("too long"), ConfigError("x"), MissingExtraError("f", "e")]
)
def test_an_error_arrives_as_what_it_was(error: Exception) -> None:
    arrived = error_from_words(*error_to_words(error))
    assert (type(arrived), str(arrived)) == (type(error), str(error))


def test_an_error_that_whet_does_not_have_is_the_models_and_keeps_its_name() -> None:
    arrived = error_from_words(*error_to_words(KeyError("x")))
    assert isinstance(arrived, ModelError)
    assert str(arrived).startswith("KeyError: ")
