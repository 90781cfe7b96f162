"""The key directory: what a batch does to keys and placements.

Every function here runs under the write lock. `apply_slice` is the one way in for batches; everything that
could fail has been checked before it is called, and an entry for which there is no room is refused as a whole
and counted.
"""

from __future__ import annotations

import numpy as np

from processor.kernel import Int, kernel, prefetch
from processor.state.content_kernels import bind_tokens, forget_content, new_chunk, remove_idle_chunk
from processor.state.hashing import HashKeys
from processor.state.hashing_kernels import fingerprint, hash_digest
from processor.state.identity_kernels import (
    find_chunk,
    find_key,
    find_place,
    hash_claim,
    hash_key,
    hash_place,
    hash_post,
    namespace_of,
)
from processor.state.key_kernels import key_loses, new_key
from processor.state.layout import (
    CHUNKS,
    CLAIMS,
    CONTENTS,
    FIRST_DORMANT,
    KEYS,
    LIST_L1,
    LIST_TOMBSTONES,
    LIVE,
    PLACES,
    POSTS,
    REFUSED,
    TOMBSTONE,
    USE_LANE,
    Tables,
)
from processor.state.place_kernels import attach, detach, new_place, remove_place, write_place
from processor.state.table_kernels import (
    bucket_of,
    has_room,
    mark_cell,
    mark_row,
    next_row,
    pull_place,
    push_place,
)
from processor.state.write_kernels import ACCESS, STORE, Columns, Write, is_older

ENTRIES_AHEAD = 4
"""A store waits for memory most of all: what an entry needs is asked for while earlier ones are applied."""


@kernel
def prefetch_entry(t: Tables, k: HashKeys, w: Write, cols: Columns, e: Int) -> None:
    """Begin to load the buckets that an entry's chunk hash and content will be looked for in."""
    c = cols.chunk[e]
    h = hash_digest(
        k.table,
        cols.digests[c, 0],
        cols.digests[c, 1],
        cols.digests[c, 2],
        cols.digests[c, 3],
        cols.hash_lens[c],
    )
    prefetch(t.chunk_buckets, bucket_of(t.meta, CHUNKS, h), "")
    start = cols.token_starts[c]
    if w.event == STORE and w.blend and cols.token_starts[c + 1] - start == t.tokens.shape[1]:
        f = fingerprint(k.fingerprint, k.scalars[1], cols.tokens, start)
        prefetch(t.content_buckets, bucket_of(t.meta, CONTENTS, np.uint32(f)), "")


@kernel
def prefetch_new(t: Tables, k: HashKeys, w: Write, scope: Int, kv_rank: Int, group: Int) -> None:
    """Begin to load, all at once, the rows of a new chunk and the buckets they will go into."""
    chunk = next_row(t.meta, CHUNKS)
    key = next_row(t.meta, KEYS)
    namespace = namespace_of(scope, kv_rank)
    prefetch(t.chunks, chunk, "digest0")
    prefetch(t.chunks, chunk, "hash")
    prefetch(t.keys, key, "kv_rank")
    prefetch(t.places, next_row(t.meta, PLACES), "ts")
    prefetch(t.key_buckets, bucket_of(t.meta, KEYS, hash_key(k, chunk, scope, kv_rank, group)), "")
    prefetch(t.place_buckets, bucket_of(t.meta, PLACES, hash_place(k, key, w.site)), "")
    if w.blend:
        content = next_row(t.meta, CONTENTS)
        prefetch(t.contents, content, "fingerprint")
        prefetch(t.claims, next_row(t.meta, CLAIMS), "order")
        prefetch(t.claim_buckets, bucket_of(t.meta, CLAIMS, hash_claim(k, chunk, namespace)), "")
        prefetch(t.post_buckets, bucket_of(t.meta, POSTS, hash_post(k, content, namespace)), "")


@kernel
def apply_slice(t: Tables, k: HashKeys, w: Write, cols: Columns, begin: Int, end: Int) -> None:
    """Apply the entries `begin` to `end` of a batch."""
    for e in range(begin, end):
        prefetch_entry(t, k, w, cols, min(e + ENTRIES_AHEAD, end - 1))
        c = cols.chunk[e]
        scope = cols.scope_ids[cols.scope[e]]
        kv_rank = cols.kv_rank[e]
        group = cols.object_group_id[e]
        length = cols.hash_lens[c]
        d0 = cols.digests[c, 0]
        d1 = cols.digests[c, 1]
        d2 = cols.digests[c, 2]
        d3 = cols.digests[c, 3]
        chunk_hash = hash_digest(k.table, d0, d1, d2, d3, length)
        chunk = find_chunk(t, chunk_hash, d0, d1, d2, d3, length)
        key = 0
        place = 0
        if chunk:
            key = find_key(t, hash_key(k, chunk, scope, kv_rank, group), chunk, scope, kv_rank, group)
        if key and w.event != ACCESS:
            place = find_place(t, hash_place(k, key, w.site), key, w.site)
        stores = w.event == STORE and not w.void
        if place == 0 and (stores or w.tombstones):
            if not (
                (chunk or has_room(t.meta, CHUNKS, 1))
                and (key or has_room(t.meta, KEYS, 1))
                and has_room(t.meta, PLACES, 1)
            ):
                t.meta[REFUSED] += 1
                continue
            if chunk == 0:
                prefetch_new(t, k, w, scope, kv_rank, group)
                chunk = new_chunk(t, chunk_hash, cols, c)
            if key == 0:
                key = new_key(t, hash_key(k, chunk, scope, kv_rank, group), chunk, scope, kv_rank, group)
            place = new_place(t, hash_place(k, key, w.site), key, w.site)
        if w.event == ACCESS:
            if key and t.keys[key].live:
                t.last_access[key] = max(t.last_access[key], w.ts)
                t.access_count[key] += 1
                mark_cell(t, USE_LANE, key)
        elif (
            place
            and (w.shared or not w.void)  # in its own memory, an older incarnation changes nothing any more
            and (t.places[place].state == 0 or not is_older(t, w, place))
        ):
            if stores:
                write_place(t, k, w, place, LIVE, cols.size_bytes[e])
            elif w.tombstones:
                write_place(t, k, w, place, TOMBSTONE, 0)
            else:
                remove_place(t, k, w.blend, w.keep, place)
        if w.event == STORE:
            if stores and t.keys[key].live:
                t.last_access[key] = max(t.last_access[key], w.ts)
                mark_cell(t, USE_LANE, key)
            if cols.token_starts[c + 1] > cols.token_starts[c]:
                if chunk == 0 and w.keep and has_room(t.meta, CHUNKS, 1):
                    chunk = new_chunk(t, chunk_hash, cols, c)
                if chunk:
                    start = cols.token_starts[c]
                    bind_tokens(
                        t,
                        k,
                        w,
                        chunk,
                        cols.tokens,
                        start,
                        cols.token_starts[c + 1] - start,
                        cols.token_offsets[c],
                    )
                    remove_idle_chunk(t, chunk)
        if chunk and not w.keep and t.chunks[chunk].live_keys == 0 and t.chunks[chunk].token_count:
            forget_content(t, k, chunk)
            remove_idle_chunk(t, chunk)


@kernel
def fence_slice(t: Tables, k: HashKeys, blend: bool, keep: bool, instance: Int, limit: Int) -> Int:
    """Void up to `limit` L1 placements that an instance wrote last; return how many there were.

    A shared one leaves a tombstone with its stamp, so that what other writers wrote before it stays
    overruled.
    """
    done = 0
    while done < limit and t.lists[LIST_L1, instance].first:
        place = t.lists[LIST_L1, instance].first
        if t.sites[t.places[place].site].shared:
            detach(t, place)
            t.places[place].state = TOMBSTONE
            t.places[place].size_bytes = 0
            mark_row(t, PLACES, place)
            attach(t, place)
            key_loses(t, k, blend, keep, t.places[place].key)
        else:
            remove_place(t, k, blend, keep, place)
        done += 1
    return done


@kernel
def settle_slice(t: Tables, k: HashKeys, blend: bool, keep: bool, instance: Int, limit: Int) -> Int:
    """Remove up to `limit` private tombstones of an instance; return how many there were."""
    done = 0
    while done < limit and t.lists[LIST_TOMBSTONES, instance].first:
        remove_place(t, k, blend, keep, t.lists[LIST_TOMBSTONES, instance].first)
        done += 1
    return done


@kernel
def expire_slice(t: Tables, k: HashKeys, blend: bool, before: float, limit: Int) -> Int:
    """Look at `limit` shared tombstones and remove those older than `before`; return how many went."""
    gone = 0
    for _ in range(limit):
        place = t.lists[LIST_TOMBSTONES, 0].first
        if place == 0:
            break
        if t.places[place].ts < before:
            remove_place(t, k, blend, False, place)
            gone += 1
        else:
            pull_place(t, LIST_TOMBSTONES, 0, place)
            push_place(t, LIST_TOMBSTONES, 0, place)
    return gone


@kernel
def forget_dormant_slice(t: Tables, k: HashKeys, limit: Int) -> Int:
    """Forget the content of up to `limit` chunks without a live key; return how many there were."""
    done = 0
    while done < limit and t.meta[FIRST_DORMANT]:
        chunk = t.meta[FIRST_DORMANT]
        forget_content(t, k, chunk)
        remove_idle_chunk(t, chunk)
        done += 1
    return done
