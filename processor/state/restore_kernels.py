"""What a restored state lacks: the filter, counts that other rows imply, and an index where there was none.

A checkpoint leaves out what one pass over a table brings back, and it may have been made without the blend
index that is wanted now, or with one that is not. Everything here runs once, under the write lock.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from processor.kernel import Int, kernel
from processor.state.blend_kernels import (
    add_claim,
    drop_claim,
    free_token_rows,
    hold_content,
    index_chunk,
    unindex_chunk,
)
from processor.state.filter_kernels import IDLE, filter_step, start_filter
from processor.state.hashing import HashKeys
from processor.state.identity_kernels import namespace_of
from processor.state.layout import CHUNKS, CLAIMS, FILTER_PHASE, FIRST_DORMANT, HIGH_WATER, KEYS, Tables
from processor.state.table_kernels import mark_row


@kernel
def rebuild_filter(t: Tables, k: HashKeys) -> None:
    """Make a filter of all indexed contents, in place of whatever there is."""
    start_filter(t)
    while t.meta[FILTER_PHASE] != IDLE:
        filter_step(t, k)


@kernel
def count_namespace_claims(t: Tables) -> None:
    """Count the indexed claims of each namespace; all counts are 0 before."""
    for row in range(1, t.meta[CLAIMS + HIGH_WATER]):
        if t.claims[row].post:
            t.namespace_claims[t.claims[row].namespace] += 1


@kernel
def index_all(t: Tables, k: HashKeys, tokens: NDArray[np.uint32]) -> None:
    """Hash the contents of all chunks and index them; `tokens` is the tokens' table in one dimension."""
    for row in range(1, t.meta[KEYS + HIGH_WATER]):
        key = t.keys[row]
        if key.chunk and key.live:
            adopt_content(t, k, tokens, key.chunk)
            add_claim(t, k, key.chunk, namespace_of(key.scope, key.kv_rank))
            index_chunk(t, k, key.chunk)
    chunk = t.meta[FIRST_DORMANT]
    while chunk:
        adopt_content(t, k, tokens, chunk)
        chunk = np.int64(t.chunks[chunk].dormant_next)


@kernel
def adopt_content(t: Tables, k: HashKeys, tokens: NDArray[np.uint32], row: Int) -> None:
    """Let a chunk that has tokens of its own hold them as a content, which others may have too."""
    chunk = t.chunks[row]
    width = t.tokens.shape[1]
    if chunk.content or chunk.token_count != width:
        return
    # A new content takes the row that is given up here, and finds the tokens in place.
    start = np.int64(chunk.token_row) * width
    free_token_rows(t, chunk.token_row)
    chunk.content = hold_content(t, k, tokens, start)
    chunk.token_row = t.contents[chunk.content].token_row
    mark_row(t, CHUNKS, row)


@kernel
def unindex_all(t: Tables, k: HashKeys) -> None:
    """Take every chunk out of the index and drop every claim; a chunk's content stays with it."""
    for row in range(1, t.meta[KEYS + HIGH_WATER]):
        key = t.keys[row]
        if key.chunk and key.live:
            unindex_chunk(t, k, key.chunk)
            drop_claim(t, k, key.chunk, namespace_of(key.scope, key.kv_rank))
