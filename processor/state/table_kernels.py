"""Rows, hash chains and lists: what every table has in common.

Hash chains grow by linear hashing (Litwin 1980): each insertion that makes a table fuller than its buckets
splits the one bucket whose turn it is, so that no growth is ever a long step and a lookup needs only the
number of buckets. A table is named by its first index into `meta`, see `layout`.

Whoever writes into a row, a bucket or a cell marks the piece that it lies in, so that a checkpoint copies no
more than what changed. Splitting keeps the order of a chain, which leaves most of its rows as they are.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from processor.kernel import Bool, Int, Records, kernel, prefetch
from processor.state.layout import (
    BUCKET_LANES,
    BUCKETS,
    CAPACITY,
    FREE,
    HIGH_WATER,
    MASK,
    PIECE_CELLS_LOG2,
    PIECE_ROWS_LOG2,
    PLACES,
    USED,
    Tables,
)


@kernel
def mark_row(t: Tables, table: Int, row: Int) -> None:
    """Note that a row of a table changes."""
    t.dirty[np.uint64(table >> 3), np.uint64(row) >> np.uint64(PIECE_ROWS_LOG2)] = 1


@kernel
def mark_cell(t: Tables, lane: Int, cell: Int) -> None:
    """Note that a cell of a column, or a bucket, changes."""
    t.dirty[np.uint64(lane), np.uint64(cell) >> np.uint64(PIECE_CELLS_LOG2)] = 1


SPLITS_AHEAD = 8


@kernel
def has_room(meta: NDArray[np.int64], table: Int, rows: Int) -> Bool:
    """Tell whether `rows` more rows can be taken."""
    return meta[table + USED] + rows <= meta[table + CAPACITY]


@kernel
def next_row(meta: NDArray[np.int64], table: Int) -> Int:
    """Return the row that will be taken next."""
    row = meta[table + FREE]
    return row if row else meta[table + HIGH_WATER]


@kernel
def take_row(t: Tables, table: Int, rows: Records) -> Int:
    """Take a row, which counts as changed; there must be room. What a freed row held is still in it."""
    t.meta[table + USED] += 1
    row = t.meta[table + FREE]
    if row:
        t.meta[table + FREE] = rows[row].next
    else:
        row = t.meta[table + HIGH_WATER]
        t.meta[table + HIGH_WATER] = row + 1
    mark_row(t, table, row)
    return row


@kernel
def free_row(t: Tables, table: Int, rows: Records, row: Int) -> None:
    """Give a row back."""
    rows[row].next = t.meta[table + FREE]
    t.meta[table + FREE] = row
    t.meta[table + USED] -= 1
    mark_row(t, table, row)


@kernel
def chain(meta: NDArray[np.int64], table: Int, buckets: NDArray[np.int32], hash_value: Int) -> Int:
    """Return the first row of the chain that rows with this hash are in."""
    return buckets[bucket_of(meta, table, hash_value)]


@kernel
def bucket_of(meta: NDArray[np.int64], table: Int, hash_value: Int) -> Int:
    """Return the bucket of a hash among as many as there are now."""
    mask = meta[table + MASK]
    bucket = np.int64(hash_value) & mask
    if bucket >= meta[table + BUCKETS]:
        bucket &= mask >> 1
    return bucket


@kernel
def set_bucket(t: Tables, table: Int, buckets: NDArray[np.int32], bucket: Int, row: Int) -> None:
    """Let a chain begin with another row."""
    buckets[bucket] = row
    mark_cell(t, BUCKET_LANES + (table >> 3), bucket)


@kernel
def link(t: Tables, table: Int, buckets: NDArray[np.int32], rows: Records, row: Int) -> None:
    """Put a row just taken, whose `hash` is set, into its chain, and split a bucket if the table is full."""
    bucket = bucket_of(t.meta, table, rows[row].hash)
    rows[row].next = buckets[bucket]
    set_bucket(t, table, buckets, bucket, row)
    if t.meta[table + USED] > t.meta[table + BUCKETS]:
        split_bucket(t, table, buckets, rows)


@kernel
def split_bucket(t: Tables, table: Int, buckets: NDArray[np.int32], rows: Records) -> None:
    """Add one bucket and move into it what belongs there."""
    mask = t.meta[table + MASK]
    new = t.meta[table + BUCKETS]
    old = new & (mask >> 1)
    row = buckets[old]
    kept = 0
    moved = 0
    while row:
        if np.int64(rows[row].hash) & mask == new:
            follow(t, table, buckets, rows, new, moved, row)
            moved = row
        else:
            follow(t, table, buckets, rows, old, kept, row)
            kept = row
        row = rows[row].next
    follow(t, table, buckets, rows, old, kept, 0)
    follow(t, table, buckets, rows, new, moved, 0)
    t.meta[table + BUCKETS] = new + 1
    if new == mask:
        t.meta[table + MASK] = 2 * mask + 1
    else:
        # The rows of a bucket lie anywhere, but which bucket is next is known: fetch them in time.
        prefetch(rows, buckets[min(new + SPLITS_AHEAD, mask) & (mask >> 1)], "hash")


@kernel
def follow(
    t: Tables, table: Int, buckets: NDArray[np.int32], rows: Records, bucket: Int, last: Int, row: Int
) -> None:
    """Let a row (0: nothing) come after the last one of a chain, which is 0 where there is none yet."""
    if last == 0:
        set_bucket(t, table, buckets, bucket, row)
    elif rows[last].next != row:
        rows[last].next = row
        mark_row(t, table, last)


@kernel
def unlink(t: Tables, table: Int, buckets: NDArray[np.int32], rows: Records, row: Int) -> None:
    """Take a row out of its chain."""
    bucket = bucket_of(t.meta, table, rows[row].hash)
    other = buckets[bucket]
    if other == row:
        set_bucket(t, table, buckets, bucket, rows[row].next)
        return
    while rows[other].next != row:
        other = rows[other].next
    rows[other].next = rows[row].next
    mark_row(t, table, other)


@kernel
def push_place(t: Tables, kind: Int, instance: Int, row: Int) -> None:
    """Append a placement to one of the lists of an instance."""
    last = t.lists[kind, instance].last
    t.places[row].list_prev = last
    t.places[row].list_next = 0
    mark_row(t, PLACES, row)
    if last:
        t.places[last].list_next = row
        mark_row(t, PLACES, last)
    else:
        t.lists[kind, instance].first = row
    t.lists[kind, instance].last = row


@kernel
def pull_place(t: Tables, kind: Int, instance: Int, row: Int) -> None:
    """Take a placement out of the list it is in."""
    before = t.places[row].list_prev
    after = t.places[row].list_next
    if before:
        t.places[before].list_next = after
        mark_row(t, PLACES, before)
    else:
        t.lists[kind, instance].first = after
    if after:
        t.places[after].list_prev = before
        mark_row(t, PLACES, after)
    else:
        t.lists[kind, instance].last = before
