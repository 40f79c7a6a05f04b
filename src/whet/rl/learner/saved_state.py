"""The state of an optimiser and of random numbers in a checkpoint. One process and ranks read what the other wrote.

    learner.json        the policy's version; of ranks also the settings of the optimiser's groups
    optimizer.pt        of one process: everything else, by torch.save
    optimizer/          of ranks: torch.distributed.checkpoint, to which each rank writes its own part

Keys of the latter are `<part of the optimiser>.<number of the parameter>.<name>` and `rng.<rank>.<device>`. The weights
are `weights.py`'s.
"""

from __future__ import annotations

import json
import pickle
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from whet.errors import RunError
from whet.rl.learner.optim import Optimizer
from whet.rl.learner.whole import Whole

VERSION = "learner.json"
OF_ONE_PROCESS = "optimizer.pt"
OF_RANKS = "optimizer"
_SIZES = "exp_avg", "exp_avg_sq", "momentum_buffer"
"""Of the state of a parameter, what has its size."""


@dataclass(frozen=True, slots=True)
class SavedState:
    version: int
    optimizer: dict[str, Any]
    rng: dict[str, Tensor]
    """Of this rank, by device; empty where it was not among those that wrote."""


def save_state(directory: Path, state: SavedState) -> None:
    """Of one process. Raises `OSError` where the disk does not take it."""
    path = directory / OF_ONE_PROCESS
    try:
        torch.save({"optimizer": state.optimizer, "rng": state.rng}, path)
    except RuntimeError as error:  # torch's writer reports a full disk so
        raise OSError(f"{path}: {error}") from None
    (directory / VERSION).write_text(json.dumps({"version": state.version}) + "\n", encoding="utf-8")


def save_state_of_ranks(directory: Path, state: SavedState, whole: Whole) -> None:
    """Called by all ranks; raises `OSError` on all where one cannot write."""
    from torch.distributed.checkpoint.api import CheckpointException
    from torch.distributed.checkpoint.filesystem import FileSystemWriter
    from torch.distributed.checkpoint.state_dict_saver import save

    parts = {
        f"{part}.{number}.{name}": tensor
        for part, held in state.optimizer.items()
        for number, values in held["state"].items()
        for name, tensor in values.items()
        if isinstance(tensor, Tensor)
    }
    parts |= {f"rng.{whole.rank}.{device}": tensor for device, tensor in state.rng.items()}
    try:
        save(parts, storage_writer=FileSystemWriter(directory / OF_RANKS))
    except CheckpointException as error:
        raise OSError(f"{directory / OF_RANKS}: {error}") from None
    if whole.rank == 0:
        groups = {part: held["param_groups"] for part, held in state.optimizer.items()}
        said = {"version": state.version, "groups": groups}
        (directory / VERSION).write_text(json.dumps(said) + "\n", encoding="utf-8")


def read_state(directory: Path, optimizer: Optimizer, whole: Whole) -> SavedState:
    """The own part of what was saved. Raises `RunError` for what cannot be read, or is of another optimiser."""
    try:
        version = int((said := _said(directory))["version"])
        if (directory / OF_RANKS).is_dir():
            groups: dict[str, Any] = said["groups"]
            optimizer.check_parts(groups)
            return SavedState(version, *_of_ranks(directory / OF_RANKS, groups, optimizer, whole))
        state: dict[str, Any] = torch.load(
            directory / OF_ONE_PROCESS, map_location="cpu", weights_only=True, mmap=whole.divided
        )
        optimizer.check_parts(state["optimizer"])
        return SavedState(version, _own(state["optimizer"], optimizer, whole), state["rng"] if whole.rank == 0 else {})
    except (OSError, ValueError, KeyError, IndexError, RuntimeError, EOFError, pickle.UnpicklingError) as error:
        raise RunError(f"{directory}: cannot read the saved learner: {error}") from None


def check_saved(directory: Path) -> None:
    """Raise `RunError` where there is nothing that was saved, as on a host that the directory is not shared with."""
    try:
        _said(directory)
    except (OSError, ValueError) as error:
        raise RunError(f"{directory}: cannot read the saved learner: {error}") from None


def _said(directory: Path) -> dict[str, Any]:
    said: dict[str, Any] = json.loads((directory / VERSION).read_text(encoding="utf-8"))
    return said


def _own(state: dict[str, Any], optimizer: Optimizer, whole: Whole) -> dict[str, Any]:
    """The own part of what one process saved."""
    if whole.divided:
        for part, parameters in optimizer.by_number().items():
            for number, values in state[part]["state"].items():
                for name in values.keys() & set(_SIZES):
                    if values[name] is not None:
                        own = torch.zeros_like(parameters[number])
                        whole.own(own).copy_(values[name][whole.rows(own)])
                        values[name] = own
    return state


def _of_ranks(
    directory: Path, groups: Mapping[str, Any], optimizer: Optimizer, whole: Whole
) -> tuple[dict[str, Any], dict[str, Tensor]]:
    from torch.distributed.checkpoint.api import CheckpointException
    from torch.distributed.checkpoint.filesystem import FileSystemReader
    from torch.distributed.checkpoint.metadata import TensorStorageMetadata
    from torch.distributed.checkpoint.state_dict_loader import load

    reader, parameters = FileSystemReader(directory), optimizer.by_number()
    states: dict[str, Any] = {part: {"state": {}, "param_groups": held} for part, held in groups.items()}
    wanted: dict[str, Tensor] = {}
    rng: dict[str, Tensor] = {}
    for key, entry in reader.read_metadata().state_dict_metadata.items():
        assert isinstance(entry, TensorStorageMetadata), "only tensors are written"
        part, number, name = key.split(".")
        empty = torch.empty(entry.size, dtype=entry.properties.dtype)
        if part == "rng":
            if int(number) == whole.rank:
                wanted[key] = rng[name] = empty
            continue
        if name in _SIZES:
            empty = torch.zeros_like(parameters[part][int(number)], dtype=entry.properties.dtype)
        wanted[key] = states[part]["state"].setdefault(int(number), {})[name] = empty
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "torch.distributed is disabled")  # which one process means to have
            load(wanted, storage_reader=reader, no_dist=not whole.divided)
    except CheckpointException as error:
        raise OSError(error) from None
    return states, rng
