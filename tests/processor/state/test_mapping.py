"""Mapped rows are the file's, writes stay out of it, and moving them into memory changes nothing but that."""

from __future__ import annotations

import resource
import threading
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from processor.state import mapping
from processor.state.mapping import MappedFiles
from processor.state.memory import reserve
from processor.state.pages import HUGE_PAGE, PAGE
from processor.state.rwlock import RWLock

WIDTH = 256
ROWS = 20_000
"""20 MB: several huge pages, and no whole number of pages at the end."""

Rows = NDArray[np.uint32]


def written(path: Path, rows: int = ROWS) -> Rows:
    """A file of a page and so many rows; what is in them."""
    content = np.random.default_rng(rows).integers(0, 1 << 32, (rows, WIDTH), np.uint32)
    path.write_bytes(bytes(PAGE) + content.tobytes())
    return content


def table() -> Rows:
    return reserve((4 * ROWS, WIDTH), np.uint32)


def mappings(path: Path) -> int:
    """How many places of this process the file is mapped to."""
    return Path("/proc/self/maps").read_text().count(str(path))


def move_all(mapped: MappedFiles, lock: RWLock | None = None) -> int:
    pieces = 1
    while mapped.move_next(lock or RWLock()):
        pieces += 1
    return pieces


def test_mapped_rows_hold_what_the_file_holds_and_the_rows_behind_them_nothing(tmp_path: Path) -> None:
    rows, content = table(), written(tmp_path / "rows", 1_001)
    assert MappedFiles().map(rows[:1_001], tmp_path / "rows", PAGE)
    assert (rows[:1_001] == content).all()
    assert not rows[1_001:3_000].any()
    assert mappings(tmp_path / "rows") == 1


def test_a_write_to_a_mapped_row_does_not_reach_the_file(tmp_path: Path) -> None:
    rows, content = table(), written(tmp_path / "rows")
    assert MappedFiles().map(rows[:ROWS], tmp_path / "rows", PAGE)
    before = (tmp_path / "rows").read_bytes()
    rows[7] = 1
    assert (tmp_path / "rows").read_bytes() == before
    assert rows[7].tolist() == [1] * WIDTH
    assert (rows[8:ROWS] == content[8:]).all()


def test_rows_moved_into_memory_are_the_same_and_the_file_is_let_go(tmp_path: Path) -> None:
    rows, content = table(), written(tmp_path / "rows")
    mapped = MappedFiles()
    assert mapped.map(rows[:ROWS], tmp_path / "rows", PAGE)
    rows[5] = content[5] = 12
    assert move_all(mapped) >= ROWS * WIDTH * 4 // HUGE_PAGE
    assert mappings(tmp_path / "rows") == 0
    assert (rows[:ROWS] == content).all()
    assert not rows[ROWS : ROWS + 1_000].any()
    rows[ROWS - 1] = rows[ROWS] = 3
    assert rows[ROWS - 1 : ROWS + 1].tolist() == [[3] * WIDTH] * 2
    assert not mapped.move_next(RWLock())


def test_several_files_lie_one_behind_the_other(tmp_path: Path) -> None:
    rows, mapped, half = table(), MappedFiles(), ROWS // 2
    first, second = written(tmp_path / "first", half), written(tmp_path / "second", half - 1)
    assert mapped.map(rows[:half], tmp_path / "first", PAGE)
    assert mapped.map(rows[half : ROWS - 1], tmp_path / "second", PAGE)
    for moved in (False, True):
        if moved:
            move_all(mapped)
        assert (rows[:half] == first).all()
        assert (rows[half : ROWS - 1] == second).all()
    assert mappings(tmp_path) == 0


def test_a_large_state_moves_in_large_pieces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows, content = table(), written(tmp_path / "rows")
    monkeypatch.setattr(mapping, "MOST_PIECES", 3)
    mapped = MappedFiles()
    assert mapped.map(rows[:ROWS], tmp_path / "rows", PAGE)
    assert move_all(mapped) <= 4
    assert (rows[:ROWS] == content).all()


def test_a_file_that_is_removed_meanwhile_is_still_there_for_its_rows(tmp_path: Path) -> None:
    rows, content, mapped = table(), written(tmp_path / "rows"), MappedFiles()
    assert mapped.map(rows[:ROWS], tmp_path / "rows", PAGE)
    (tmp_path / "rows").unlink()
    assert (rows[:ROWS] == content).all()
    move_all(mapped)
    assert (rows[:ROWS] == content).all()


def test_what_begins_within_a_page_or_is_not_there_is_not_mapped(tmp_path: Path) -> None:
    rows, mapped = table(), MappedFiles()
    written(tmp_path / "rows")
    assert not mapped.map(rows[:ROWS], tmp_path / "rows", 128)
    assert not mapped.map(rows[1:ROWS], tmp_path / "rows", PAGE)
    assert not mapped.map(rows[:0], tmp_path / "rows", PAGE)
    assert not mapped.map(rows[:ROWS], tmp_path / "not there", PAGE)
    assert not rows.any()
    assert not mapped.move_next(RWLock())


def test_while_rows_move_no_write_is_lost_and_a_reader_without_the_lock_sees_nothing_else(
    tmp_path: Path,
) -> None:
    rows, content, mapped, lock = table(), written(tmp_path / "rows"), MappedFiles(), RWLock()
    assert mapped.map(rows[:ROWS], tmp_path / "rows", PAGE)
    moved = threading.Event()
    wrong: list[int] = []
    # Even rows are written to, odd ones are read.
    even = list(range(0, ROWS, 2))

    def write() -> None:
        number = 0
        while not moved.is_set():
            number += 1
            with lock.write:
                rows[even, 0] = number
            with lock.read:
                wrong.extend(row for row in even if rows[row, 0] != number)

    def read() -> None:
        while not moved.is_set():
            wrong.extend(row for row in range(1, ROWS, 2) if rows[row, 3] != content[row, 3])

    threads = [threading.Thread(target=work) for work in (write, read)]
    for thread in threads:
        thread.start()
    move_all(mapped, lock)
    moved.set()
    for thread in threads:
        thread.join()
    assert wrong == []
    assert (rows[1:ROWS:2] == content[1::2]).all()
    assert (rows[even, 1:] == content[even, 1:]).all()


def test_a_file_that_cannot_be_mapped_leaves_the_rows_as_they_were() -> None:
    rows = reserve((1 << 16,), np.uint8)
    rows[:10] = 1
    assert not MappedFiles().map(rows[: 4 * PAGE], Path("/sys/kernel/mm/transparent_hugepage/enabled"), 0)
    assert rows[:10].tolist() == [1] * 10
    rows[: 4 * PAGE] = 2
    assert rows.sum() == 2 * 4 * PAGE


@pytest.mark.parametrize("spare", [-PAGE, HUGE_PAGE // 2], ids=["none", "too little"])
def test_where_there_is_no_address_space_to_move_to_the_rows_stay_mapped(tmp_path: Path, spare: int) -> None:
    rows, content, mapped = table(), written(tmp_path / "rows"), MappedFiles()
    assert mapped.map(rows[:ROWS], tmp_path / "rows", PAGE)
    in_use = int(Path("/proc/self/statm").read_text().split()[0]) * PAGE
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (in_use + spare, hard))
    try:
        assert not mapped.move_next(RWLock())
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))
    assert mappings(tmp_path / "rows") == 1
    assert (rows[:ROWS] == content).all()
