"""Names as small integers, given back when the last row that uses one is gone.

Only the writer interns, under the write lock; a lookup asks for a number and may get 0, "nobody uses that
name". Numbers start at 1 and are used again, so whoever holds one must hold the lock.
"""

from __future__ import annotations

import bisect
from collections.abc import Hashable
from typing import Any, Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

Name = TypeVar("Name", bound=Hashable)


class StateFull(RuntimeError):
    """There is no number left for a new name."""


class Interner(Generic[Name]):
    """Numbers for names of one kind.

    Attributes:
        names: the name of each number; None where it is free.
    """

    def __init__(self, capacity: int, kind: str) -> None:
        self.names: list[Name | None] = [None]
        self._numbers: dict[Name, int] = {}
        self._free: list[int] = []
        self._used = np.zeros(64, np.bool_)
        self._capacity = capacity
        self._kind = kind

    def __len__(self) -> int:
        return len(self._numbers)

    def find(self, name: Name) -> int:
        """Return the number of a name, 0 if it has none."""
        return self._numbers.get(name, 0)

    def intern(self, name: Name) -> int:
        """Return the number of a name, giving it one if need be.

        Raises:
            StateFull: all numbers are taken.
        """
        number = self._numbers.get(name)
        if number is None:
            if self._free:
                number = self._free.pop()
                self.names[number] = name
            elif len(self.names) < self._capacity:
                number = len(self.names)
                self.names.append(name)
                if number == len(self._used):
                    self._used = np.append(self._used, np.zeros_like(self._used))
            else:
                raise StateFull(f"no number left for {self._kind} {name!r}: {len(self)} are in use")
            self._numbers[name] = number
            self._used[number] = True
        return number

    def restore(self, names: list[Name | None]) -> None:
        """Number the names as they lie in `names`; for an interner that has none yet."""
        self.names = names
        self._numbers = {name: number for number, name in enumerate(names) if name is not None}
        self._free = [number for number, name in enumerate(names) if number and name is None]
        self._used = np.zeros(max(64, 2 * len(names)), np.bool_)
        self._used[: len(names)] = [name is not None for name in names]

    def sweep(self, refs: NDArray[np.int64]) -> list[tuple[int, Name]]:
        """Free the numbers that nothing refers to; return them with their names."""
        gone: list[tuple[int, Name]] = []
        count = len(self.names)
        for number in np.flatnonzero(self._used[:count] & (refs[:count] == 0)).tolist():
            name = self.names[number]
            assert name is not None
            del self._numbers[name]
            self.names[number] = None
            self._used[number] = False
            self._free.append(number)
            gone.append((number, name))
        return gone


class RankedNames(Interner[str]):
    """Names whose alphabetical order kernels can compare: `instances["rank"]` follows it."""

    def __init__(self, capacity: int, kind: str, instances: NDArray[Any]) -> None:
        super().__init__(capacity, kind)
        self._instances = instances
        self._sorted: list[str] = []
        self._order = np.zeros(0, np.int64)  # the numbers of the sorted names

    def intern(self, name: str) -> int:
        """Return the number of a name; a new one takes its place in the order."""
        known = self.find(name)
        if known:
            return known
        number = super().intern(name)
        place = bisect.bisect_left(self._sorted, name)
        self._sorted.insert(place, name)
        self._order = np.insert(self._order, place, number)
        self._rank_from(place)
        return number

    def restore(self, names: list[str | None]) -> None:
        """Number the names as they lie in `names`."""
        super().restore(names)
        self._sorted = sorted(self._numbers)
        self._order = np.array([self._numbers[name] for name in self._sorted], np.int64)
        self._rank_from(0)

    def sweep(self, refs: NDArray[np.int64]) -> list[tuple[int, str]]:
        """Free the numbers that nothing refers to; the order of the others stays."""
        gone = super().sweep(refs)
        if gone:
            places = [bisect.bisect_left(self._sorted, name) for _, name in gone]
            for place in sorted(places, reverse=True):
                del self._sorted[place]
            self._order = np.delete(self._order, places)
            self._rank_from(0)
        return gone

    def _rank_from(self, place: int) -> None:
        self._instances["rank"][self._order[place:]] = np.arange(place, len(self._order))
