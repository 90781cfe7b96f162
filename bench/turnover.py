"""A cache at its capacity: what a round stores takes the room of what was stored two rounds before.

That is how a fleet lives, and it keeps the cost of memory that the machine hands out for the first time, on a
virtual one several milliseconds for two megabytes, out of the figures. Runs under both interpreters.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from itertools import count

from bench import workload


class Turnover:
    """One endless stream: rounds of stores, and before each the deletes that make room for it."""

    def __init__(self, entries: int, store_record: Callable[[int, int], bytes]) -> None:
        self._batches = entries // workload.BATCH_ENTRIES
        self._store_record = store_record
        self._numbers = count()
        self._seqs = count(1)
        self._held: deque[list[int]] = deque()

    def deletes(self) -> list[bytes]:
        """Records that delete the oldest of two rounds; none while there are fewer."""
        doomed = self._held.popleft() if len(self._held) == 2 else []
        return [workload.delete_record(number, next(self._seqs)) for number in doomed]

    def stores(self) -> list[bytes]:
        """Records of the next round, to be taken after its deletes."""
        stored = [next(self._numbers) for _ in range(self._batches)]
        self._held.append(stored)
        return [self._store_record(number, next(self._seqs)) for number in stored]
