"""Files mapped to where a table's rows lie, and moved into memory afterwards.

A mapped file is there at once: nothing is copied, its pages are the page cache's, and a page that is written
to becomes the process's own while the file stays as it is. It is a beginning and no place to stay: it comes
in small pages, which slows every access, and the file keeps its disk space while it is mapped, even when it
was removed. So a thread moves the rows into memory of the usual kind, a few megabytes at a time.

Each step copies the rows aside and lets the copy take their place, in one step of the kernel's and under the
write lock, so that no write is lost. Whoever reads without a lock, as a checkpoint does, finds the same bytes
before and after, or waits for a moment at a page that is just being exchanged.
"""

from __future__ import annotations

import ctypes
import logging
from collections import deque
from pathlib import Path
from typing import Any, Final

from numpy.typing import NDArray

from processor.state import pages
from processor.state.pages import HUGE_PAGE, PAGE
from processor.state.rwlock import RWLock

logger = logging.getLogger(__name__)

MOST_PIECES: Final = 8_192
"""Every piece stays a mapping of its own, and a process may have 65,530: larger states take larger pieces."""


class MappedFiles:
    """The files mapped into one set of tables; `map` comes before the thread that calls `move_next`."""

    def __init__(self) -> None:
        self._ranges: deque[tuple[int, int]] = deque()
        self._bytes = 0

    def map(self, rows: NDArray[Any], path: Path, offset: int) -> bool:
        """Let `rows`, still empty, be what the file holds from `offset` on; whether that could be done.

        Args:
            rows: of a reserved table, contiguous. What lies behind them on their last page is as in the file,
                or zero where that has ended.
            path: of a file that is never changed, only removed.
        """
        address, size = rows.ctypes.data, -(-rows.nbytes // PAGE) * PAGE
        if address % PAGE or offset % PAGE or not size:
            return False
        try:
            pages.map_file(address, size, path, offset)
        except OSError as error:
            logger.info("%s is read, since it cannot be mapped: %s", path, error.strerror)
            return False
        self._ranges.append((address, size))
        self._bytes += size
        return True

    def move_next(self, lock: RWLock) -> bool:
        """Move one piece into memory, if one is left; whether there is another."""
        if not self._ranges:
            return False
        start, size = self._ranges.popleft()
        most = -(-max(self._bytes // MOST_PIECES, HUGE_PAGE) // HUGE_PAGE) * HUGE_PAGE
        # A piece ends where a huge page does.
        part = min(size, most - start % HUGE_PAGE)
        if part < size:
            self._ranges.appendleft((start + part, size - part))
        try:
            _move(start, part, lock)
        except OSError as error:
            logger.info("what was restored stays mapped from its files: %s", error.strerror)
            self._ranges.clear()
        return bool(self._ranges)


def _move(start: int, size: int, lock: RWLock) -> None:
    aside = pages.new_memory(size, like=start)
    try:
        # What may take long is done beforehand: finding memory, and reading the file.
        pages.make_writable(aside, size)
        pages.make_readable(start, size)
    except OSError:
        pages.release(aside, size)
        raise
    with lock.write:
        ctypes.memmove(aside, start, size)
        pages.put_in_place(start, size, aside)
