"""The tables of the state: what a row is, how many there can be, and the counters beside them.

One row a thing, rows linked by number, row 0 of every table unused so that 0 says "none". A row is found
through its hash chain (`hash`, `next`), lies in the lists named after their owner, and returns to its table's
free list through `next`. Kernels get all of it as one `Tables` tuple; `meta` holds every counter, so that a
state is its arrays.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from processor.kernel import Records
from processor.state.memory import reserve

CHUNK = np.dtype(
    [
        ("digest0", "u8"),
        ("digest1", "u8"),
        ("digest2", "u8"),
        ("digest3", "u8"),
        # The greatest stamp that bound the content, and the one that bound the offset.
        ("ts", "f8"),
        ("seq", "i8"),
        ("offset_ts", "f8"),
        ("offset_seq", "i8"),
        ("token_offset", "i8"),  # -1 unknown
        ("order", "i8"),  # when it became an occupant of its content; 0 while it is none
        ("generation", "u4"),
        ("epoch", "u4"),
        ("instance", "i4"),
        ("offset_generation", "u4"),
        ("offset_epoch", "u4"),
        ("offset_instance", "i4"),
        ("hash", "u4"),
        ("next", "i4"),
        ("first_key", "i4"),
        ("first_claim", "i4"),
        ("live_keys", "i4"),
        ("content", "i4"),  # the row of contents that owns its tokens, if it is of full length
        ("token_row", "i4"),
        ("token_count", "u4"),
        ("dormant_next", "i4"),  # among the chunks with content but no live key
        ("dormant_prev", "i4"),
        ("hash_len", "u1"),
    ],
    align=True,
)
KEY = np.dtype(
    [
        ("kv_rank", "u8"),
        ("chunk", "i4"),  # 0 in a free row
        ("scope", "i4"),
        ("object_group_id", "u4"),
        ("hash", "u4"),
        ("next", "i4"),
        ("chunk_next", "i4"),
        ("chunk_prev", "i4"),
        ("first_place", "i4"),
        ("live", "i4"),  # placements that are no tombstones
    ],
    align=True,
)
PLACE = np.dtype(
    [
        ("ts", "f8"),
        ("seq", "i8"),
        ("size_bytes", "i8"),
        ("incarnation", "i8"),
        ("generation", "u4"),
        ("epoch", "u4"),
        ("instance", "i4"),  # who wrote it last
        ("key", "i4"),
        ("site", "i4"),
        ("hash", "u4"),
        ("next", "i4"),
        ("key_next", "i4"),
        ("key_prev", "i4"),
        ("list_next", "i4"),
        ("list_prev", "i4"),
        ("state", "u1"),  # LIVE or TOMBSTONE
    ],
    align=True,
)
CONTENT = np.dtype(
    [
        ("fingerprint", "u8"),
        ("polynomial", "u8"),
        ("serial", "i8"),  # never used again, so that a lookup can tell a reused row
        ("hash", "u4"),
        ("next", "i4"),
        ("token_row", "i4"),
        ("refs", "i4"),  # chunks with this content
        ("occupants", "i4"),  # those of them that are indexed
    ],
    align=True,
)
CLAIM = np.dtype(
    [
        ("order", "i8"),
        ("chunk", "i4"),
        ("namespace", "u4"),
        ("keys", "i4"),
        ("post", "i4"),  # 0 while the chunk is not indexed
        ("left", "i4"),
        ("right", "i4"),
        ("parent", "i4"),
        ("hash", "u4"),  # also its priority in the treap
        ("next", "i4"),
        ("chunk_next", "i4"),
        ("chunk_prev", "i4"),
    ],
    align=True,
)
POST = np.dtype(
    [("content", "i4"), ("namespace", "u4"), ("root", "i4"), ("hash", "u4"), ("next", "i4")], align=True
)
SITE = np.dtype(
    [("size_bytes", "i8"), ("count", "i8"), ("refs", "i8"), ("tier", "u1"), ("shared", "u1")], align=True
)
INSTANCE = np.dtype([("refs", "i8"), ("l1_count", "i8"), ("rank", "i8")], align=True)
HEAD = np.dtype([("first", "i4"), ("last", "i4")], align=True)

LIVE, TOMBSTONE = 1, 2
TIER_L1, TIER_L2 = 1, 2

# Lists a placement can be in, a head for each instance; all shared tombstones lie in instance 0's.
LIST_L1, LIST_L2, LIST_TOMBSTONES = 0, 1, 2

# meta[table + field]
CHUNKS, KEYS, PLACES, CONTENTS, CLAIMS, POSTS, TOKENS = (8 * i for i in range(7))
USED, HIGH_WATER, FREE, CAPACITY, BUCKETS, MASK = range(6)
(
    LIVE_KEYS,
    L1_COUNT,
    L1_BYTES,
    L2_COUNT,
    L2_BYTES,
    TOMBSTONES,
    SHARED_TOMBSTONES,
    REFUSED,
    ZEROED,  # references that fell to zero since the names were last swept
    ORDER,
    SERIAL,
    INDEXED_CONTENTS,
    OCCUPANTS,
    INDEXED_CLAIMS,
    NAMESPACES,
    FILTER_ACTIVE,
    FILTER_SHIFT,
    FILTER_VERSION,
    FILTER_PHASE,
    FILTER_NEXT_SHIFT,
    FILTER_CURSOR,
    FILTER_STALE,
    FILTER_MAX_LOG2,
    DORMANT,
    FIRST_DORMANT,
) = range(56, 56 + 25)
TOKENS_HELD, HELD_FIRST, HELD_LAST, HELD_COUNT = range(81, 85)
"""Whether a checkpoint reads the tokens, and the list of rows freed since, which count as used till then."""
KEEP_CONTENTS = 85
"""1 where the last batch said that what is known of a chunk outlives its last key."""
META_SIZE = 96

MAX_SCOPES = 1 << 20
MAX_INSTANCES = 1 << 20
MAX_SITES = 1 << 20
NAMESPACES_PER_SCOPE = 256
"""A namespace is numbered `scope * 256 + world_size`."""

LONGEST_CONTENT = 16
"""Content longer than this many chunk sizes counts as unknown."""

FILTER_MIN_LOG2, FILTER_MAX_WORDS_LOG2 = 6, 26

# dirty[lane, piece] is 1 where a row or cell of the piece was written since a checkpoint last looked. The
# lane of a table's rows is `table >> 3`, that of its buckets lies BUCKET_LANES further on.
BUCKET_LANES = 8
USE_LANE, TOKEN_LINK_LANE = 7, 14
LANES, PIECES = 16, 1 << 21
PIECE_ROWS_LOG2, PIECE_CELLS_LOG2 = 9, 13
"""A piece is 512 rows of a table, or 8,192 cells of a column or of buckets: 10 to 80 KB."""

FIRST_BUCKETS = 16


class Tables(NamedTuple):
    """All arrays of a state, in the form that kernels take."""

    meta: NDArray[np.int64]
    chunks: Records
    keys: Records
    places: Records
    contents: Records
    claims: Records
    posts: Records
    chunk_buckets: NDArray[np.int32]
    key_buckets: NDArray[np.int32]
    place_buckets: NDArray[np.int32]
    content_buckets: NDArray[np.int32]
    claim_buckets: NDArray[np.int32]
    post_buckets: NDArray[np.int32]
    tokens: NDArray[np.uint32]  # [rows, chunk_size]
    token_next: NDArray[np.int32]  # content longer than a row goes on here; also the free list
    last_access: NDArray[np.float64]  # by key row
    access_count: NDArray[np.uint32]  # by key row
    filter_words: NDArray[np.uint64]  # [2, words]: the filter in use and the one being built
    scope_refs: NDArray[np.int64]
    namespace_claims: NDArray[np.int32]  # indexed claims by namespace
    sites: Records
    instances: Records
    lists: Records  # [3, instances] of HEAD
    dirty: NDArray[np.uint8]  # [LANES, PIECES]


def _power_of_two(count: int) -> int:
    return 1 << max(count - 1, 1).bit_length()


def make_tables(max_chunks: int, chunk_size: int) -> Tables:
    """Reserve the tables of a state of up to `max_chunks` chunks.

    Keys, placements and claims have room for eight and more a chunk (ranks, servers, tenants), tokens for two
    rows a chunk; whichever runs out first ends the growth.

    Raises:
        MemoryError: the address space is not to be had.
    """
    capacity = {
        CHUNKS: max_chunks,
        KEYS: 8 * max_chunks,
        PLACES: 12 * max_chunks,
        CONTENTS: max_chunks,
        CLAIMS: 8 * max_chunks,
        POSTS: 8 * max_chunks,
        TOKENS: 2 * max_chunks + LONGEST_CONTENT,
    }
    meta = np.zeros(META_SIZE, np.int64)
    for table, count in capacity.items():
        meta[table + CAPACITY] = count
        meta[table + HIGH_WATER] = 1
        meta[table + BUCKETS] = FIRST_BUCKETS
        meta[table + MASK] = 2 * FIRST_BUCKETS - 1
    filter_log2 = min(max(_power_of_two(max_chunks).bit_length() - 2, FILTER_MIN_LOG2), FILTER_MAX_WORDS_LOG2)
    meta[FILTER_MAX_LOG2] = filter_log2
    meta[FILTER_SHIFT] = 64 - FILTER_MIN_LOG2

    def rows(table: int, dtype: np.dtype[Any]) -> NDArray[Any]:
        return reserve(capacity[table] + 1, dtype)

    def buckets(table: int) -> NDArray[Any]:
        return reserve(2 * _power_of_two(capacity[table] + FIRST_BUCKETS), np.int32)

    return Tables(
        meta=meta,
        chunks=rows(CHUNKS, CHUNK),
        keys=rows(KEYS, KEY),
        places=rows(PLACES, PLACE),
        contents=rows(CONTENTS, CONTENT),
        claims=rows(CLAIMS, CLAIM),
        posts=rows(POSTS, POST),
        chunk_buckets=buckets(CHUNKS),
        key_buckets=buckets(KEYS),
        place_buckets=buckets(PLACES),
        content_buckets=buckets(CONTENTS),
        claim_buckets=buckets(CLAIMS),
        post_buckets=buckets(POSTS),
        tokens=reserve((capacity[TOKENS] + 1, chunk_size), np.uint32),
        token_next=reserve(capacity[TOKENS] + 1, np.int32),
        last_access=reserve(capacity[KEYS] + 1, np.float64),
        access_count=reserve(capacity[KEYS] + 1, np.uint32),
        filter_words=reserve((2, 1 << filter_log2), np.uint64),
        scope_refs=reserve(MAX_SCOPES, np.int64),
        namespace_claims=reserve(MAX_SCOPES * NAMESPACES_PER_SCOPE, np.int32),
        sites=reserve(MAX_SITES, SITE),
        instances=reserve(MAX_INSTANCES, INSTANCE),
        lists=reserve((3, MAX_INSTANCES), HEAD),
        dirty=reserve((LANES, PIECES), np.uint8),
    )
