"""The blend index: contents, who occupies them, and who may use which occupant.

A content is a distinct text of `chunk_size` tokens. A chunk with that content, a known offset and a live key
occupies it, and each namespace with a live key of the chunk claims it. A claim exists for every (chunk,
namespace) with a live key; it hangs in the treap of its (content, namespace), a post, only while the chunk is
indexed. All of this runs under the write lock.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from processor.kernel import Bool, Int, kernel
from processor.state.filter_kernels import filter_add, filter_drop
from processor.state.hashing import HashKeys
from processor.state.hashing_kernels import fingerprint, polynomial
from processor.state.identity_kernels import hash_claim, hash_post
from processor.state.layout import (
    CHUNKS,
    CLAIMS,
    CONTENTS,
    FREE,
    HELD_COUNT,
    HELD_FIRST,
    HELD_LAST,
    HIGH_WATER,
    INDEXED_CLAIMS,
    INDEXED_CONTENTS,
    NAMESPACES,
    OCCUPANTS,
    ORDER,
    POSTS,
    SERIAL,
    TOKEN_LINK_LANE,
    TOKENS,
    TOKENS_HELD,
    USED,
    Tables,
)
from processor.state.table_kernels import chain, free_row, link, mark_cell, mark_row, take_row, unlink
from processor.state.treap_kernels import treap_insert, treap_remove


@kernel
def take_token_row(t: Tables) -> Int:
    """Take a row of tokens; there must be room."""
    t.meta[TOKENS + USED] += 1
    row = t.meta[TOKENS + FREE]
    if row:
        t.meta[TOKENS + FREE] = t.token_next[row]
    else:
        row = t.meta[TOKENS + HIGH_WATER]
        t.meta[TOKENS + HIGH_WATER] = row + 1
    t.token_next[row] = 0
    mark_row(t, TOKENS, row)
    mark_cell(t, TOKEN_LINK_LANE, row)
    return row


@kernel
def free_token_rows(t: Tables, row: Int) -> None:
    """Give the rows of one content's tokens back; while a checkpoint reads them, nobody may take them."""
    held = t.meta[TOKENS_HELD]
    free = HELD_FIRST if held else TOKENS + FREE
    if held and t.meta[HELD_FIRST] == 0:
        t.meta[HELD_LAST] = row
    while row:
        after = t.token_next[row]
        t.token_next[row] = t.meta[free]
        t.meta[free] = row
        mark_cell(t, TOKEN_LINK_LANE, row)
        t.meta[TOKENS + USED] -= 1 - held
        t.meta[HELD_COUNT] += held
        row = after


@kernel
def write_tokens(t: Tables, tokens: NDArray[np.uint32], start: Int, count: Int) -> Int:
    """Write tokens into fresh rows; return the first."""
    width = t.tokens.shape[1]
    first = 0
    last = 0
    done = 0
    while done < count:
        row = take_token_row(t)
        part = min(width, count - done)
        to = np.uint64(row)
        first_token = np.uint64(start + done)
        for i in range(np.uint64(part)):
            t.tokens[to, i] = tokens[first_token + i]
        if last:
            t.token_next[last] = row
        else:
            first = row
        last = row
        done += part
    return first


@kernel
def same_tokens(t: Tables, row: Int, tokens: NDArray[np.uint32], start: Int, count: Int) -> Bool:
    """Tell whether the rows from `row` on hold exactly these tokens, given that they hold as many."""
    width = t.tokens.shape[1]
    done = 0
    while done < count:
        part = min(width, count - done)
        if not equal_tokens(t, row, tokens, start + done, part):
            return False
        row = t.token_next[row]
        done += part
    return True


@kernel
def equal_tokens(t: Tables, row: Int, tokens: NDArray[np.uint32], start: Int, count: Int) -> Bool:
    """Tell whether one row begins with these tokens."""
    held = np.uint64(row)
    first = np.uint64(start)
    different = np.uint32(0)
    for i in range(np.uint64(count)):
        different |= t.tokens[held, i] ^ tokens[first + i]
    return different == 0


@kernel
def find_post(t: Tables, k: HashKeys, content: Int, namespace: Int) -> Int:
    """Return the post of a (content, namespace), 0 if there is none."""
    h = hash_post(k, content, namespace)
    row = chain(t.meta, POSTS, t.post_buckets, h)
    while row:
        post = t.posts[row]
        if post.content == content and post.namespace == namespace:
            return row
        row = post.next
    return 0


@kernel
def hold_content(t: Tables, k: HashKeys, tokens: NDArray[np.uint32], start: Int) -> Int:
    """Return the content with these tokens, made if it is new, with one more reference to it."""
    width = t.tokens.shape[1]
    f = fingerprint(k.fingerprint, k.scalars[1], tokens, start)
    h = np.uint32(f)
    row = chain(t.meta, CONTENTS, t.content_buckets, h)
    while row:
        if t.contents[row].fingerprint == f and same_tokens(
            t, t.contents[row].token_row, tokens, start, width
        ):
            t.contents[row].refs += 1
            mark_row(t, CONTENTS, row)
            return row
        row = t.contents[row].next
    row = take_row(t, CONTENTS, t.contents)
    t.meta[SERIAL] += 1
    t.contents[row].fingerprint = f
    t.contents[row].polynomial = polynomial(k.powers, tokens, start, width)
    t.contents[row].serial = t.meta[SERIAL]
    t.contents[row].hash = h
    t.contents[row].token_row = write_tokens(t, tokens, start, width)
    t.contents[row].refs = 1
    t.contents[row].occupants = 0
    link(t, CONTENTS, t.content_buckets, t.contents, row)
    return row


@kernel
def release_content(t: Tables, row: Int) -> None:
    """Drop a reference; a content without any is forgotten with its tokens."""
    t.contents[row].refs -= 1
    mark_row(t, CONTENTS, row)
    if t.contents[row].refs == 0:
        free_token_rows(t, t.contents[row].token_row)
        unlink(t, CONTENTS, t.content_buckets, t.contents, row)
        free_row(t, CONTENTS, t.contents, row)


@kernel
def hang_claim(t: Tables, k: HashKeys, claim: Int) -> None:
    """Put a claim of an indexed chunk into its post."""
    chunk = t.claims[claim].chunk
    content = t.chunks[chunk].content
    namespace = t.claims[claim].namespace
    post = find_post(t, k, content, namespace)
    if post == 0:
        post = take_row(t, POSTS, t.posts)
        t.posts[post].content = content
        t.posts[post].namespace = namespace
        t.posts[post].root = 0
        t.posts[post].hash = hash_post(k, content, namespace)
        link(t, POSTS, t.post_buckets, t.posts, post)
    t.claims[claim].order = t.chunks[chunk].order
    t.claims[claim].post = post
    mark_row(t, POSTS, post)
    t.posts[post].root = treap_insert(t, t.posts[post].root, claim)
    t.meta[INDEXED_CLAIMS] += 1
    t.namespace_claims[namespace] += 1
    if t.namespace_claims[namespace] == 1:
        t.meta[NAMESPACES] += 1


@kernel
def unhang_claim(t: Tables, claim: Int) -> None:
    """Take a claim out of its post."""
    post = t.claims[claim].post
    namespace = t.claims[claim].namespace
    t.claims[claim].post = 0
    mark_row(t, POSTS, post)
    t.posts[post].root = treap_remove(t, t.posts[post].root, claim)
    if t.posts[post].root == 0:
        unlink(t, POSTS, t.post_buckets, t.posts, post)
        free_row(t, POSTS, t.posts, post)
    t.meta[INDEXED_CLAIMS] -= 1
    t.namespace_claims[namespace] -= 1
    if t.namespace_claims[namespace] == 0:
        t.meta[NAMESPACES] -= 1


@kernel
def index_chunk(t: Tables, k: HashKeys, chunk: Int) -> None:
    """Make a chunk an occupant of its content, if it can be one and is not yet, for all its namespaces."""
    row = t.chunks[chunk]
    if row.order or row.content == 0 or row.token_offset < 0 or row.live_keys == 0:
        return
    t.meta[ORDER] += 1
    row.order = t.meta[ORDER]
    mark_row(t, CHUNKS, chunk)
    mark_row(t, CONTENTS, row.content)
    t.meta[OCCUPANTS] += 1
    t.contents[row.content].occupants += 1
    if t.contents[row.content].occupants == 1:
        t.meta[INDEXED_CONTENTS] += 1
        filter_add(t, k, t.contents[row.content].polynomial)
    claim = row.first_claim
    while claim:
        hang_claim(t, k, claim)
        claim = t.claims[claim].chunk_next


@kernel
def unindex_chunk(t: Tables, k: HashKeys, chunk: Int) -> None:
    """Take a chunk out of the index, for all its namespaces at once."""
    row = t.chunks[chunk]
    if row.order == 0:
        return
    claim = row.first_claim
    while claim:
        unhang_claim(t, claim)
        claim = t.claims[claim].chunk_next
    row.order = 0
    mark_row(t, CHUNKS, chunk)
    mark_row(t, CONTENTS, row.content)
    t.meta[OCCUPANTS] -= 1
    t.contents[row.content].occupants -= 1
    if t.contents[row.content].occupants == 0:
        t.meta[INDEXED_CONTENTS] -= 1
        filter_drop(t, k)


@kernel
def find_claim(t: Tables, h: Int, chunk: Int, namespace: Int) -> Int:
    """Return the claim of a (chunk, namespace), 0 if there is none."""
    row = chain(t.meta, CLAIMS, t.claim_buckets, h)
    while row:
        claim = t.claims[row]
        if claim.chunk == chunk and claim.namespace == namespace:
            return row
        row = claim.next
    return 0


@kernel
def add_claim(t: Tables, k: HashKeys, chunk: Int, namespace: Int) -> None:
    """Count a key that came to life; the first of its namespace claims the chunk."""
    h = hash_claim(k, chunk, namespace)
    claim = find_claim(t, h, chunk, namespace)
    if claim:
        t.claims[claim].keys += 1
        mark_row(t, CLAIMS, claim)
        return
    claim = take_row(t, CLAIMS, t.claims)
    t.claims[claim].chunk = chunk
    t.claims[claim].namespace = namespace
    t.claims[claim].keys = 1
    t.claims[claim].post = 0
    t.claims[claim].hash = h
    first = t.chunks[chunk].first_claim
    t.claims[claim].chunk_prev = 0
    t.claims[claim].chunk_next = first
    if first:
        t.claims[first].chunk_prev = claim
        mark_row(t, CLAIMS, first)
    t.chunks[chunk].first_claim = claim
    mark_row(t, CHUNKS, chunk)
    link(t, CLAIMS, t.claim_buckets, t.claims, claim)
    if t.chunks[chunk].order:
        hang_claim(t, k, claim)


@kernel
def drop_claim(t: Tables, k: HashKeys, chunk: Int, namespace: Int) -> None:
    """Discount a key that died; with its namespace's last one the claim goes."""
    claim = find_claim(t, hash_claim(k, chunk, namespace), chunk, namespace)
    t.claims[claim].keys -= 1
    mark_row(t, CLAIMS, claim)
    if t.claims[claim].keys:
        return
    if t.claims[claim].post:
        unhang_claim(t, claim)
    before = t.claims[claim].chunk_prev
    after = t.claims[claim].chunk_next
    if before:
        t.claims[before].chunk_next = after
        mark_row(t, CLAIMS, before)
    else:
        t.chunks[chunk].first_claim = after
        mark_row(t, CHUNKS, chunk)
    if after:
        t.claims[after].chunk_prev = before
        mark_row(t, CLAIMS, after)
    unlink(t, CLAIMS, t.claim_buckets, t.claims, claim)
    free_row(t, CLAIMS, t.claims, claim)
