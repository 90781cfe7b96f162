"""Pages ahead of the tables' ends, touched by a thread of its own.

The first write to a page of fresh memory makes the kernel find and clear it, and on a virtual machine often
the host too: 2 to 4 us a kilobyte, milliseconds for a huge page, all under the write lock. So a thread keeps
memory ready: much at the start, where a fleet's state is usually read in one go, and a little ahead of each
table's end from then on. It writes nothing itself (MADV_POPULATE_WRITE leaves contents alone), so it needs no
lock for that. Where the kernel does not know that call (before Linux 5.14), tables grow as they did, page by
page. With nothing to make ready it moves rows that are still mapped from files into memory, piece by piece.
"""

from __future__ import annotations

import logging
import threading
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from processor.state import pages
from processor.state.layout import (
    BUCKETS,
    CAPACITY,
    CHUNKS,
    CLAIMS,
    CONTENTS,
    HIGH_WATER,
    KEYS,
    PLACES,
    POSTS,
    TOKENS,
    Tables,
)
from processor.state.mapping import MappedFiles
from processor.state.pages import HUGE_PAGE, PAGE
from processor.state.rwlock import RWLock

logger = logging.getLogger(__name__)

FIRST_ROWS = 131_072
"""Rows made ready at the start, unless an eighth of the table is less: about 200 MB at 256 tokens a chunk."""
AHEAD_ROWS = 8_192
"""Rows kept ready beyond the end from then on; twice as many are made at a time."""


@dataclass(slots=True)
class _Column:
    """One array: `unit` bytes for each row that `meta[end]` counts."""

    address: int
    unit: int
    rows: int
    end: int
    ready_bytes: int = 0


class Prefault:
    """Keeps memory ready for one set of tables until `close`."""

    def __init__(self, tables: Tables, mapped: MappedFiles, lock: RWLock) -> None:
        self._meta = tables.meta
        self._mapped = mapped
        self._lock = lock
        self._columns = _columns(tables)
        self._ends = np.array([column.end for column in self._columns])
        self._wanted = np.zeros(len(self._columns), np.int64)
        self._able = True
        self._wake = threading.Event()
        self._closing = False
        self._finished = threading.Condition()
        self._asked = self._done = 0
        for i, column in enumerate(self._columns):
            used = int(self._meta[column.end])
            # What is used by now is there.
            column.ready_bytes = used * column.unit
            self._wanted[i] = max(min(FIRST_ROWS, column.rows // 8), used + 2 * AHEAD_ROWS)
        self._ask()
        self._thread = threading.Thread(target=self._run, name="prefault", daemon=True)
        self._thread.start()

    def note_growth(self) -> None:
        """Have the thread look where the tables end now; called by the writer after a batch, cheap."""
        short = self._meta[self._ends] + AHEAD_ROWS > self._wanted
        if short.any():
            self._wanted[short] = self._meta[self._ends][short] + 2 * AHEAD_ROWS
            self._ask()

    def wait(self, timeout: float) -> bool:
        """Wait until all that can be done of what is wanted is done; tell whether it is."""
        with self._finished:
            return self._finished.wait_for(lambda: self._done == self._asked, timeout)

    def close(self) -> None:
        """End the thread; the tables stay as they are."""
        self._closing = True
        self._wake.set()
        self._thread.join()

    def _ask(self) -> None:
        self._asked += 1
        self._wake.set()

    def _run(self) -> None:
        while not self._closing:
            self._wake.clear()
            asked = self._asked
            # Rows to come go first: the stream waits for them, and for no row that is there.
            while not self._closing and (self._make_ready() or self._mapped.move_next(self._lock)):
                pass
            with self._finished:
                self._done = asked
                self._finished.notify_all()
            self._wake.wait()

    def _make_ready(self) -> bool:
        """Make the next few megabytes ready; whether there were any to make."""
        for column, rows in zip(self._columns, self._wanted.tolist(), strict=True):
            if self._able and column.ready_bytes < min(rows, column.rows) * column.unit:
                self._extend(column)
                return True
        return False

    def _extend(self, column: _Column) -> None:
        start, end = column.address + column.ready_bytes, column.address + column.rows * column.unit
        first, last = start // PAGE * PAGE, min(start + HUGE_PAGE, end)
        try:
            pages.make_writable(first, last // PAGE * PAGE - first)
        except OSError as error:
            logger.info("memory cannot be made ready ahead: %s", error.strerror)
            self._able = False
        column.ready_bytes = last - column.address


def _columns(tables: Tables) -> list[_Column]:
    def column(array: NDArray[Any], end: int, rows: int) -> _Column:
        return _Column(array.ctypes.data, array.strides[0], rows, end)

    meta = tables.meta
    found = [
        column(array, table + HIGH_WATER, int(meta[table + CAPACITY]))
        for array, table in (
            (tables.tokens, TOKENS),
            (tables.chunks, CHUNKS),
            (tables.keys, KEYS),
            (tables.places, PLACES),
            (tables.contents, CONTENTS),
            (tables.claims, CLAIMS),
            (tables.posts, POSTS),
            (tables.token_next, TOKENS),
            (tables.last_access, KEYS),
            (tables.access_count, KEYS),
        )
    ]
    found += [
        column(array, table + BUCKETS, len(array))
        for array, table in (
            (tables.chunk_buckets, CHUNKS),
            (tables.key_buckets, KEYS),
            (tables.place_buckets, PLACES),
            (tables.content_buckets, CONTENTS),
            (tables.claim_buckets, CLAIMS),
            (tables.post_buckets, POSTS),
        )
    ]
    return found
