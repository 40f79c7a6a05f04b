"""Token lists of a rollout that share memory: the prompt of each turn is a beginning of the prompt of the next.

200 turns of up to 100,000 tokens are 10 million ids, 80 MB in lists of their own, and their masks as many zeros.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice, repeat
from typing import Any, overload


class _Tokens(Sequence[int]):
    """Ids that are equal to a list of them. Slices and sums are lists; they are pickled and dumped as lists."""

    __slots__ = ()
    __hash__ = None  # type: ignore[assignment]

    @overload
    def __getitem__(self, index: int) -> int: ...
    @overload
    def __getitem__(self, index: slice) -> list[int]: ...
    def __getitem__(self, index: int | slice) -> int | list[int]:
        if isinstance(index, slice):
            return self._part(*index.indices(len(self)))
        if not -len(self) <= index < len(self):
            raise IndexError("no token has this index")
        return self._part(index % len(self), index % len(self) + 1, 1)[0]

    def _part(self, start: int, stop: int, step: int) -> list[int]:
        raise NotImplementedError

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Sequence):
            return NotImplemented
        return len(self) == len(other) and list(self) == list(other)

    def __add__(self, other: Sequence[int]) -> list[int]:
        return [*self, *other]

    def __radd__(self, other: Sequence[int]) -> list[int]:
        return [*other, *self]

    def __repr__(self) -> str:
        return repr(list(self))

    def __reduce__(self) -> tuple[Any, ...]:
        return list, (list(self),)

    def model_dump(self) -> list[int]:
        return list(self)


class SharedIds(_Tokens):
    """The beginning of a list of ids that others share."""

    __slots__ = ("_length", "_shared")

    def __init__(self, ids: list[int], earlier: Sequence[int] | None = None) -> None:
        """`ids` begin with `earlier`, which gives up its own list for them where it is all of it."""
        self._length = len(ids)
        self._shared: list[list[int]] = [ids]
        if isinstance(earlier, SharedIds) and len(earlier) == len(earlier._shared[0]):
            self._shared = earlier._shared
            self._shared[0] = ids

    def __len__(self) -> int:
        return self._length

    def __iter__(self) -> Iterator[int]:
        return islice(self._shared[0], self._length)

    def _part(self, start: int, stop: int, step: int) -> list[int]:
        return self._shared[0][start : None if stop < 0 else stop : step]


class Zeros(_Tokens):
    """As many zeros as there are tokens in a prompt."""

    __slots__ = ("_length",)

    def __init__(self, length: int) -> None:
        self._length = length

    def __len__(self) -> int:
        return self._length

    def __iter__(self) -> Iterator[int]:
        return repeat(0, self._length)

    def _part(self, start: int, stop: int, step: int) -> list[int]:
        return [0] * len(range(start, stop, step))
