"""The tokens of a turn, whose lists of the prompt's length are made when they are read.

The prompt of a turn begins with that of the turn before: 200 turns of up to 100,000 tokens are 10 million ids, 80 MB in
lists of their own, and their masks another 80 MB of zeros. What is not read is kept as what each turn added.
"""

from __future__ import annotations

import copyreg
from collections.abc import ItemsView, Iterator, Mapping, MutableMapping, Sequence, ValuesView
from itertools import chain
from typing import Any

from whet.content import Record


class LazyIds:
    """A list that is made when it is first read, and is the same list from then on: `size` zeros."""

    __slots__ = ("_list", "_size")

    def __init__(self, size: int) -> None:
        self._size, self._list = size, None

    _list: list[int] | None

    def read(self) -> list[int]:
        if self._list is None:
            self._list = self._made()
        return self._list

    def _made(self) -> list[int]:
        return [0] * self._size

    def __len__(self) -> int:
        return self._size if self._list is None else len(self._list)

    def __iter__(self) -> Iterator[int]:
        """The ids, without keeping their list."""
        return iter(self._made() if self._list is None else self._list)

    def __reduce__(self) -> tuple[Any, ...]:
        return list, (list(self),)


class PromptIds(LazyIds):
    """The ids of a prompt, kept as what it adds to an earlier one that it begins with."""

    __slots__ = ("_added", "_earlier")

    def __init__(self, ids: list[int], earlier: Sequence[int] | LazyIds | None = None) -> None:
        """`ids` begin with `earlier`; a list that was read may have been changed, so nothing is shared with it."""
        super().__init__(len(ids))
        self._earlier = earlier if isinstance(earlier, PromptIds) and earlier._list is None else None
        self._added = ids if self._earlier is None else ids[len(self._earlier) :]

    def _made(self) -> list[int]:
        parts, prompt = [self._added], self._earlier
        while prompt is not None:
            parts.append(prompt._added)
            prompt = prompt._earlier
        return list(chain.from_iterable(reversed(parts)))


class TurnTokens(Record):
    """A record that is read as a dict of lists, whichever of its values are `LazyIds`.

    C code takes the values of a subclass of dict past its methods, unless `__iter__` is replaced. What takes them all
    the same (pydantic for a field of type `Any`, orjson) finds a `LazyIds`, which can be iterated.
    """

    def __getitem__(self, name: str) -> Any:
        value = super().__getitem__(name)
        if isinstance(value, LazyIds):
            value = value.read()
            self[name] = value
        return value

    def __iter__(self) -> Iterator[str]:
        return super().__iter__()

    get, setdefault = Mapping.get, MutableMapping.setdefault  # type: ignore[assignment]
    __eq__, __ne__ = Mapping.__eq__, object.__ne__

    def items(self) -> ItemsView[str, Any]:  # type: ignore[override]
        return ItemsView(self)

    def values(self) -> ValuesView[Any]:  # type: ignore[override]
        return ValuesView(self)

    def pop(self, name: str, *default: Any) -> Any:
        value = super().pop(name, *default)
        return value.read() if isinstance(value, LazyIds) else value

    def popitem(self) -> tuple[str, Any]:
        name = next(reversed(self))
        return name, self.pop(name)

    def copy(self) -> dict[str, Any]:
        return dict(self)

    def __or__(self, other: Any) -> Any:
        return dict(self) | other

    def __ror__(self, other: Any) -> Any:
        return other | dict(self)

    def __repr__(self) -> str:
        return repr(dict(self))

    def __reduce__(self) -> tuple[Any, ...]:
        return copyreg.__newobj__, (type(self),), None, None, iter(dict.items(self))  # type: ignore[attr-defined]


def unread(tokens: Mapping[str, Any], name: str) -> Any:
    """The ids or the mask of a turn, for `len` and `iter`; they are not made into a list that stays."""
    return dict.__getitem__(tokens, name) if isinstance(tokens, TurnTokens) else tokens[name]
