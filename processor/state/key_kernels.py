"""Keys: their rows, and what comes and goes with their first and last live placement.

A key lives while one of its placements does. Its life is what its chunk's content, its namespace's claim and
its own counts depend on; a dead one keeps its row only for the tombstones that lie in it.
"""

from __future__ import annotations

import numpy as np

from processor.kernel import Int, kernel
from processor.state.blend_kernels import add_claim, drop_claim, index_chunk, unindex_chunk
from processor.state.content_kernels import enter_dormant, forget_content, leave_dormant, remove_idle_chunk
from processor.state.hashing import HashKeys
from processor.state.identity_kernels import namespace_of
from processor.state.layout import CHUNKS, KEYS, LIVE_KEYS, USE_LANE, ZEROED, Tables
from processor.state.table_kernels import free_row, link, mark_cell, mark_row, take_row, unlink


@kernel
def new_key(t: Tables, h: Int, chunk: Int, scope: Int, kv_rank: Int, group: Int) -> Int:
    """Make the row of a key that is not known yet; it is not alive."""
    row = take_row(t, KEYS, t.keys)
    key = t.keys[row]
    key.chunk = chunk
    key.scope = scope
    key.kv_rank = kv_rank
    key.object_group_id = group
    key.hash = h
    key.first_place = 0
    key.live = 0
    first = t.chunks[chunk].first_key
    key.chunk_prev = 0
    key.chunk_next = first
    if first:
        t.keys[first].chunk_prev = row
        mark_row(t, KEYS, first)
    t.chunks[chunk].first_key = row
    mark_row(t, CHUNKS, chunk)
    t.scope_refs[scope] += 1
    mark_cell(t, USE_LANE, row)
    t.last_access[row] = 0.0
    t.access_count[row] = 0
    link(t, KEYS, t.key_buckets, t.keys, row)
    return row


@kernel
def key_gains(t: Tables, k: HashKeys, blend: bool, row: Int) -> None:
    """Count one more live placement of a key; with the first it comes to life, and with it what its chunk
    knew.
    """
    key = t.keys[row]
    key.live += 1
    mark_row(t, KEYS, row)
    if key.live > 1:
        return
    mark_cell(t, USE_LANE, row)
    mark_row(t, CHUNKS, key.chunk)
    t.meta[LIVE_KEYS] += 1
    t.last_access[row] = 0.0
    t.access_count[row] = 0
    t.chunks[key.chunk].live_keys += 1
    if t.chunks[key.chunk].live_keys == 1 and t.chunks[key.chunk].token_count:
        leave_dormant(t, key.chunk)
    if blend:
        add_claim(t, k, key.chunk, namespace_of(key.scope, key.kv_rank))
        index_chunk(t, k, key.chunk)


@kernel
def key_loses(t: Tables, k: HashKeys, blend: bool, keep: bool, row: Int) -> None:
    """Count one live placement of a key less; with the last it dies.

    With its chunk's last live key goes what is known of the chunk, or, if `keep`, it lies dormant and unseen.
    """
    key = t.keys[row]
    key.live -= 1
    mark_row(t, KEYS, row)
    if key.live:
        return
    mark_row(t, CHUNKS, key.chunk)
    t.meta[LIVE_KEYS] -= 1
    t.chunks[key.chunk].live_keys -= 1
    if blend:
        drop_claim(t, k, key.chunk, namespace_of(key.scope, key.kv_rank))
    if t.chunks[key.chunk].live_keys == 0 and t.chunks[key.chunk].token_count:
        unindex_chunk(t, k, key.chunk)
        enter_dormant(t, key.chunk)
        if not keep:
            forget_content(t, k, key.chunk)


@kernel
def remove_key(t: Tables, row: Int) -> None:
    """Remove a key without rows of placements, and its chunk if neither a key nor content is left of it."""
    key = t.keys[row]
    chunk = np.int64(key.chunk)
    before = key.chunk_prev
    after = key.chunk_next
    if before:
        t.keys[before].chunk_next = after
        mark_row(t, KEYS, before)
    else:
        t.chunks[chunk].first_key = after
        mark_row(t, CHUNKS, chunk)
    if after:
        t.keys[after].chunk_prev = before
        mark_row(t, KEYS, after)
    t.scope_refs[key.scope] -= 1
    if t.scope_refs[key.scope] == 0:
        t.meta[ZEROED] += 1
    unlink(t, KEYS, t.key_buckets, t.keys, row)
    key.chunk = 0
    free_row(t, KEYS, t.keys, row)
    remove_idle_chunk(t, chunk)
