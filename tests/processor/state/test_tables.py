"""Hash chains that grow bucket by bucket, against a dictionary."""

from __future__ import annotations

import random

import numpy as np
import pytest

from processor.state.layout import BUCKETS, CHUNKS, FREE, HIGH_WATER, META_SIZE, POST, USED, make_tables
from processor.state.table_kernels import chain, free_row, has_room, link, take_row, unlink

TABLE = CHUNKS


class Chains:
    """One table of rows that carry a hash and nothing else, found by it."""

    def __init__(self, capacity: int) -> None:
        self.tables = make_tables(capacity, 1)
        self.meta = self.tables.meta
        self.rows = np.zeros(capacity + 1, POST)
        self.buckets = np.zeros(4 * capacity + 64, np.int32)

    def add(self, hash_value: int) -> int:
        row = int(take_row(self.tables, TABLE, self.rows))
        self.rows[row]["hash"] = hash_value
        link(self.tables, TABLE, self.buckets, self.rows, row)
        return row

    def remove(self, row: int) -> None:
        unlink(self.tables, TABLE, self.buckets, self.rows, row)
        free_row(self.tables, TABLE, self.rows, row)

    def find(self, hash_value: int) -> list[int]:
        found = []
        row = int(chain(self.meta, TABLE, self.buckets, hash_value))
        while row:
            if self.rows[row]["hash"] == hash_value:
                found.append(row)
            row = int(self.rows[row]["next"])
        return sorted(found)


@pytest.mark.parametrize("hashes", [1 << 32, 64, 3], ids=["spread", "crowded", "nearly all alike"])
def test_every_row_is_found_under_its_hash_while_the_table_grows_and_shrinks(hashes: int) -> None:
    chains = Chains(3000)
    rng = random.Random(hashes)
    held: dict[int, int] = {}
    for step in range(6000):
        if held and (step % 3 == 2 or len(held) == 3000):
            row = rng.choice(list(held)) if step % 30 == 2 else next(iter(held))
            chains.remove(row)
            del held[row]
        else:
            hash_value = rng.randrange(hashes)
            row = chains.add(hash_value)
            assert row not in held
            held[row] = hash_value
    assert chains.meta[TABLE + USED] == len(held)
    by_hash: dict[int, list[int]] = {}
    for row, hash_value in held.items():
        by_hash.setdefault(hash_value, []).append(row)
    for hash_value, rows in by_hash.items():
        assert chains.find(hash_value) == sorted(rows)


def test_a_table_never_has_fewer_buckets_than_rows_and_adds_one_at_a_time() -> None:
    chains = Chains(1000)
    for count in range(1, 1001):
        before = int(chains.meta[TABLE + BUCKETS])
        chains.add(count * 2654435761 % 2**32)
        assert before <= chains.meta[TABLE + BUCKETS] <= before + 1
        assert chains.meta[TABLE + BUCKETS] >= count


def test_freed_rows_are_used_again_before_new_ones() -> None:
    chains = Chains(10)
    rows = [chains.add(i) for i in range(10)]
    assert rows == list(range(1, 11))
    assert not has_room(chains.meta, TABLE, 1)
    chains.remove(4)
    chains.remove(7)
    assert has_room(chains.meta, TABLE, 2)
    assert not has_room(chains.meta, TABLE, 3)
    assert {chains.add(0), chains.add(0)} == {4, 7}
    assert chains.meta[TABLE + HIGH_WATER] == 11
    assert chains.meta[TABLE + FREE] == 0


def test_all_counters_fit_into_meta() -> None:
    assert len(make_tables(10, 1).meta) == META_SIZE
