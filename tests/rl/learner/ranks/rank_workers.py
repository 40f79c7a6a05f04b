"""Processes that are ranks of one learner after another, started once for many tests.

A test sends each rank the calls of its learner; a rank makes the learner, answers with what each call returned or
raised, and closes it. Besides the learner's own methods there are those of `READS`.
"""

import multiprocessing
import traceback
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

DEADLINE = 200.0
"""Seconds after which ranks that were waited for are taken for hung."""


@dataclass(frozen=True)
class Raised:
    """What a call raised."""

    kind: str
    text: str


def _numbers(named):
    return {
        name: (tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor).detach().cpu().numpy().copy()
        for name, tensor in named.items()
    }


READS = {
    "gradients": lambda learner: _numbers({name: p.grad for name, p in learner.weights.parameters()}),
    "weights": lambda learner: _numbers(dict(learner.weights.parameters())),
    "held": lambda learner: sum(p.to_local().numel() for p in learner.weights.model.parameters()),
    "read": lambda learner: list(READ),
    "random": lambda learner: torch.get_rng_state().numpy().copy(),
}


READ = []
"""Bytes of each tensor that was read for the learner."""


def _count_what_is_read():
    from whet.inference.weights import safetensors_files

    read = safetensors_files.FileTensor.read

    def counted(tensor, rows=None):
        found = read(tensor, rows)
        READ.append(found.nbytes)
        return found

    safetensors_files.FileTensor.read = counted


def _serve(rank, calls):
    torch.set_num_threads(1)
    _count_what_is_read()
    from whet.rl.learner.ranks.rank_learner import make_rank_learner

    while True:
        model, options, verbs = calls.recv()
        phases, answers = [], []
        READ.clear()
        try:
            learner = make_rank_learner(model, rank=rank, phase=phases.append, **options)
            for verb, *arguments in verbs:
                try:
                    answer = READS[verb](learner) if verb in READS else getattr(learner, verb)(*arguments)
                except Exception as error:
                    traceback.print_exc()
                    answer = Raised(type(error).__name__, str(error))
                answers.append(answer)
            learner.close()
        except Exception as error:
            traceback.print_exc()
            answers.append(Raised(type(error).__name__, str(error)))
        calls.send((answers, phases))


class Ranks:
    """Worker processes, of which each learner takes as many as it has ranks."""

    def __init__(self, most: int, directory: Path) -> None:
        context = multiprocessing.get_context("forkserver")  # which imports once, and forks before any thread
        context.set_forkserver_preload(
            ["peft", "rank_workers", "whet.rl.learner.lora", "whet.rl.learner.ranks.rank_learner"]
        )
        self._directory, self._learners = directory, 0
        self._pipes, self._processes = [], []
        for rank in range(most):
            here, there = context.Pipe()
            self._processes.append(process := context.Process(target=_serve, args=(rank, there), daemon=True))
            process.start()
            self._pipes.append(here)

    def run(self, model: Path, options: dict[str, Any], of_ranks: list[list[tuple[Any, ...]]]) -> list[list[Any]]:
        """Make a learner of as many ranks as there are lists of calls; what each rank answered to its calls."""
        return [answers for answers, _ in self.run_with_phases(model, options, of_ranks)]

    def run_with_phases(self, model, options, of_ranks):
        self._learners += 1
        meeting = {
            "world_size": len(of_ranks),
            "init_method": f"file://{self._directory / f'meeting_{self._learners}'}",
            "collective_timeout_s": DEADLINE,
        }
        used = self._pipes[: len(of_ranks)]
        for pipe, verbs in zip(used, of_ranks, strict=True):
            pipe.send((model, {**options, **meeting}, verbs))
        assert all(pipe.poll(DEADLINE) for pipe in used), "ranks hang"
        return [pipe.recv() for pipe in used]

    def close(self) -> None:
        for process in self._processes:
            process.kill()
            process.join()


def relative(found: dict[str, np.ndarray], expected: dict[str, np.ndarray]) -> float:
    """The largest difference of two sets of tensors, each relative to its norm."""
    assert found.keys() == expected.keys()
    return max(
        float(np.linalg.norm(found[name] - expected[name]) / max(np.linalg.norm(expected[name]), 1e-30))
        for name in expected
    )


__all__ = ["DEADLINE", "Raised", "Ranks", "relative"]
