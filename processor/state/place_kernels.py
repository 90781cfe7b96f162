"""Placements and tombstones: their rows, totals and lists, and how a batch replaces one.

A row is live or a tombstone, and lies in the list of its tier and last writer, or in that of tombstones;
`attach` and `detach` keep lists and totals in step with its state. Its key goes with its last row.
"""

from __future__ import annotations

import numpy as np

from processor.kernel import Int, kernel
from processor.state.hashing import HashKeys
from processor.state.key_kernels import key_gains, key_loses, remove_key
from processor.state.layout import (
    KEYS,
    L1_BYTES,
    L1_COUNT,
    L2_BYTES,
    L2_COUNT,
    LIST_L1,
    LIST_L2,
    LIST_TOMBSTONES,
    LIVE,
    PLACES,
    SHARED_TOMBSTONES,
    TIER_L1,
    TOMBSTONE,
    TOMBSTONES,
    ZEROED,
    Tables,
)
from processor.state.table_kernels import free_row, link, mark_row, pull_place, push_place, take_row, unlink
from processor.state.write_kernels import Write, hold_instance, release_instance


@kernel
def new_place(t: Tables, h: Int, key: Int, site: Int) -> Int:
    """Make the row of a placement that is neither live nor a tombstone yet."""
    row = take_row(t, PLACES, t.places)
    place = t.places[row]
    place.key = key
    place.site = site
    place.hash = h
    place.state = 0
    place.instance = 0
    first = t.keys[key].first_place
    place.key_prev = 0
    place.key_next = first
    if first:
        t.places[first].key_prev = row
        mark_row(t, PLACES, first)
    t.keys[key].first_place = row
    mark_row(t, KEYS, key)
    t.sites[site].refs += 1
    link(t, PLACES, t.place_buckets, t.places, row)
    return row


@kernel
def count_place(t: Tables, place: Int, sign: Int) -> None:
    """Add a live placement to the totals, or take it from them."""
    size = sign * t.places[place].size_bytes
    site = t.places[place].site
    t.sites[site].count += sign
    t.sites[site].size_bytes += size
    if t.sites[site].tier == TIER_L1:
        t.meta[L1_COUNT] += sign
        t.meta[L1_BYTES] += size
        t.instances[t.places[place].instance].l1_count += sign
    else:
        t.meta[L2_COUNT] += sign
        t.meta[L2_BYTES] += size


@kernel
def attach(t: Tables, place: Int) -> None:
    """Count a placement and put it into the list that its state, tier and writer say."""
    p = t.places[place]
    if p.state == LIVE:
        count_place(t, place, 1)
        push_place(t, LIST_L1 if t.sites[p.site].tier == TIER_L1 else LIST_L2, p.instance, place)
    elif p.state == TOMBSTONE:
        t.meta[TOMBSTONES] += 1
        if t.sites[p.site].shared:
            t.meta[SHARED_TOMBSTONES] += 1
            push_place(t, LIST_TOMBSTONES, 0, place)
        else:
            push_place(t, LIST_TOMBSTONES, p.instance, place)


@kernel
def detach(t: Tables, place: Int) -> None:
    """Undo `attach`."""
    p = t.places[place]
    if p.state == LIVE:
        count_place(t, place, -1)
        pull_place(t, LIST_L1 if t.sites[p.site].tier == TIER_L1 else LIST_L2, p.instance, place)
    elif p.state == TOMBSTONE:
        t.meta[TOMBSTONES] -= 1
        if t.sites[p.site].shared:
            t.meta[SHARED_TOMBSTONES] -= 1
            pull_place(t, LIST_TOMBSTONES, 0, place)
        else:
            pull_place(t, LIST_TOMBSTONES, p.instance, place)


@kernel
def write_place(t: Tables, k: HashKeys, w: Write, place: Int, state: Int, size: Int) -> None:
    """Let a batch decide what stands at a placement."""
    p = t.places[place]
    was = p.state
    mark_row(t, PLACES, place)
    detach(t, place)
    if p.instance != w.instance:
        hold_instance(t, w.instance)
        if p.instance:
            release_instance(t, p.instance)
        p.instance = w.instance
    p.state = state
    p.size_bytes = size
    p.incarnation = w.incarnation
    p.generation = w.generation
    p.ts = w.ts
    p.epoch = w.epoch
    p.seq = w.seq
    attach(t, place)
    if state == LIVE and was != LIVE:
        key_gains(t, k, w.blend, p.key)
    elif state != LIVE and was == LIVE:
        key_loses(t, k, w.blend, w.keep, p.key)


@kernel
def remove_place(t: Tables, k: HashKeys, blend: bool, keep: bool, place: Int) -> None:
    """Remove a placement or tombstone, and its key and chunk where it was their last row."""
    p = t.places[place]
    key = np.int64(p.key)
    detach(t, place)
    if p.state == LIVE:
        key_loses(t, k, blend, keep, key)
    before = p.key_prev
    after = p.key_next
    if before:
        t.places[before].key_next = after
        mark_row(t, PLACES, before)
    else:
        t.keys[key].first_place = after
        mark_row(t, KEYS, key)
    if after:
        t.places[after].key_prev = before
        mark_row(t, PLACES, after)
    release_instance(t, p.instance)
    t.sites[p.site].refs -= 1
    if t.sites[p.site].refs == 0:
        t.meta[ZEROED] += 1
    unlink(t, PLACES, t.place_buckets, t.places, place)
    free_row(t, PLACES, t.places, place)
    if t.keys[key].first_place == 0:
        remove_key(t, key)
