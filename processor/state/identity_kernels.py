"""Who is who: the hash of each thing that is looked up by what identifies it, and the row that holds it.

Chunks are told apart by their digest, keys, placements, claims and posts by the numbers of the rows that they
belong to. The hashes of the last three carry a tag, so that equal numbers in different tables hash apart.
Nothing here writes.
"""

from __future__ import annotations

import numpy as np

from processor.kernel import Int, kernel
from processor.state.hashing import HashKeys
from processor.state.hashing_kernels import hash_words
from processor.state.layout import CHUNKS, KEYS, NAMESPACES_PER_SCOPE, PLACES, Tables
from processor.state.table_kernels import chain


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
def hash_place(k: HashKeys, key: Int, site: Int) -> Int:
    """Return the uint32 hash of a placement's identity."""
    return hash_words(k.table, key, site, 3, 0, 0)


@kernel
def hash_claim(k: HashKeys, chunk: Int, namespace: Int) -> Int:
    """Return the uint32 hash of a claim's identity."""
    return hash_words(k.table, chunk, namespace, 2, 0, 0)


@kernel
def hash_post(k: HashKeys, content: Int, namespace: Int) -> Int:
    """Return the uint32 hash of a post's identity."""
    return hash_words(k.table, content, namespace, 1, 0, 0)


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
def namespace_of(scope: Int, kv_rank: Int) -> Int:
    """Return the number of the namespace that a key lies in."""
    return np.int64(scope) * NAMESPACES_PER_SCOPE + np.int64((kv_rank >> np.uint64(24)) & np.uint64(0xFF))
