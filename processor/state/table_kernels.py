"""Rows, hash chains and lists: what every table has in common.

Hash chains grow by linear hashing (Litwin 1980): each insertion that makes a table fuller than its buckets
splits the one bucket whose turn it is, so that no growth is ever a long step and a lookup needs only the
number of buckets. A table is named by its first index into `meta`, see `layout`.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from processor.kernel import Bool, Int, Records, kernel
from processor.state.layout import BUCKETS, CAPACITY, FREE, HIGH_WATER, MASK, USED


@kernel
def has_room(meta: NDArray[np.int64], table: Int, rows: Int) -> Bool:
    """Tell whether `rows` more rows can be taken."""
    return meta[table + USED] + rows <= meta[table + CAPACITY]


@kernel
def take_row(meta: NDArray[np.int64], table: Int, rows: Records) -> Int:
    """Take a row; there must be room. What a freed row held is still in it."""
    meta[table + USED] += 1
    row = meta[table + FREE]
    if row:
        meta[table + FREE] = rows[row].next
    else:
        row = meta[table + HIGH_WATER]
        meta[table + HIGH_WATER] = row + 1
    return row


@kernel
def free_row(meta: NDArray[np.int64], table: Int, rows: Records, row: Int) -> None:
    """Give a row back."""
    rows[row].next = meta[table + FREE]
    meta[table + FREE] = row
    meta[table + USED] -= 1


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
def link(meta: NDArray[np.int64], table: Int, buckets: NDArray[np.int32], rows: Records, row: Int) -> None:
    """Put a row whose `hash` is set into its chain, and split a bucket if the table is full."""
    bucket = bucket_of(meta, table, rows[row].hash)
    rows[row].next = buckets[bucket]
    buckets[bucket] = row
    if meta[table + USED] > meta[table + BUCKETS]:
        split_bucket(meta, table, buckets, rows)


@kernel
def split_bucket(meta: NDArray[np.int64], table: Int, buckets: NDArray[np.int32], rows: Records) -> None:
    """Add one bucket and move into it what belongs there."""
    mask = meta[table + MASK]
    new = meta[table + BUCKETS]
    old = new & (mask >> 1)
    row = buckets[old]
    kept = 0
    moved = 0
    while row:
        after = rows[row].next
        if np.int64(rows[row].hash) & mask == new:
            rows[row].next = moved
            moved = row
        else:
            rows[row].next = kept
            kept = row
        row = after
    buckets[old] = kept
    buckets[new] = moved
    meta[table + BUCKETS] = new + 1
    if new == mask:
        meta[table + MASK] = 2 * mask + 1


@kernel
def unlink(meta: NDArray[np.int64], table: Int, buckets: NDArray[np.int32], rows: Records, row: Int) -> None:
    """Take a row out of its chain."""
    bucket = bucket_of(meta, table, rows[row].hash)
    other = buckets[bucket]
    if other == row:
        buckets[bucket] = rows[row].next
        return
    while rows[other].next != row:
        other = rows[other].next
    rows[other].next = rows[row].next


@kernel
def push_place(lists: Records, kind: Int, instance: Int, places: Records, row: Int) -> None:
    """Append a placement to one of the lists of an instance."""
    last = lists[kind, instance].last
    places[row].list_prev = last
    places[row].list_next = 0
    if last:
        places[last].list_next = row
    else:
        lists[kind, instance].first = row
    lists[kind, instance].last = row


@kernel
def pull_place(lists: Records, kind: Int, instance: Int, places: Records, row: Int) -> None:
    """Take a placement out of the list it is in."""
    before = places[row].list_prev
    after = places[row].list_next
    if before:
        places[before].list_next = after
    else:
        lists[kind, instance].first = after
    if after:
        places[after].list_prev = before
    else:
        lists[kind, instance].last = before
