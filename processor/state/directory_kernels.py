"""The key directory: what a batch does to keys and placements.

Every function here runs under the write lock. `apply_slice` is the one way in for batches; everything that
could fail has been checked before it is called, and an entry for which there is no room is refused as a whole
and counted.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from processor.kernel import Bool, Int, kernel, prefetch
from processor.state.blend_kernels import (
    add_claim,
    drop_claim,
    free_token_rows,
    hold_content,
    index_chunk,
    release_content,
    same_tokens,
    unindex_chunk,
    write_tokens,
)
from processor.state.hashing import HashKeys
from processor.state.hashing_kernels import fingerprint, hash_digest, hash_words
from processor.state.layout import (
    CHUNKS,
    CLAIMS,
    CONTENTS,
    DORMANT,
    FIRST_DORMANT,
    KEYS,
    L1_BYTES,
    L1_COUNT,
    L2_BYTES,
    L2_COUNT,
    LIST_L1,
    LIST_L2,
    LIST_TOMBSTONES,
    LIVE,
    LIVE_KEYS,
    NAMESPACES_PER_SCOPE,
    PLACES,
    POSTS,
    REFUSED,
    SHARED_TOMBSTONES,
    TIER_L1,
    TOKENS,
    TOMBSTONE,
    TOMBSTONES,
    USE_LANE,
    ZEROED,
    Tables,
)
from processor.state.table_kernels import (
    bucket_of,
    chain,
    free_row,
    has_room,
    link,
    mark_cell,
    mark_row,
    next_row,
    pull_place,
    push_place,
    take_row,
    unlink,
)

STORE, DELETE, ACCESS = 1, 2, 3
ENTRIES_AHEAD = 4
"""A store waits for memory most of all: what an entry needs is asked for while earlier ones are applied."""


class Write(NamedTuple):
    """What all entries of a batch have in common: the place they concern and the stamp they carry."""

    event: Int
    site: Int
    shared: bool
    instance: Int
    incarnation: Int
    generation: Int
    ts: float
    epoch: Int
    seq: Int
    tombstones: bool  # a delete leaves one
    void: (
        bool  # L1 of an older incarnation: nothing is placed, and in a shared pool a store counts as a delete
    )
    keep: bool  # what is known of a chunk outlives its last live key
    blend: bool


class Columns(NamedTuple):
    """The columns of a batch in the form that kernels take; see `processor.batch.BatchColumns`."""

    digests: NDArray[np.uint64]  # [chunks, 4]
    hash_lens: NDArray[np.uint8]
    token_starts: NDArray[np.int64]
    tokens: NDArray[np.uint32]
    token_offsets: NDArray[np.int64]
    chunk: NDArray[np.uint32]
    scope: NDArray[np.uint32]
    kv_rank: NDArray[np.uint64]
    object_group_id: NDArray[np.uint32]
    size_bytes: NDArray[np.int64]
    scope_ids: NDArray[np.int32]  # the batch's scopes, interned


@kernel
def find_chunk(t: Tables, h: Int, d0: Int, d1: Int, d2: Int, d3: Int, length: Int) -> Int:
    """Return the row of a chunk hash, 0 if it is unknown."""
    row = chain(t.meta, CHUNKS, t.chunk_buckets, h)
    while row:
        c = t.chunks[row]
        if (
            c.hash == h
            and c.digest0 == d0
            and c.digest1 == d1
            and c.digest2 == d2
            and c.digest3 == d3
            and c.hash_len == length
        ):
            return row
        row = c.next
    return 0


@kernel
def hash_key(k: HashKeys, chunk: Int, scope: Int, kv_rank: Int, group: Int) -> Int:
    """Return the uint32 hash of a key's identity."""
    return hash_words(k.table, chunk, scope, kv_rank, kv_rank >> np.uint64(32), group)


@kernel
def find_key(t: Tables, h: Int, chunk: Int, scope: Int, kv_rank: Int, group: Int) -> Int:
    """Return the row of a key, dead or alive, 0 if there is none."""
    row = chain(t.meta, KEYS, t.key_buckets, h)
    while row:
        key = t.keys[row]
        if (
            key.chunk == chunk
            and key.scope == scope
            and key.kv_rank == kv_rank
            and key.object_group_id == group
        ):
            return row
        row = key.next
    return 0


@kernel
def find_place(t: Tables, h: Int, key: Int, site: Int) -> Int:
    """Return the placement or tombstone of a key at a site, 0 if there is none."""
    row = chain(t.meta, PLACES, t.place_buckets, h)
    while row:
        place = t.places[row]
        if place.key == key and place.site == site:
            return row
        row = place.next
    return 0


@kernel
def stamp_before(
    t: Tables, w: Write, generation: Int, ts: float, instance: Int, epoch: Int, seq: Int
) -> Bool:
    """Tell whether a batch's stamp, in the form that many writers share, lies before the given one."""
    if w.generation != generation:
        return w.generation < generation
    if w.ts != ts:
        return w.ts < ts
    if w.instance != instance:
        return t.instances[w.instance].rank < t.instances[instance].rank
    if w.epoch != epoch:
        return w.epoch < epoch
    return w.seq < seq


@kernel
def is_older(t: Tables, w: Write, place: Int) -> Bool:
    """Tell whether a batch was written before what stands at a placement; equal stamps are one batch naming a
    key twice.
    """
    p = t.places[place]
    if w.shared:
        return stamp_before(t, w, p.generation, p.ts, p.instance, p.epoch, p.seq)
    if w.epoch != p.epoch:
        return w.epoch < p.epoch
    return w.seq < p.seq


@kernel
def hold_instance(t: Tables, instance: Int) -> None:
    """Count a reference to an instance."""
    t.instances[instance].refs += 1


@kernel
def release_instance(t: Tables, instance: Int) -> None:
    """Discount a reference to an instance."""
    t.instances[instance].refs -= 1
    if t.instances[instance].refs == 0:
        t.meta[ZEROED] += 1


@kernel
def new_chunk(t: Tables, h: Int, cols: Columns, c: Int) -> Int:
    """Make the row of a chunk hash that is not known yet."""
    row = take_row(t, CHUNKS, t.chunks)
    chunk = t.chunks[row]
    chunk.digest0 = cols.digests[c, 0]
    chunk.digest1 = cols.digests[c, 1]
    chunk.digest2 = cols.digests[c, 2]
    chunk.digest3 = cols.digests[c, 3]
    chunk.hash_len = cols.hash_lens[c]
    chunk.hash = h
    chunk.token_offset = -1
    chunk.order = 0
    chunk.instance = 0
    chunk.offset_instance = 0
    chunk.first_key = 0
    chunk.first_claim = 0
    chunk.live_keys = 0
    chunk.content = 0
    chunk.token_row = 0
    chunk.token_count = 0
    chunk.dormant_next = 0
    chunk.dormant_prev = 0
    link(t, CHUNKS, t.chunk_buckets, t.chunks, row)
    return row


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
def enter_dormant(t: Tables, row: Int) -> None:
    """List a chunk among those with content but no live key."""
    first = t.meta[FIRST_DORMANT]
    t.chunks[row].dormant_prev = 0
    t.chunks[row].dormant_next = first
    mark_row(t, CHUNKS, row)
    if first:
        t.chunks[first].dormant_prev = row
        mark_row(t, CHUNKS, first)
    t.meta[FIRST_DORMANT] = row
    t.meta[DORMANT] += 1


@kernel
def leave_dormant(t: Tables, row: Int) -> None:
    """Undo `enter_dormant`."""
    before = t.chunks[row].dormant_prev
    after = t.chunks[row].dormant_next
    if before:
        t.chunks[before].dormant_next = after
        mark_row(t, CHUNKS, before)
    else:
        t.meta[FIRST_DORMANT] = after
    if after:
        t.chunks[after].dormant_prev = before
        mark_row(t, CHUNKS, after)
    t.meta[DORMANT] -= 1


@kernel
def namespace_of(scope: Int, kv_rank: Int) -> Int:
    """Return the number of the namespace that a key lies in."""
    return np.int64(scope) * NAMESPACES_PER_SCOPE + np.int64((kv_rank >> np.uint64(24)) & np.uint64(0xFF))


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


@kernel
def remove_idle_chunk(t: Tables, row: Int) -> None:
    """Remove a chunk of which there is neither a key nor any content."""
    if t.chunks[row].first_key == 0 and t.chunks[row].token_count == 0:
        unlink(t, CHUNKS, t.chunk_buckets, t.chunks, row)
        free_row(t, CHUNKS, t.chunks, row)


@kernel
def forget_content(t: Tables, k: HashKeys, row: Int) -> None:
    """Forget a chunk's tokens, offset and their stamps."""
    chunk = t.chunks[row]
    if chunk.token_count == 0:
        return
    mark_row(t, CHUNKS, row)
    if chunk.live_keys:
        unindex_chunk(t, k, row)
    else:
        leave_dormant(t, row)
    if chunk.content:
        release_content(t, chunk.content)
    else:
        free_token_rows(t, chunk.token_row)
    chunk.content = 0
    chunk.token_row = 0
    chunk.token_count = 0
    chunk.token_offset = -1
    release_instance(t, chunk.instance)
    chunk.instance = 0
    if chunk.offset_instance:
        release_instance(t, chunk.offset_instance)
        chunk.offset_instance = 0


@kernel
def stamp_content(t: Tables, w: Write, row: Int) -> None:
    """Let a chunk's content carry a batch's stamp."""
    chunk = t.chunks[row]
    mark_row(t, CHUNKS, row)
    hold_instance(t, w.instance)
    if chunk.instance:
        release_instance(t, chunk.instance)
    chunk.instance = w.instance
    chunk.generation = w.generation
    chunk.ts = w.ts
    chunk.epoch = w.epoch
    chunk.seq = w.seq


@kernel
def bind_offset(t: Tables, w: Write, row: Int, offset: Int) -> None:
    """Let a known offset of the same content stand, unless a later batch knew better; an unknown one changes
    nothing.
    """
    chunk = t.chunks[row]
    if offset < 0:
        return
    if chunk.token_offset >= 0 and stamp_before(
        t,
        w,
        chunk.offset_generation,
        chunk.offset_ts,
        chunk.offset_instance,
        chunk.offset_epoch,
        chunk.offset_seq,
    ):
        return
    mark_row(t, CHUNKS, row)
    hold_instance(t, w.instance)
    if chunk.offset_instance:
        release_instance(t, chunk.offset_instance)
    chunk.token_offset = offset
    chunk.offset_instance = w.instance
    chunk.offset_generation = w.generation
    chunk.offset_ts = w.ts
    chunk.offset_epoch = w.epoch
    chunk.offset_seq = w.seq


@kernel
def bind_tokens(
    t: Tables,
    k: HashKeys,
    w: Write,
    row: Int,
    tokens: NDArray[np.uint32],
    start: Int,
    count: Int,
    offset: Int,
) -> None:
    """Bind a chunk to the tokens and offset that a store carries, as far as their stamp allows."""
    chunk = t.chunks[row]
    if chunk.token_count == count and same_tokens(t, chunk.token_row, tokens, start, count):
        if not stamp_before(t, w, chunk.generation, chunk.ts, chunk.instance, chunk.epoch, chunk.seq):
            stamp_content(t, w, row)
        bind_offset(t, w, row, offset)
        if w.blend:
            index_chunk(t, k, row)
        return
    if chunk.token_count:
        if stamp_before(t, w, chunk.generation, chunk.ts, chunk.instance, chunk.epoch, chunk.seq):
            return
    elif chunk.live_keys == 0 and not w.keep:
        return
    width = t.tokens.shape[1]
    if not has_room(t.meta, TOKENS, (count + width - 1) // width):
        t.meta[REFUSED] += 1
        return
    forget_content(t, k, row)
    mark_row(t, CHUNKS, row)
    if w.blend and count == width:
        chunk.content = hold_content(t, k, tokens, start)
        chunk.token_row = t.contents[chunk.content].token_row
    else:
        chunk.token_row = write_tokens(t, tokens, start, count)
    chunk.token_count = count
    if chunk.live_keys == 0:
        enter_dormant(t, row)
    stamp_content(t, w, row)
    bind_offset(t, w, row, offset)
    if w.blend:
        index_chunk(t, k, row)


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
    prefetch(t.place_buckets, bucket_of(t.meta, PLACES, hash_words(k.table, key, w.site, 3, 0, 0)), "")
    if w.blend:
        content = next_row(t.meta, CONTENTS)
        prefetch(t.contents, content, "fingerprint")
        prefetch(t.claims, next_row(t.meta, CLAIMS), "order")
        prefetch(
            t.claim_buckets, bucket_of(t.meta, CLAIMS, hash_words(k.table, chunk, namespace, 2, 0, 0)), ""
        )
        prefetch(
            t.post_buckets, bucket_of(t.meta, POSTS, hash_words(k.table, content, namespace, 1, 0, 0)), ""
        )


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
            place = find_place(t, hash_words(k.table, key, w.site, 3, 0, 0), key, w.site)
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
            place = new_place(t, hash_words(k.table, key, w.site, 3, 0, 0), key, w.site)
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
