"""Pieces fit a record, keep the order, and are not cut smaller than need be."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from producer.cutting import RECORD_LIMIT, cut
from producer.events import CacheEventBatch, CacheEventEntry, EventType, ObjectKey, Tier, make_kv_rank
from producer.wire import Wire, encode_batch, envelope
from tests.producer.strategies import entries, names

LIMIT = 3_000
mixed_hashes = st.sampled_from([bytes([i]) * length for i in range(3) for length in (1, 8, 32)])


def record(piece: Sequence[CacheEventEntry], wire: Wire, name: str = "server-1") -> bytes:
    batch = CacheEventBatch(name, 2**63 - 1, 2**63 - 1, EventType.DELETE, Tier.L1, name, piece, ts=1 / 3)
    return envelope((encode_batch(batch, wire),))


def store(chunk: int, rank: int = 0, tokens: int = 256) -> CacheEventEntry:
    key = ObjectKey(chunk.to_bytes(32, "big"), "llama", make_kv_rank(8, rank, 8, rank))
    return CacheEventEntry(key, 2**20, range(100_000, 100_000 + tokens), chunk * tokens)


@pytest.mark.parametrize("wires", [[Wire.ROWS], [Wire.COLUMNS], list(Wire)], ids=" and ".join)
@settings(max_examples=60)
@given(st.lists(entries(mixed_hashes), max_size=40), names)
def test_pieces_keep_the_order_and_fit_a_record(
    wires: list[Wire], given_entries: list[CacheEventEntry], name: str
) -> None:
    pieces = cut(given_entries, (name, name), wires, LIMIT)
    assert [entry for piece in pieces for entry in piece] == given_entries
    for piece in pieces:
        for wire in wires:
            assert len(record(piece, wire, name)) <= LIMIT
        if Wire.COLUMNS in wires:
            assert len({len(entry.key.chunk_hash) for entry in piece}) == 1


@pytest.mark.parametrize("wire", Wire)
def test_records_of_usual_chunks_are_well_filled(wire: Wire) -> None:
    stores = [store(chunk) for chunk in range(1_500)]
    pieces = cut(stores, ("server-1", "dram"), [wire])
    sizes = [len(record(piece, wire)) for piece in pieces]
    assert max(sizes) < RECORD_LIMIT
    assert min(sizes[:-1]) > 0.8 * RECORD_LIMIT


def test_the_ranks_of_a_chunk_take_the_room_of_one_in_columns() -> None:
    stores = [store(chunk, rank) for chunk in range(400) for rank in range(8)]
    assert len(cut(stores, ("server-1", "dram"), [Wire.COLUMNS])) == 1
    assert len(cut(stores, ("server-1", "dram"), [Wire.ROWS])) > 4


def test_hashes_of_different_lengths_stay_together_in_rows() -> None:
    mixed = [CacheEventEntry(ObjectKey(b"a" * n, "m", 0)) for n in (1, 2, 1)]
    assert len(cut(mixed, (), [Wire.ROWS])) == 1
    assert len(cut(mixed, (), [Wire.COLUMNS])) == 3


def test_an_entry_too_large_for_any_record_stays_whole_and_alone() -> None:
    large = store(1, tokens=2_000)
    assert cut([store(0, tokens=1), large, store(2, tokens=1)], (), [Wire.ROWS], LIMIT) == [
        [store(0, tokens=1)],
        [large],
        [store(2, tokens=1)],
    ]


def test_no_entries_give_no_pieces() -> None:
    assert cut([], ("server-1",), list(Wire)) == []
