"""Pages ahead of the tables' ends, touched by a thread of its own.

The first write to a page of fresh memory makes the kernel find and clear it, and on a virtual machine often
the host too: 2 to 4 us a kilobyte, milliseconds for a huge page, all under the write lock. So a thread keeps
memory ready: much at the start, where a fleet's state is usually read in one go, and a little ahead of each
table's end from then on. It writes nothing itself (MADV_POPULATE_WRITE leaves contents alone), so it needs no
lock for that. Where the kernel does not know that call (before Linux 5.14), tables grow as they did, page by
page. With nothing to make ready it moves rows that are still mapped from files into memory, piece by piece.
"""

from __future__ import annotations

import ctypes
import ctypes.util
import logging
import os
import threading
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

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
from processor.state.rwlock import RWLock

logger = logging.getLogger(__name__)

FIRST_ROWS = 131_072
"""Rows made ready at the start, unless an eighth of the table is less: about 200 MB at 256 tokens a chunk."""
AHEAD_ROWS = 8_192
"""Rows kept ready beyond the end from then on; twice as many are made at a time."""

_POPULATE_WRITE = 23
_STEP_BYTES = 2 << 20
_PAGE = os.sysconf("SC_PAGE_SIZE")


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
        self._wake = threading.Event()
        self._idle = threading.Event()
        self._closing = False
        self._populate = ctypes.CDLL(None, use_errno=True).madvise
        self._populate.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
        for i, column in enumerate(self._columns):
            used = int(self._meta[column.end])
            # What is used by now is there.
            column.ready_bytes = used * column.unit
            self._wanted[i] = max(min(FIRST_ROWS, column.rows // 8), used + 2 * AHEAD_ROWS)
        self._wake.set()
        self._thread = threading.Thread(target=self._run, name="prefault", daemon=True)
        self._thread.start()

    def note_growth(self) -> None:
        """Have the thread look where the tables end now; called by the writer after a batch, cheap."""
        short = self._meta[self._ends] + AHEAD_ROWS > self._wanted
        if short.any():
            self._wanted[short] = self._meta[self._ends][short] + 2 * AHEAD_ROWS
            self._idle.clear()
            self._wake.set()

    def wait(self, timeout: float) -> bool:
        """Wait until everything wanted is ready; tell whether it is."""
        return self._idle.wait(timeout)

    def close(self) -> None:
        """End the thread; the tables stay as they are."""
        self._closing = True
        self._wake.set()
        self._thread.join()

    def _run(self) -> None:
        able = moving = True
        while not self._closing and (able or moving):
            if self._wake.is_set() or not moving:
                self._wake.wait()
                self._wake.clear()
                able = able and all(map(self._make_all_ready, range(len(self._columns))))
            moving = moving and self._mapped.move_next(self._lock)
            if not moving and not self._wake.is_set():
                self._idle.set()
        self._idle.set()

    def _make_all_ready(self, index: int) -> bool:
        column = self._columns[index]
        wanted = min(int(self._wanted[index]), column.rows) * column.unit
        while column.ready_bytes < wanted and not self._closing:
            if not self._make_ready(column):
                return False
        return True

    def _make_ready(self, column: _Column) -> bool:
        first = (column.address + column.ready_bytes) // _PAGE * _PAGE
        last = min(
            column.address + column.ready_bytes + _STEP_BYTES, column.address + column.rows * column.unit
        )
        if self._populate(first, last // _PAGE * _PAGE - first, _POPULATE_WRITE):
            logger.info("memory cannot be made ready ahead: %s", os.strerror(ctypes.get_errno()))
            return False
        column.ready_bytes = last - column.address
        return True


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
