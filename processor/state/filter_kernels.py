"""The filter in front of the blend index: a blocked Bloom filter over the polynomials of indexed contents.

One 64-bit word a content, three bits in it, sixteen to thirty-two bits a content: a million contents take two
to four megabytes, and one foreign window in a hundred passes. Bits are never cleared; when the filter is too
full, or too many of its bits stem from contents long gone, a second one is built beside it a few rows with
each write and then takes over. A reader that runs while that happens sees the version change and probes
again.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from processor.kernel import Int, kernel
from processor.state.hashing import HashKeys
from processor.state.hashing_kernels import FILTER_PATTERNS
from processor.state.layout import (
    CONTENTS,
    FILTER_ACTIVE,
    FILTER_CURSOR,
    FILTER_MAX_LOG2,
    FILTER_MIN_LOG2,
    FILTER_NEXT_SHIFT,
    FILTER_PHASE,
    FILTER_SHIFT,
    FILTER_STALE,
    FILTER_VERSION,
    HIGH_WATER,
    INDEXED_CONTENTS,
    Tables,
)

IDLE, CLEARING, FILLING = 0, 1, 2
CONTENTS_PER_WORD = 4
STEP_WORDS = 512
STEP_ROWS = 64


@kernel
def filter_bits(patterns: NDArray[np.uint64], spread: Int) -> Int:
    """Return the three bits of a content in its word."""
    return patterns[(spread >> np.uint64(20)) & np.uint64(FILTER_PATTERNS - 1)]


@kernel
def filter_add(t: Tables, k: HashKeys, polynomial: Int) -> None:
    """Add a content that has just become indexed, and carry a filter under construction on."""
    spread = polynomial * k.scalars[0]
    active = t.meta[FILTER_ACTIVE]
    t.filter_words[active, spread >> np.uint64(t.meta[FILTER_SHIFT])] |= filter_bits(k.filter_bits, spread)
    if t.meta[FILTER_PHASE] == FILLING:
        t.filter_words[1 - active, spread >> np.uint64(t.meta[FILTER_NEXT_SHIFT])] |= filter_bits(
            k.filter_bits, spread
        )
    elif t.meta[FILTER_PHASE] == IDLE:
        log2 = 64 - t.meta[FILTER_SHIFT]
        if t.meta[INDEXED_CONTENTS] > CONTENTS_PER_WORD << log2 and log2 < t.meta[FILTER_MAX_LOG2]:
            start_filter(t)
    filter_step(t, k)


@kernel
def filter_drop(t: Tables, k: HashKeys) -> None:
    """Note that a content is indexed no more; its bits stay until the next filter."""
    t.meta[FILTER_STALE] += 1
    if t.meta[FILTER_PHASE] == IDLE and t.meta[FILTER_STALE] > t.meta[INDEXED_CONTENTS] + 1024:
        start_filter(t)
    filter_step(t, k)


@kernel
def start_filter(t: Tables) -> None:
    """Begin a filter with room for half as many contents again as there are."""
    log2 = FILTER_MIN_LOG2
    wanted = t.meta[INDEXED_CONTENTS] + t.meta[INDEXED_CONTENTS] // 2
    while CONTENTS_PER_WORD << log2 < wanted and log2 < t.meta[FILTER_MAX_LOG2]:
        log2 += 1
    t.meta[FILTER_NEXT_SHIFT] = 64 - log2
    t.meta[FILTER_CURSOR] = 0
    t.meta[FILTER_STALE] = 0
    t.meta[FILTER_PHASE] = CLEARING


@kernel
def filter_step(t: Tables, k: HashKeys) -> None:
    """Do a bounded part of the work on the next filter."""
    if t.meta[FILTER_PHASE] == IDLE:
        return
    other = 1 - t.meta[FILTER_ACTIVE]
    cursor = t.meta[FILTER_CURSOR]
    if t.meta[FILTER_PHASE] == CLEARING:
        words = np.int64(1) << (64 - t.meta[FILTER_NEXT_SHIFT])
        stop = min(cursor + STEP_WORDS, words)
        for word in range(cursor, stop):
            t.filter_words[other, word] = 0
        t.meta[FILTER_CURSOR] = stop
        if stop == words:
            t.meta[FILTER_CURSOR] = 1
            t.meta[FILTER_PHASE] = FILLING
        return
    shift = np.uint64(t.meta[FILTER_NEXT_SHIFT])
    stop = min(cursor + STEP_ROWS, t.meta[CONTENTS + HIGH_WATER])
    for row in range(cursor, stop):
        if t.contents[row].occupants > 0:
            spread = t.contents[row].polynomial * k.scalars[0]
            t.filter_words[other, spread >> shift] |= filter_bits(k.filter_bits, spread)
    t.meta[FILTER_CURSOR] = stop
    if stop == t.meta[CONTENTS + HIGH_WATER]:
        t.meta[FILTER_ACTIVE] = other
        t.meta[FILTER_SHIFT] = t.meta[FILTER_NEXT_SHIFT]
        t.meta[FILTER_PHASE] = IDLE
        t.meta[FILTER_VERSION] += 1
