"""Reserved address space: huge, empty, and paid for as it is touched."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from processor.state.memory import machine_memory, reserve


def resident_bytes() -> int:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * 4096


def test_a_reservation_larger_than_the_machine_costs_only_what_is_touched() -> None:
    before = resident_bytes()
    rows = reserve((1 << 30, 16), np.uint64)
    assert rows.nbytes == 128 << 30
    assert not rows[:: 1 << 28].any()
    rows[-1] = 7
    assert rows[-1].tolist() == [7] * 16
    assert resident_bytes() - before < 64 << 20


def test_rows_of_records_begin_as_zeros_and_can_be_written() -> None:
    rows = reserve(100, np.dtype([("next", "i4"), ("ts", "f8")], align=True))
    assert not rows["next"].any()
    rows[99]["ts"] = 1.5
    assert rows["ts"].sum() == 1.5
    assert len(reserve(0, np.int32)) == 0


def test_address_space_that_is_not_to_be_had_is_an_error_that_says_what_to_do() -> None:
    with pytest.raises(MemoryError, match="lower --max-chunks"):
        reserve(1 << 58, np.uint8)


def test_the_machine_has_memory() -> None:
    assert 64 << 20 < machine_memory() < 1 << 50
