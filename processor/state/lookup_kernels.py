"""Reading the state: keys to placements, listings, and the two halves of a match.

`probe` reads only the filter and needs no lock; everything else runs under the read lock, copies what it
finds into the caller's arrays and stops where they are full, so that the caller can make room and go on.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from processor.kernel import Bool, Int, kernel
from processor.state.blend_kernels import equal_tokens, find_post
from processor.state.filter_kernels import filter_bits
from processor.state.hashing import HashKeys
from processor.state.hashing_kernels import BLOCK_WINDOWS, fingerprint, hash_digest
from processor.state.identity_kernels import find_chunk, find_key, hash_key
from processor.state.layout import (
    CONTENTS,
    FILTER_ACTIVE,
    FILTER_SHIFT,
    HIGH_WATER,
    KEYS,
    LIVE,
    Tables,
)
from processor.state.table_kernels import chain
from processor.state.treap_kernels import treap_after


class Found(NamedTuple):
    """Where lookups put placements: one row each, `key` being the index of the key they belong to."""

    key: NDArray[np.int64]
    place: NDArray[np.int32]


class Survivors(NamedTuple):
    """Windows of a query that passed the filter, with their fingerprints."""

    position: NDArray[np.int64]
    fingerprint: NDArray[np.uint64]


class Cursors(NamedTuple):
    """How far a query has matched into the occupants of a content: open addressing on its serial."""

    serial: NDArray[np.int64]
    order: NDArray[np.int64]


class Matches(NamedTuple):
    """Where matches go."""

    digest: NDArray[np.uint64]  # [n, 4]
    hash_len: NDArray[np.uint8]
    old_st: NDArray[np.int64]
    cur_st: NDArray[np.int64]


@kernel
def find_keys(
    t: Tables,
    k: HashKeys,
    digests: NDArray[np.uint64],
    hash_lens: NDArray[np.uint8],
    scopes: NDArray[np.int32],
    kv_ranks: NDArray[np.uint64],
    groups: NDArray[np.uint32],
    rows: NDArray[np.int32],
) -> None:
    """Write the rows of live keys to `rows`, 0 for all others; nobody stored under a scope of 0."""
    for i in range(rows.shape[0]):
        rows[i] = 0
        if scopes[i] == 0:
            continue
        h = hash_digest(k.table, digests[i, 0], digests[i, 1], digests[i, 2], digests[i, 3], hash_lens[i])
        chunk = find_chunk(t, h, digests[i, 0], digests[i, 1], digests[i, 2], digests[i, 3], hash_lens[i])
        if chunk:
            key = find_key(
                t,
                hash_key(k, chunk, scopes[i], kv_ranks[i], groups[i]),
                chunk,
                scopes[i],
                kv_ranks[i],
                groups[i],
            )
            if key and t.keys[key].live:
                rows[i] = key


@kernel
def count_places(t: Tables, rows: NDArray[np.int32]) -> Int:
    """Return how many live placements the keys have together."""
    total = 0
    for i in range(rows.shape[0]):
        if rows[i]:
            total += t.keys[rows[i]].live
    return total


@kernel
def gather_places(t: Tables, rows: NDArray[np.int32], found: Found) -> Int:
    """Write the live placements of the keys to `found`, which is large enough; return how many."""
    n = 0
    for i in range(rows.shape[0]):
        place = t.keys[rows[i]].first_place if rows[i] else 0
        while place:
            if t.places[place].state == LIVE:
                found.key[n] = i
                found.place[n] = place
                n += 1
            place = t.places[place].key_next
    return n


@kernel
def find_told_chunks(
    t: Tables,
    k: HashKeys,
    digests: NDArray[np.uint64],
    hash_lens: NDArray[np.uint8],
    rows: NDArray[np.int32],
    chunks: NDArray[np.int32],
) -> None:
    """Write the chunk of each key to `chunks`, whether or not that key is held; 0 where no key of it is."""
    for i in range(rows.shape[0]):
        if rows[i]:
            chunks[i] = t.keys[rows[i]].chunk
            continue
        h = hash_digest(k.table, digests[i, 0], digests[i, 1], digests[i, 2], digests[i, 3], hash_lens[i])
        chunk = find_chunk(t, h, digests[i, 0], digests[i, 1], digests[i, 2], digests[i, 3], hash_lens[i])
        chunks[i] = chunk if chunk and t.chunks[chunk].live_keys else 0


@kernel
def count_tokens(t: Tables, chunks: NDArray[np.int32], counts: NDArray[np.int64]) -> Int:
    """Write the number of tokens known for each chunk to `counts`; return their sum."""
    total = 0
    for i in range(chunks.shape[0]):
        counts[i] = t.chunks[chunks[i]].token_count if chunks[i] else 0
        total += counts[i]
    return total


@kernel
def gather_tokens(t: Tables, chunks: NDArray[np.int32], out: NDArray[np.uint32]) -> None:
    """Write the tokens of each chunk to `out`, one behind the other."""
    width = t.tokens.shape[1]
    at = 0
    for i in range(chunks.shape[0]):
        if chunks[i] == 0:
            continue
        chunk = chunks[i]
        left = np.int64(t.chunks[chunk].token_count)
        row = t.chunks[chunk].token_row
        while left > 0:
            part = min(width, left)
            held = np.uint64(row)
            to = np.uint64(at)
            for j in range(np.uint64(part)):
                out[to + j] = t.tokens[held, j]
            at += part
            left -= part
            row = t.token_next[row]


@kernel
def scan_keys(
    t: Tables,
    begin: Int,
    limit: Int,
    tier: Int,
    instance: Int,
    site_wanted: NDArray[np.uint8],
    skip: Int,
    rows: NDArray[np.int32],
) -> tuple[Int, Int, Int]:
    """Look at up to `limit` key rows from `begin` for live placements that fit.

    `tier` and `instance` of 0 fit all; `site_wanted` says which sites' backends do. Keys that fit are
    counted; from the `skip`th on they are written to `rows` while there is space.

    Returns:
        (row to go on from, keys that fit, keys written)
    """
    end = min(begin + limit, t.meta[KEYS + HIGH_WATER])
    fitting = 0
    written = 0
    for row in range(begin, end):
        if t.keys[row].chunk == 0 or t.keys[row].live == 0:
            continue
        place = t.keys[row].first_place
        while place:
            if place_fits(t, place, tier, instance, site_wanted):
                if fitting >= skip and written < rows.shape[0]:
                    rows[written] = row
                    written += 1
                fitting += 1
                break
            place = t.places[place].key_next
    return end, fitting, written


@kernel
def place_fits(t: Tables, place: Int, tier: Int, instance: Int, site_wanted: NDArray[np.uint8]) -> Bool:
    """Tell whether a placement is live and on the tier, of the instance and at a site that are asked for."""
    p = t.places[place]
    return (
        p.state == LIVE
        and (tier == 0 or t.sites[p.site].tier == tier)
        and (instance == 0 or p.instance == instance)
        and site_wanted[p.site] != 0
    )


@kernel
def list_groups(t: Tables, chunk: Int, scope: Int, kv_rank: Int, groups: NDArray[np.uint32]) -> Int:
    """Write the object groups of a chunk's live keys of one scope and rank; return how many there are.

    Walks the chunk's keys: for fleets whose object groups are too many to be asked one by one.
    """
    n = 0
    row = t.chunks[chunk].first_key
    while row:
        key = t.keys[row]
        if key.live and key.scope == scope and key.kv_rank == kv_rank:
            if n < groups.shape[0]:
                groups[n] = key.object_group_id
            n += 1
        row = key.chunk_next
    return n


@kernel
def probe(
    t: Tables,
    k: HashKeys,
    query: NDArray[np.uint32],
    begin: Int,
    stride: Int,
    sums: NDArray[np.uint64],
    spreads: NDArray[np.uint64],
    passed: NDArray[np.uint8],
    out: Survivors,
) -> tuple[Int, Int]:
    """Find the windows from `begin` on that the filter lets pass, as long as `out` surely holds another
    block.

    `begin` is a multiple of `stride`; `sums` has BLOCK_WINDOWS + chunk_size elements, `spreads`
    and `passed` BLOCK_WINDOWS. Within a block, prefix sums of
    `token * C^j` turn a window's polynomial into a difference times a power of the inverse, so that no
    multiplication waits for another.

    Returns:
        (window to go on from, windows that passed)
    """
    end = query.shape[0] - k.fingerprint.shape[1] + 1
    step = max(BLOCK_WINDOWS // stride, 1) * stride
    n = 0
    while begin < end and n + BLOCK_WINDOWS < out.position.shape[0]:
        windows = min(step, BLOCK_WINDOWS, end - begin)
        test_windows(t, k, query, np.uint64(begin), np.uint64(windows), sums, spreads, passed)
        if stride == 1:
            n = collect_passed(passed, windows, begin, n, out)
        else:
            for i in range(0, windows, stride):
                out.position[n] = begin + i
                n += passed[i]
        begin += step
    for i in range(n):
        out.fingerprint[i] = fingerprint(k.fingerprint, k.scalars[1], query, out.position[i])
    return begin, n


@kernel
def test_windows(
    t: Tables,
    k: HashKeys,
    query: NDArray[np.uint32],
    begin: Int,
    windows: Int,
    sums: NDArray[np.uint64],
    spreads: NDArray[np.uint64],
    passed: NDArray[np.uint8],
) -> None:
    """Ask the filter for every window of a block, in short loops, so that products are vectorised."""
    width = np.uint64(k.fingerprint.shape[1])
    one = np.uint64(1)
    total = np.uint64(0)
    sums[np.uint64(0)] = total
    for j in range(windows + width - one):
        total += k.powers[j] * np.uint64(query[begin + j])
        sums[j + one] = total
    for i in range(windows):
        spreads[i] = (sums[i + width] - sums[i]) * k.inverses[i]
    active = np.uint64(t.meta[FILTER_ACTIVE])
    shift = np.uint64(t.meta[FILTER_SHIFT])
    for i in range(windows):
        bits = filter_bits(k.filter_bits, spreads[i])
        passed[i] = (t.filter_words[active, spreads[i] >> shift] & bits) == bits


@kernel
def collect_passed(passed: NDArray[np.uint8], windows: Int, begin: Int, n: Int, out: Survivors) -> Int:
    """Append the positions of the windows that passed; nearly all did not, so they are looked at 64 at a
    time.
    """
    for group in range(0, windows, 64):
        stop = min(group + 64, windows)
        any_passed = np.uint8(0)
        for i in range(np.uint64(group), np.uint64(stop)):
            any_passed |= passed[i]
        if any_passed:
            for i in range(group, stop):
                out.position[n] = begin + i
                n += passed[i]
    return n


@kernel
def resolve(
    t: Tables,
    k: HashKeys,
    namespace: Int,
    query: NDArray[np.uint32],
    survivors: Survivors,
    begin: Int,
    end: Int,
    cursors: Cursors,
    used: Int,
    out: Matches,
    matched: Int,
) -> tuple[Int, Int, Int]:
    """Turn survivors into matches; stops early where `out` or `cursors` is full.

    Returns:
        (survivor to go on from, cursors in use, matches in `out`)
    """
    for s in range(begin, end):
        if matched == out.old_st.shape[0] or 2 * used >= cursors.serial.shape[0]:
            return s, used, matched
        f = survivors.fingerprint[s]
        position = survivors.position[s]
        content = chain(t.meta, CONTENTS, t.content_buckets, np.uint32(f))
        while content:
            if t.contents[content].fingerprint == f and t.contents[content].occupants:
                post = find_post(t, k, content, namespace)
                if post:
                    slot = cursor_slot(cursors, t.contents[content].serial)
                    claim = treap_after(t.claims, t.posts[post].root, cursors.order[slot])
                    if claim and equal_tokens(
                        t, t.contents[content].token_row, query, position, t.tokens.shape[1]
                    ):
                        if cursors.serial[slot] == 0:
                            cursors.serial[slot] = t.contents[content].serial
                            used += 1
                        cursors.order[slot] = t.claims[claim].order
                        chunk = t.chunks[t.claims[claim].chunk]
                        out.digest[matched, 0] = chunk.digest0
                        out.digest[matched, 1] = chunk.digest1
                        out.digest[matched, 2] = chunk.digest2
                        out.digest[matched, 3] = chunk.digest3
                        out.hash_len[matched] = chunk.hash_len
                        out.old_st[matched] = chunk.token_offset
                        out.cur_st[matched] = position
                        matched += 1
                        break
            content = t.contents[content].next
    return end, used, matched


@kernel
def cursor_slot(cursors: Cursors, serial: Int) -> Int:
    """Return the slot of a content's cursor, or the free one where it belongs."""
    mask = cursors.serial.shape[0] - 1
    slot = (serial * 0x9E3779B1) & mask
    while cursors.serial[slot] != 0 and cursors.serial[slot] != serial:
        slot = (slot + 1) & mask
    return slot


@kernel
def grow_cursors(old: Cursors, new: Cursors) -> None:
    """Carry all cursors over into a larger table."""
    for i in range(old.serial.shape[0]):
        if old.serial[i]:
            slot = cursor_slot(new, old.serial[i])
            new.serial[slot] = old.serial[i]
            new.order[slot] = old.order[i]
