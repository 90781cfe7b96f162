"""The sparse index of the log."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from processor.ingest import offsets
from processor.ingest.offsets import OffsetIndex
from processor.ingest.source import Position


def test_it_stays_small_and_still_covers_all_of_a_long_stream() -> None:
    index = OffsetIndex()
    batches = 100_000
    for seq in range(1, batches + 1):
        index.note("server-1", 1, seq, Position(0, 2 * seq))
    for seq in (2, 1000, 50_000, batches):
        found = index.before("server-1", 1, seq, partition=0)
        assert found is not None
        assert 2 * seq - 4 * batches / offsets.MAX_POINTS * 2 <= found < 2 * seq
    assert index.before("server-1", 1, 1, partition=0) is None


@given(st.lists(st.tuples(st.integers(1, 3), st.integers(1, 20)), max_size=60), st.integers(1, 20))
def test_the_offset_it_names_is_never_past_a_batch_that_came_in_order(
    read: list[tuple[int, int]], wanted: int
) -> None:
    index = OffsetIndex()
    newest: tuple[int, int] = (0, 0)
    in_order: list[tuple[tuple[int, int], int]] = []
    for offset, (incarnation, seq) in enumerate(read):
        index.note("server-1", incarnation, seq, Position(0, offset))
        if (incarnation, seq) > newest:
            newest = (incarnation, seq)
            in_order.append((newest, offset))
    before = [offset for place, offset in in_order if place < (2, wanted)]
    assert index.before("server-1", 2, wanted, partition=0) == (before[-1] if before else None)


def test_partitions_and_emitters_are_kept_apart() -> None:
    index = OffsetIndex()
    index.note("server-1", 1, 5, Position(0, 100))
    index.note("server-1", 1, 6, Position(1, 7))
    index.note("server-2", 1, 1, Position(0, 101))
    assert index.before("server-1", 1, 9, partition=0) == 100
    assert index.before("server-1", 1, 9, partition=1) == 7
    assert index.before("server-2", 1, 1, partition=0) is None
    assert index.before("server-3", 1, 1, partition=0) is None


def test_the_emitter_unheard_for_longest_goes_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(offsets, "MAX_STREAMS", 2)
    index = OffsetIndex()
    for name in ("a", "b", "a", "c"):
        index.note(name, 1, 1, Position(0, 0))
    known = [name for name in "abc" if index.before(name, 1, 9, partition=0) is not None]
    assert known == ["a", "c"]
