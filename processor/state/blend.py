"""The blend index as lookups see it: which cached chunks a query contains, at any offset.

A match has two halves. Probing hashes the query and asks the filter, without a lock: a filter that is
replaced meanwhile shows in its version, and the half is done again. Resolving takes the read lock for at most
SURVIVORS windows and settles everything exactly. A query far longer than that is resolved in several turns,
between which the index may change; it still names no chunk twice.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from processor.state.entry_kernels import State, probe, resolve
from processor.state.hashing_kernels import BLOCK_WINDOWS
from processor.state.layout import (
    FILTER_SHIFT,
    FILTER_VERSION,
    INDEXED_CLAIMS,
    INDEXED_CONTENTS,
    NAMESPACES,
    NAMESPACES_PER_SCOPE,
    OCCUPANTS,
)
from processor.state.lookup_kernels import Cursors, Matches, Survivors, grow_cursors
from processor.state.parts import Parts
from producer.events import Namespace

SURVIVORS = 16_384
FIRST_CURSORS = 256
FIRST_MATCHES = 256


@dataclass(frozen=True, slots=True)
class Match:
    """A cached chunk found in a query.

    Attributes:
        chunk_hash: the hash the requester's own key is made from.
        old_st: position of the chunk's first token in the sequence it was stored under.
        cur_st: its position in the query.
    """

    chunk_hash: bytes
    old_st: int
    cur_st: int


@dataclass(frozen=True, slots=True)
class BlendStats:
    """Counts of the index; `table_size` is the filter's size in bits."""

    num_contents: int
    num_chunks: int
    num_claims: int
    num_namespaces: int
    table_size: int


class BlendIndex:
    """Lookups in the contents that the directory keeps; safe to call from any thread.

    Args:
        stride: tokens between two positions that are looked at; 1 finds everything.
    """

    def __init__(self, parts: Parts, *, stride: int) -> None:
        self.enabled = parts.blend
        self._state = parts.state
        self._chunk_size = parts.state.tables.tokens.shape[1]
        self._lock = parts.lock
        self._scopes = parts.scopes
        self._stride = stride
        self._local = threading.local()

    @property
    def base(self) -> int:
        """The secret odd base of the polynomial."""
        return int(self._state.keys.powers[1])

    def match(self, tokens: NDArray[np.uint32], namespace: Namespace, most: int | None = None) -> list[Match]:
        """Return the chunks in `tokens` that `namespace` may use, ascending by position, each at most once.

        Matches may overlap in the query. Releases the GIL while it works. Once there are more than `most`,
        the search ends where it is.
        """
        query = np.require(tokens, np.uint32, ["C", "A", "W"])
        if not self.enabled or len(query) < self._chunk_size:
            return []
        scratch = self._scratch()
        resolver = _Resolver(self._state, query, scratch.survivors)
        begin, end = 0, len(query) - self._chunk_size + 1
        most = len(query) if most is None else most
        while begin < end and len(resolver.matches) <= most:
            begin, passed = self._probe(query, begin, scratch)
            if passed:
                with self._lock.read:
                    scope = self._scopes.find((namespace.model_name, namespace.cache_salt))
                    if scope:
                        resolver.run(scope * NAMESPACES_PER_SCOPE + namespace.world_size, passed, most)
        return resolver.matches

    def stats(self) -> BlendStats:
        """Return the counts; the caller holds the lock."""
        meta = self._state.tables.meta
        return BlendStats(
            num_contents=int(meta[INDEXED_CONTENTS]),
            num_chunks=int(meta[OCCUPANTS]),
            num_claims=int(meta[INDEXED_CLAIMS]),
            num_namespaces=int(meta[NAMESPACES]),
            table_size=64 << (64 - int(meta[FILTER_SHIFT])),
        )

    def _scratch(self) -> _Scratch:
        scratch: _Scratch | None = getattr(self._local, "scratch", None)
        if scratch is None:
            scratch = self._local.scratch = _Scratch(self._chunk_size)
        return scratch

    def _probe(self, query: NDArray[np.uint32], begin: int, scratch: _Scratch) -> tuple[int, int]:
        meta = self._state.tables.meta
        for _ in range(3):
            version = meta[FILTER_VERSION]
            result = probe(self._state.addresses, query, begin, self._stride, *scratch.arrays)
            if meta[FILTER_VERSION] == version:
                return result
        with self._lock.read:
            return probe(self._state.addresses, query, begin, self._stride, *scratch.arrays)


class _Scratch:
    """A thread's arrays for probing: made once, since fresh ones cost more than a short match."""

    def __init__(self, chunk_size: int) -> None:
        room = SURVIVORS + BLOCK_WINDOWS + 1
        self.survivors = Survivors(np.empty(room, np.int64), np.empty(room, np.uint64))
        self.arrays = (
            np.empty(BLOCK_WINDOWS + chunk_size, np.uint64),
            np.empty(BLOCK_WINDOWS, np.uint64),
            np.empty(BLOCK_WINDOWS, np.uint8),
            self.survivors,
        )


class _Resolver:
    """The second half of one match: what is kept from one turn under the lock to the next."""

    def __init__(self, state: State, query: NDArray[np.uint32], survivors: Survivors) -> None:
        self.matches: list[Match] = []
        self._addresses = state.addresses
        self._query = query
        self._survivors = survivors
        self._cursors = Cursors(np.zeros(FIRST_CURSORS, np.int64), np.zeros(FIRST_CURSORS, np.int64))
        self._used = 0
        self._out = _match_arrays(FIRST_MATCHES)
        self._seen: set[bytes] = set()

    def run(self, namespace: int, count: int, most: int) -> None:
        """Settle `count` survivors, under the read lock; stop once there are more than `most` matches."""
        at = 0
        while at < count and len(self.matches) <= most:
            at, self._used, matched = resolve(
                self._addresses, namespace, self._query, self._survivors, at, count,
                self._cursors, self._used, self._out, 0,
            )  # fmt: skip
            self._collect(matched)
            if 2 * self._used >= len(self._cursors.serial):
                larger = Cursors(*(np.zeros(4 * len(self._cursors.serial), np.int64) for _ in range(2)))
                grow_cursors(self._cursors, larger)
                self._cursors = larger
            if matched == len(self._out.old_st):
                self._out = _match_arrays(4 * matched)

    def _collect(self, count: int) -> None:
        digests = self._out.digest[:count].tobytes()
        columns = zip(
            self._out.hash_len[:count].tolist(),
            self._out.old_st[:count].tolist(),
            self._out.cur_st[:count].tolist(),
            strict=True,
        )
        for i, (length, old_st, cur_st) in enumerate(columns):
            chunk_hash = digests[32 * i : 32 * i + length]
            if chunk_hash not in self._seen:
                self._seen.add(chunk_hash)
                self.matches.append(Match(chunk_hash, old_st, cur_st))


def _match_arrays(count: int) -> Matches:
    return Matches(
        np.empty((count, 4), np.uint64),
        np.empty(count, np.uint8),
        np.empty(count, np.int64),
        np.empty(count, np.int64),
    )
