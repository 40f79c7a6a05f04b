"""`ProcessLearner`: a `Learner` in a process of its own, so that it computes while others sample.

A process pool of one worker from the standard library holds a `TorchLearner` and answers one call at a time; batches go
there as arrays, weights come back as files in shared memory. Calls block: the asynchronous loop makes them from a
thread. The process ends with its parent, however that ends, and leaves Ctrl-C to it. `log` passes its warnings on.
"""

from __future__ import annotations

import gc
import os
import shutil
from abc import abstractmethod
from collections.abc import Callable, Mapping
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from multiprocessing import connection
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from whet.errors import LearnerLostError
from whet.inference.protocol import WeightUpdate
from whet.rl.data.batch import PackedBatch
from whet.rl.learner.protocol import Learner, LossOutput, OptimOutput, OptimParams
from whet.rl.sections.algorithm import LossConfig
from whet.rl.storage.weight_directory import Publications
from whet.rl.supervision.child_log import ChildHandler, ChildLogs, tell_parent
from whet.system.children import follow_parent, process_context
from whet.system.loading_time import rare_collections

T = TypeVar("T")
_learner: Any = None
"""The learner of this process, where this is the worker."""
_hears: ChildHandler | None = None


class RemoteLearner(Learner):
    """What a `Learner` has that computes in other processes: calls by name, and what it publishes."""

    _publications: Publications

    @abstractmethod
    def _call(self, method: str, *arguments: Any) -> Any:
        """What the method of the learner returns there."""

    def optim_step(self, params: OptimParams) -> OptimOutput:
        output: OptimOutput = self._call("optim_step", params)
        return output

    def publish(self) -> WeightUpdate:
        update: WeightUpdate = self._call("publish")
        self._publications.published()
        return update

    def save(self, directory: Path) -> None:
        self._call("save", directory)

    def load(self, directory: Path) -> None:
        self._call("load", directory)

    def export(self, directory: Path, dtype: str = "float32") -> None:
        self._call("export", directory, dtype)

    def export_merged(self, directory: Path, dtype: str = "float32") -> None:
        self._call("export_merged", directory, dtype)


class ProcessLearner(RemoteLearner):
    """See `whet.rl.learner.protocol.Learner`."""

    def __init__(self, model: Path, **options: Any) -> None:
        """Start the process and load the model there; `options` are those of `make_learner`.

        Raises what `make_learner` raises, and `LearnerLostError` where the process does not live to tell.
        """
        self.log = ChildLogs()
        self._model, self._options = model, options
        self._publications = Publications(options["publish_directory"])
        self._start()

    def restart(self) -> None:
        """Begin again in a new process, with the weights that the learner was made with. Raises as when it is made."""
        self.close()
        self._start()

    def _start(self) -> None:
        log = self._log = self.log.add("learner")
        scratch = self._publications.root
        self._pool = ProcessPoolExecutor(
            1, mp_context=process_context(), initializer=_begin, initargs=(log.theirs, scratch)
        )
        try:
            facts = self._run(_make, self._model, {**self._options, "publish_directory": self._publications.begin()})
        except BaseException:
            self.close()
            raise
        log.handed_over()
        self.pid: int = facts["pid"]
        self.version: int = facts["version"]
        self.parameters: int = facts["parameters"]
        self.trained_parameters: int = facts["trained_parameters"]

    def forward_backward(self, batch: PackedBatch, loss: LossConfig) -> LossOutput:
        output: LossOutput = self._call("forward_backward", batch, loss)
        return output

    def token_logprobs(self, batch: PackedBatch) -> NDArray[np.float32]:
        logprobs: NDArray[np.float32] = self._call("token_logprobs", batch)
        return logprobs

    def close(self) -> None:
        """End the process, also in the middle of a step."""
        for process in list((self._pool._processes or {}).values()):
            process.kill()
        self._pool.shutdown(wait=True, cancel_futures=True)
        self.log.close(self._log)

    def _call(self, method: str, *arguments: Any) -> Any:
        answer, self.version = self._run(_answer, method, arguments)
        return answer

    def _run(self, function: Callable[..., T], *arguments: Any) -> T:
        try:
            return self._pool.submit(function, *arguments).result()
        except BrokenProcessPool:
            raise LearnerLostError(
                "the learner's process ended without a word: it was killed, most often for its memory (a smaller "
                "learner.micro_batch_tokens or activation checkpointing needs less)"
            ) from None


def _begin(log: connection.Connection, scratch: Path) -> None:
    """The process. `scratch` is the run's private directory."""
    global _hears
    follow_parent(lambda: shutil.rmtree(scratch, ignore_errors=True))
    _hears = tell_parent(log)


def _make(model: Path, options: Mapping[str, Any]) -> dict[str, int]:
    global _learner
    with rare_collections():
        from whet.rl.learner.make import make_learner

        _learner = make_learner(model, **options)
    if _hears is not None:
        _hears.attach()
    gc.freeze()  # what is loaded stays: a collection that visits all of torch takes a third of a second
    facts = ("version", "parameters", "trained_parameters")
    return {"pid": os.getpid(), **{name: getattr(_learner, name) for name in facts}}


def _answer(method: str, arguments: tuple[Any, ...]) -> tuple[Any, int]:
    """What a method of the learner returns, and its policy version then."""
    return getattr(_learner, method)(*arguments), _learner.version
