"""Chunks and what is known of them: tokens, their offset, and the stamps that bound both.

A chunk has content from the first store that tells its tokens until its last live key goes, or, where a
stream may still bring older batches, until the directory is told to forget; between the two it lies in the
list of dormant chunks, unseen. A later stamp replaces content for all keys at once; the same content only
moves its stamps on.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from processor.kernel import Int, kernel
from processor.state.blend_kernels import (
    free_token_rows,
    hold_content,
    index_chunk,
    release_content,
    same_tokens,
    unindex_chunk,
    write_tokens,
)
from processor.state.hashing import HashKeys
from processor.state.layout import CHUNKS, DORMANT, FIRST_DORMANT, REFUSED, TOKENS, Tables
from processor.state.table_kernels import free_row, has_room, link, mark_row, take_row, unlink
from processor.state.write_kernels import Columns, Write, hold_instance, release_instance, stamp_before


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
def remove_idle_chunk(t: Tables, row: Int) -> None:
    """Remove a chunk of which there is neither a key nor any content."""
    if t.chunks[row].first_key == 0 and t.chunks[row].token_count == 0:
        unlink(t, CHUNKS, t.chunk_buckets, t.chunks, row)
        free_row(t, CHUNKS, t.chunks, row)


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
