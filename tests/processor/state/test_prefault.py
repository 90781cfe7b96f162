"""Memory is made ready ahead of the tables' ends, and what the tables hold stays as it is."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from processor.state.layout import CHUNKS, HIGH_WATER, TOKENS, make_tables
from processor.state.mapping import MappedFiles
from processor.state.prefault import AHEAD_ROWS, Prefault
from processor.state.rwlock import RWLock

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
    prefault = Prefault(tables, MappedFiles(), RWLock())
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
    prefault = Prefault(tables, MappedFiles(), RWLock())
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


def test_what_is_mapped_from_files_is_moved_into_memory_by_and_by(tmp_path: Path) -> None:
    tables, mapped = make_tables(100_000, CHUNK_SIZE), MappedFiles()
    content = np.arange(10_000 * CHUNK_SIZE, dtype=np.uint32).reshape(-1, CHUNK_SIZE)
    (tmp_path / "tokens").write_bytes(content.tobytes())
    assert mapped.map(tables.tokens[:10_000], tmp_path / "tokens", 0)
    tables.meta[TOKENS + HIGH_WATER] = 10_000
    prefault = Prefault(tables, mapped, RWLock())
    try:
        assert prefault.wait(DEADLINE)
        assert str(tmp_path) not in Path("/proc/self/maps").read_text()
        assert (tables.tokens[:10_000] == content).all()
    finally:
        prefault.close()
