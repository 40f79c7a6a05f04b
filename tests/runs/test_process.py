"""Identifying the process that writes a run."""

from __future__ import annotations

import os

from whet.runs.process import began


def test_a_process_is_known_by_when_it_began() -> None:
    assert began(os.getpid()) == began(os.getpid()) is not None
    assert began(1) != began(os.getpid())
    assert began(2**22 + 1) is None
