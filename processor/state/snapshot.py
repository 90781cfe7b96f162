"""The state at one instant, for as long as it takes to write it down.

A `Shadow` is a second copy of the tables, kept and brought up to date piece by piece: `collect` takes the
pieces marked since the last time, `copy` copies them, while batches go on being applied, and `freeze` takes
the rest while none is. What `freeze` returns stays as it is until the next `collect`. Tokens are the
exception. Their rows are written once, so they are read where they lie: rows freed meanwhile wait in
a list of their own until `release`, and what a row holds that was free at the instant does not matter.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from processor.state.copy_kernels import copy_runs
from processor.state.layout import (
    BUCKET_LANES,
    BUCKETS,
    CHUNKS,
    CLAIMS,
    CONTENTS,
    FREE,
    HELD_COUNT,
    HELD_FIRST,
    HELD_LAST,
    HIGH_WATER,
    KEYS,
    LANES,
    PIECE_CELLS_LOG2,
    PIECE_ROWS_LOG2,
    PIECES,
    PLACES,
    POSTS,
    TOKEN_LINK_LANE,
    TOKENS,
    TOKENS_HELD,
    USE_LANE,
    USED,
    Tables,
)
from processor.state.memory import reserve
from processor.state.parts import Parts

SPLIT_BYTES = 4 << 20
"""Longer runs are cut, so that two threads can share the copying."""
ALONE_BYTES = 16 << 20
"""Up to so much is copied by one thread: another would come too late."""


class Column(NamedTuple):
    """An array of `Tables` that grows: name, lane, log2 of a piece's rows; where `meta` has its length."""

    name: str
    lane: int
    log2: int
    length: int


_TABLES = ((CHUNKS, "chunk"), (KEYS, "key"), (PLACES, "place"), (CONTENTS, "content"), (CLAIMS, "claim"))
_ROWS = [
    Column(f"{name}s", table >> 3, PIECE_ROWS_LOG2, table + HIGH_WATER)
    for table, name in (*_TABLES, (POSTS, "post"))
]
_BUCKETS = [
    Column(f"{name}_buckets", BUCKET_LANES + (table >> 3), PIECE_CELLS_LOG2, table + BUCKETS)
    for table, name in (*_TABLES, (POSTS, "post"))
]
TOKEN_ROWS = Column("tokens", TOKENS >> 3, PIECE_ROWS_LOG2, TOKENS + HIGH_WATER)
COLUMNS = {
    column.name: column
    for column in (
        *_ROWS,
        *_BUCKETS,
        TOKEN_ROWS,
        Column("token_next", TOKEN_LINK_LANE, PIECE_CELLS_LOG2, TOKENS + HIGH_WATER),
        Column("last_access", USE_LANE, PIECE_CELLS_LOG2, KEYS + HIGH_WATER),
        Column("access_count", USE_LANE, PIECE_CELLS_LOG2, KEYS + HIGH_WATER),
    )
}
"""What is tracked by pieces. The filter and the namespaces' counts are left out: they are made anew."""
SMALL = ("meta", "scope_refs", "sites", "instances", "lists")
"""What is copied whole: the counters, and what is numbered as names are."""


@dataclass(frozen=True, slots=True)
class Names:
    """What a directory holds beside its arrays; a free number's name is None.

    Attributes:
        fingerprint_bits: fewer than 64 in tests alone.
        blend: whether contents were indexed.
    """

    seed: bytes
    fingerprint_bits: int
    blend: bool
    instances: list[str | None]
    scopes: list[tuple[str, str] | None]
    sites: list[tuple[str, str, str, bool] | None]
    groups: list[int]
    heard: list[str]


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The state at one instant.

    Attributes:
        columns: those of `COLUMNS`, as long as they were.
        small: those of `SMALL`, as far as they were in use.
        changed: uint8[LANES, PIECES], 1 for pieces that changed since the last `settle`.
    """

    columns: dict[str, NDArray[Any]]
    small: dict[str, NDArray[Any]]
    names: Names
    changed: NDArray[np.uint8]

    def has_changed(self, name: str, begin: int, end: int) -> bool:
        """Whether rows from `begin` to `end` of a column may have changed since the last `settle`."""
        column = COLUMNS[name]
        first, last = begin >> column.log2, (end - 1) >> column.log2
        return bool(self.changed[column.lane, first : last + 1].any())


class Shadow:
    """The second copy of one directory's tables; all methods are called by one thread at a time.

    Raises:
        MemoryError: the address space is not to be had.
    """

    def __init__(self, parts: Parts) -> None:
        self._parts = parts
        self._tables = parts.state.tables
        self._copies = {
            name: reserve(_table(self._tables, name).shape, _table(self._tables, name).dtype)
            for name in COLUMNS
            if name != TOKEN_ROWS.name
        }
        self._pending = reserve((LANES, PIECES), np.uint8)
        self._changed = reserve((LANES, PIECES), np.uint8)
        self._empty = True
        self._helper = ThreadPoolExecutor(1, "checkpoint-copy")

    def collect(self) -> int:
        """Note which pieces changed since the last time; return how many bytes there are to copy."""
        with self._parts.lock.write:
            return self._collect()

    def copy(self) -> None:
        """Copy what was collected."""
        runs = self._runs()
        sizes = np.cumsum(runs[:, 2])
        if len(runs) and sizes[-1] > ALONE_BYTES:
            half = int(np.searchsorted(sizes, sizes[-1] // 2))
            other = self._helper.submit(copy_runs, runs, half, len(runs))
            copy_runs(runs, 0, half)
            other.result()
        else:
            copy_runs(runs, 0, len(runs))
        # Not before: what a failure leaves out is copied for the next checkpoint.
        self._pending[:, : self._most_pieces()] = 0

    def freeze(self) -> Snapshot:
        """Copy what is left and return the state as it is; nothing may be applied meanwhile.

        Until `release`, rows of tokens that are freed are not used again.
        """
        self._collect()
        self.copy()
        tables, parts = self._tables, self._parts
        scopes, sites, instances = (
            len(parts.scopes.names), len(parts.sites.names), len(parts.instances.names)
        )  # fmt: skip
        used = (
            tables.meta,
            tables.scope_refs[:scopes],
            tables.sites[:sites],
            tables.instances[:instances],
            tables.lists[:, :instances],
        )
        small = dict(zip(SMALL, map(_bytewise, used), strict=True))
        columns = {
            name: self._copies.get(name, tables.tokens)[: int(tables.meta[column.length])]
            for name, column in COLUMNS.items()
        }
        tables.meta[TOKENS_HELD] = 1
        return Snapshot(columns, small, _names(parts), self._changed)

    def release(self) -> None:
        """The tokens have been read: rows freed meanwhile may be used again."""
        meta = self._tables.meta
        with self._parts.lock.write:
            if meta[HELD_FIRST]:
                last = int(meta[HELD_LAST])
                self._tables.token_next[last] = meta[TOKENS + FREE]
                self._tables.dirty[TOKEN_LINK_LANE, last >> PIECE_CELLS_LOG2] = 1
                meta[TOKENS + FREE] = meta[HELD_FIRST]
                meta[TOKENS + USED] -= meta[HELD_COUNT]
            meta[TOKENS_HELD] = meta[HELD_FIRST] = meta[HELD_LAST] = meta[HELD_COUNT] = 0

    def settle(self) -> None:
        """What the last snapshot says is on disk: what changes from it on counts as changed."""
        self._changed[:, : self._most_pieces()] = 0

    def close(self) -> None:
        """Let the second thread go."""
        self._helper.shutdown()

    def _collect(self) -> int:
        pieces = self._most_pieces()
        dirty = self._tables.dirty[:, :pieces]
        pending = self._pending[:, :pieces]
        pending |= dirty
        self._changed[:, :pieces] |= dirty
        dirty[...] = 0
        if self._empty:
            pending[...] = 1
            self._empty = False
        return sum(
            int(np.count_nonzero(self._pending[column.lane, : self._pieces(column)]))
            * (_table(self._tables, name)[:1].nbytes << column.log2)
            for name, column in COLUMNS.items()
            if name != TOKEN_ROWS.name
        )

    def _pieces(self, column: Column) -> int:
        return -(-int(self._tables.meta[column.length]) // (1 << column.log2))

    def _most_pieces(self) -> int:
        return max(self._pieces(column) for column in COLUMNS.values())

    def _runs(self) -> NDArray[np.uint64]:
        """Neighbouring pieces to copy, as one run each, unless that were too long."""
        found = []
        for name, to in self._copies.items():
            column, source = COLUMNS[name], _table(self._tables, name)
            row_bytes = source[:1].nbytes
            pending = self._pending[column.lane, : self._pieces(column)]
            edges = np.flatnonzero(np.diff(pending, prepend=0, append=0)).reshape(-1, 2)
            starts, stops = np.minimum((edges << column.log2) * row_bytes, source.nbytes).T
            cuts = -(-(stops - starts) // SPLIT_BYTES)
            starts, stops = np.repeat(starts, cuts), np.repeat(stops, cuts)
            within = np.arange(len(starts)) - np.repeat(np.cumsum(cuts) - cuts, cuts)
            starts = starts + within * SPLIT_BYTES
            sizes = np.minimum(stops - starts, SPLIT_BYTES)
            found.append(np.stack([to.ctypes.data + starts, source.ctypes.data + starts, sizes], axis=1))
        return np.concatenate(found).astype(np.uint64)


def _table(tables: Tables, name: str) -> NDArray[Any]:
    table: NDArray[Any] = getattr(tables, name)
    return table


def _bytewise(array: NDArray[Any]) -> NDArray[Any]:
    """Copy an array with what lies between its fields, which NumPy's own copy leaves to chance."""
    return np.frombuffer(array.tobytes(), array.dtype).reshape(array.shape)


def _names(parts: Parts) -> Names:
    return Names(
        seed=parts.seed,
        fingerprint_bits=int(parts.state.keys.scalars[1]).bit_length(),
        blend=parts.blend,
        instances=parts.instances.names.copy(),
        scopes=parts.scopes.names.copy(),
        sites=[site and (site[0], site[1].value, site[2], site[3]) for site in parts.sites.names],
        groups=list(parts.groups),
        heard=list(parts.heard),
    )
