"""`RankBody`: what runs in the process of a rank, whichever `RankGroup` has started it: calls in, answers out."""

from __future__ import annotations

import logging
import pickle
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from whet.errors import TrainingError, WhetError
from whet.rl.learner.ranks.rank_group import MAKE, Answer, Cause, Facts, Raised
from whet.system.loading_time import rare_collections

IDLE = "waiting for a call"
CALLS = {
    MAKE: "loading the model",
    "forward_backward": "forward and backward pass",
    "token_logprobs": "forward pass",
    "optim_step": "optimiser step",
    "publish": "publishing weights",
    "save": "saving a checkpoint",
    "load": "loading a checkpoint",
    "export": "exporting weights",
    "export_merged": "exporting weights",
}
"""The first phase of each call; the learner names those within."""
NO_MEMORY = ("out of memory", "not enough memory", "cannot allocate memory", "can't allocate memory")
BROKEN_CONNECTION = ("closed by peer", "connection reset", "connection refused", "broken pipe", "gloo", "nccl")
"""Parts of messages by which an exception of torch is known, in lower case."""
LONGEST = 500
"""Characters of a message; the log has the whole exception."""

_log = logging.getLogger(__name__)


class RankBody:
    """One rank's part of the learner."""

    def __init__(self, rank: int, phase: Callable[[str], None]) -> None:
        """`phase` is called with what the rank does from now on, in words."""
        self.rank = rank
        self._phase = phase
        self._learner: Any = None

    def make(self, model: Path, options: Mapping[str, Any]) -> Answer:
        """Make the learner; `options` are those of `make_rank_learner` but for `rank` and `phase`."""
        return self._answered(MAKE, lambda: self._make(model, options))

    def call(self, verb: str, arguments: tuple[Any, ...]) -> Answer:
        return self._answered(verb, lambda: getattr(self._learner, verb)(*arguments))

    def _make(self, model: Path, options: Mapping[str, Any]) -> Facts:
        with rare_collections():
            from whet.rl.learner.ranks.rank_learner import make_rank_learner

            self._learner = made = make_rank_learner(model, rank=self.rank, phase=self._phase, **options)
        return Facts(made.version, made.parameters, made.trained_parameters)

    def _answered(self, verb: str, work: Callable[[], Any]) -> Answer:
        self._phase(CALLS[verb])
        try:
            value = work()
        except Exception as error:
            raised = as_raised(error)
            if raised.cause != "whet":
                _log.error("%s failed", CALLS[verb], exc_info=error)
            return Answer(self.rank, raised=raised)
        self._phase(IDLE)
        return Answer(self.rank, value, version=self._learner.version)


def as_raised(error: Exception) -> Raised:
    """What the run is to know of an exception of a rank."""
    line = " ".join(str(error).split())[:LONGEST]
    text = f"{type(error).__name__}: {line}" if line else type(error).__name__
    if not isinstance(error, WhetError):
        return Raised(_cause(error), text)
    try:
        pickle.loads(pickle.dumps(error))
    except TypeError:  # its arguments are not those that it is made with
        error = TrainingError(str(error))
    return Raised("whet", text, error)


def _cause(error: Exception) -> Cause:
    said = f"{type(error).__name__} {error}".lower()
    if isinstance(error, MemoryError) or any(part in said for part in ("outofmemoryerror", *NO_MEMORY)):
        return "memory"
    return "peer" if any(part in said for part in BROKEN_CONNECTION) else "other"
