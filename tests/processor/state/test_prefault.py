"""Memory is made ready ahead of the tables' ends, and what the tables hold stays as it is."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from processor.state.layout import CHUNKS, HIGH_WATER, TOKENS, make_tables
from processor.state.prefault import AHEAD_ROWS, Prefault

CHUNK_SIZE = 256
DEADLINE = 60.0


def resident(array: np.ndarray[tuple[int, ...], np.dtype[np.uint32]]) -> int:
    """Kilobytes of an array's memory that are there."""
    wanted = f"{array.ctypes.data:x}-"
    lines = iter(Path("/proc/self/smaps").read_text().splitlines())
    for line in lines:
        if line.startswith(wanted):
            return next(int(rest.split()[1]) for rest in lines if rest.startswith("Rss:"))
    raise AssertionError("the array has no mapping of its own")


def test_memory_is_ready_before_the_first_row_and_ahead_of_every_later_one() -> None:
    tables = make_tables(400_000, CHUNK_SIZE)
    prefault = Prefault(tables)
    try:
        assert prefault.wait(DEADLINE)
        at_the_start = resident(tables.tokens)
        assert at_the_start >= 100_000 * CHUNK_SIZE * 4 // 1024
        tables.meta[TOKENS + HIGH_WATER] = 200_000
        prefault.note_growth()
        assert prefault.wait(DEADLINE)
        assert resident(tables.tokens) >= (200_000 + AHEAD_ROWS) * CHUNK_SIZE * 4 // 1024 > at_the_start
    finally:
        prefault.close()


def test_rows_written_meanwhile_keep_what_was_written() -> None:
    tables = make_tables(200_000, CHUNK_SIZE)
    tables.chunks["hash"][1:20_000] = 7
    prefault = Prefault(tables)
    try:
        for row in range(1, 20_000):
            tables.tokens[row, 0] = row
        tables.meta[CHUNKS + HIGH_WATER] = 20_000
        prefault.note_growth()
        assert prefault.wait(DEADLINE)
        assert (tables.chunks["hash"][1:20_000] == 7).all()
        assert (tables.tokens[1:20_000, 0] == np.arange(1, 20_000)).all()
    finally:
        prefault.close()
