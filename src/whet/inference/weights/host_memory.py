"""Copies of a GPU's tensors in host memory: weights on their way to a file, and a learner that leaves its device.

Host memory of copies is pinned, so that the GPU fills it while this process does something else, at the full rate of
the bus; pageable memory reaches a fraction of it. Elsewhere a tensor is in host memory already.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from typing import TypeVar

import torch
from torch import Tensor

Key = TypeVar("Key")


def begin_copy(tensor: Tensor) -> tuple[Tensor, Callable[[], None] | None]:
    """The tensor in host memory, and what waits until its numbers are there; None where they are."""
    tensor = tensor.detach()
    if not tensor.is_cuda:
        return tensor.cpu(), None
    host = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)
    host.copy_(tensor, non_blocking=True)
    there = torch.cuda.Event()
    there.record(torch.cuda.current_stream(tensor.device))

    def wait(source: Tensor = tensor) -> None:  # which is not freed before
        there.synchronize()

    return host, wait


def copied_ahead(
    tensors: Iterable[tuple[Key, Tensor]],
    begin: Callable[[Tensor], tuple[Tensor, Callable[[], None] | None]] = begin_copy,
) -> Iterator[tuple[Key, Tensor]]:
    """Each tensor in host memory; of a GPU's, the next one is being copied while one is used. Those of a CPU are read
    when their turn comes."""
    copying: tuple[Key, Tensor, Callable[[], None]] | None = None
    for key, tensor in tensors:
        host, wait = begin(tensor)
        if copying is not None:
            copying[2]()
            yield copying[:2]
        copying = None
        if wait is None:
            yield key, host
        else:
            copying = key, host, wait
    if copying is not None:
        copying[2]()
        yield copying[:2]


PIECE = 1 << 26
"""Bytes that are copied to a GPU together."""


def to_device(bytes_N: Tensor, device: torch.device) -> Tensor:
    """Bytes of a mapped file on a device; on a GPU in the order of the present stream, through two pinned pieces: one
    is filled from the file while the other is on its way."""
    if device.type != "cuda":
        return bytes_N.to(device)
    pieces = [torch.empty(min(PIECE, len(bytes_N)), dtype=torch.uint8, pin_memory=True) for _ in range(2)]
    return in_pieces(bytes_N, torch.empty_like(bytes_N, device=device), pieces, _in_order)


def _in_order() -> Callable[[], None]:
    """Waits for what the present stream has been given."""
    there = torch.cuda.Event()
    there.record()
    return there.synchronize


def in_pieces(
    source_N: Tensor, to_N: Tensor, pieces: Sequence[Tensor], given: Callable[[], Callable[[], None]]
) -> Tensor:
    """Copy through `pieces` in turn; `given` is called when one is on its way, and what it returns before its reuse."""
    waits: list[Callable[[], None]] = []
    for number, start in enumerate(range(0, len(source_N), len(pieces[0]))):
        if number >= len(pieces):
            waits[number - len(pieces)]()
        part = source_N[start : start + len(pieces[0])]
        piece = pieces[number % len(pieces)][: len(part)]
        to_N[start : start + len(part)].copy_(piece.copy_(part), non_blocking=True)
        waits.append(given())
    return to_N


class HostCopies:
    """Host memory that tensors of a GPU move to and come back from, the same each time.

    What does not change is copied there once: later its numbers on the GPU are only dropped.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._hosts: dict[Hashable, Tensor] = {}

    def leave(self, key: Hashable, tensor: Tensor, *, fixed: bool) -> Tensor:
        """The tensor in host memory, once `finish` has returned. `fixed`: its numbers never change."""
        host = self._hosts.get(key)
        if host is None or host.shape != tensor.shape or host.dtype != tensor.dtype:
            pinned = self._device.type == "cuda"
            host = self._hosts[key] = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=pinned)
        elif fixed:
            return host
        return host.copy_(tensor, non_blocking=True)

    def enter(self, key: Hashable, tensor: Tensor, *, fixed: bool) -> Tensor:
        """The tensor on the device; what is computed there waits for it."""
        return tensor.to(self._device, non_blocking=True, copy=True)

    def finish(self) -> None:
        """Return when all copies to the host are there, and give the GPU's memory back."""
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)
            torch.cuda.empty_cache()
