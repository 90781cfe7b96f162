"""A directory brought back from a snapshot, whose columns come to lie in its tables as they are.

The order is: `columns_to_fill`, fill them, then `adopt`. All of it under the write lock, and before the first
batch. No row is looked at one by one: links are row numbers, and hashes are keyed with the seed that comes
along. Only the filter and a few counts are made anew, in one pass each.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from processor.state.entry_kernels import derive, index_all, unindex_all
from processor.state.hashing import derive_keys
from processor.state.layout import (
    CAPACITY,
    CHUNKS,
    CLAIMS,
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
    KEYS,
    PLACES,
    POSTS,
    TOKENS,
)
from processor.state.parts import Parts
from processor.state.snapshot import COLUMNS, Names
from producer.events import Tier

_OWN = [
    *(table + CAPACITY for table in (CHUNKS, KEYS, PLACES, CONTENTS, CLAIMS, POSTS, TOKENS)),
    FILTER_MAX_LOG2,
]
"""Counters that follow from this directory's own size."""
_FILTER_PROGRESS = [FILTER_ACTIVE, FILTER_CURSOR, FILTER_PHASE, FILTER_STALE, FILTER_NEXT_SHIFT]


class NoRoom(ValueError):
    """The snapshot is of a larger state than this directory may hold."""


def columns_to_fill(parts: Parts, lengths: Mapping[str, int]) -> dict[str, NDArray[Any]]:
    """Return the tables' arrays, each as far as it is to be filled.

    Raises:
        NoRoom: one of them is shorter than that.
        KeyError: a column is not named.
    """
    found = {}
    for name in COLUMNS:
        table, length = getattr(parts.state.tables, name), lengths[name]
        if not 0 <= length <= len(table):
            raise NoRoom(f"{length:,} {name} do not fit: there is room for {len(table):,}")
        found[name] = table[:length]
    return found


def adopt(parts: Parts, small: Mapping[str, NDArray[Any]], names: Names) -> None:
    """Take over what goes with the columns, which are filled: from here on the directory is the snapshot's.

    Where the snapshot was made with another `blend` than this directory's, its contents are hashed and
    indexed now, all in one call, or taken out of the index.
    """
    tables, state = parts.state.tables, parts.state
    _adopt_counters(tables.meta, small["meta"])
    for name in ("scope_refs", "sites", "instances"):
        getattr(tables, name)[: len(small[name])] = small[name]
    tables.lists[:, : small["lists"].shape[1]] = small["lists"]
    parts.seed = names.seed
    chunk_size = tables.tokens.shape[1]
    for keys, restored in zip(
        state.keys, derive_keys(names.seed, chunk_size, names.fingerprint_bits), strict=True
    ):
        keys[...] = restored
    parts.instances.restore(names.instances)
    parts.scopes.restore(names.scopes)
    parts.sites.restore([site and (site[0], Tier(site[1]), site[2], site[3]) for site in names.sites])
    parts.groups.update(names.groups)
    parts.heard.update(dict.fromkeys(names.heard))
    derive(state.addresses)
    if parts.blend and not names.blend:
        index_all(state.addresses, tables.tokens.reshape(-1))
    elif names.blend and not parts.blend:
        unindex_all(state.addresses)


def _adopt_counters(meta: NDArray[np.int64], restored: NDArray[np.int64]) -> None:
    own, version = meta[_OWN], meta[FILTER_VERSION]
    meta[...] = restored
    meta[_OWN] = own
    # The filter is empty: `derive` makes it anew.
    meta[_FILTER_PROGRESS] = 0
    meta[FILTER_SHIFT] = 64 - FILTER_MIN_LOG2
    meta[FILTER_VERSION] = version + 1
