"""Keys to placements, for the faces: lookups, listings, and a key's copies in other object groups.

Works in slices of SLICE keys, each found, copied and named under one hold of the read lock, so that ingest
waits for a fraction of a millisecond however long the request is.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from processor.batch import HASH_BYTES
from processor.state.entry_kernels import (
    count_places,
    count_tokens,
    find_keys,
    find_told_chunks,
    gather_places,
    gather_tokens,
    list_groups,
    scan_keys,
)
from processor.state.layout import HIGH_WATER, KEYS
from processor.state.lookup_kernels import Found
from processor.state.parts import Parts
from producer.events import ObjectKey, Tier

SLICE = 256
SCAN = 8192

_NO_TOKENS = np.zeros(0, np.uint32)


@dataclass(frozen=True, slots=True)
class Placement:
    """One place where a key is held.

    Attributes:
        instance_id: who reported it last; in a shared pool any of its writers.
        incarnation: of the report.
        size_bytes: as reported.
        shared: the backend is one pool that several instances mount.
    """

    instance_id: str
    incarnation: int
    tier: Tier
    backend: str
    size_bytes: int
    shared: bool


@dataclass(frozen=True, slots=True)
class KeyInfo:
    """What the directory knows of a key.

    Attributes:
        placements: sorted by (instance_id, tier, backend), shared ones behind; empty if nobody holds the key.
        token_ids: uint32 tokens of the key's chunk, told by any of its keys; empty if unknown or in listings.
        num_tokens: how many tokens are known.
        access_count: accesses since the key came to life.
    """

    key: ObjectKey
    placements: list[Placement]
    token_ids: NDArray[np.uint32]
    num_tokens: int
    access_count: int


class KeyReader:
    """The reading half of the directory; safe from any thread.

    Attributes:
        groups_worth_asking: up to so many object groups in the fleet, each is asked for; beyond, a chunk's
            keys are
            walked.
    """

    groups_worth_asking = 64

    def __init__(self, parts: Parts) -> None:
        self._tables = parts.state.tables
        self._addresses = parts.state.addresses
        self._lock = parts.lock
        self._instances = parts.instances
        self._scopes = parts.scopes
        self._sites = parts.sites
        self._groups = parts.groups

    def lookup(self, keys: Sequence[ObjectKey]) -> list[KeyInfo]:
        """Return what is known of each key, in order."""
        result: list[KeyInfo] = []
        for begin in range(0, len(keys), SLICE):
            part = keys[begin : begin + SLICE]
            columns = _KeyColumns(part)
            with self._lock.read:
                rows = columns.find(self)
                result.extend(self._describe(part, rows, columns.find_chunks(self, rows), with_tokens=True))
        return result

    def expand_groups(self, keys: Sequence[ObjectKey]) -> list[ObjectKey]:
        """Return each key with the held keys that differ from it in the object group alone, by ascending
        group.
        """
        result: list[ObjectKey] = []
        for begin in range(0, len(keys), SLICE):
            part = keys[begin : begin + SLICE]
            columns = _KeyColumns(part)
            with self._lock.read:
                groups = [{key.object_group_id} for key in part]
                if len(self._groups) <= self.groups_worth_asking:
                    for group in self._groups:
                        for i in np.flatnonzero(columns.find(self, group)).tolist():
                            groups[i].add(group)
                else:
                    self._walk_groups(columns, groups)
            for key, present in zip(part, groups, strict=True):
                result.extend(
                    key
                    if group == key.object_group_id
                    else ObjectKey(key.chunk_hash, key.model_name, key.kv_rank, group, key.cache_salt)
                    for group in sorted(present)
                )
        return result

    def list_keys(
        self, tier: int, instance_id: str, backend: str, offset: int, limit: int
    ) -> tuple[int, list[KeyInfo]]:
        """Return how many keys have a fitting placement, and up to `limit` of them from the `offset`th on."""
        page: list[KeyInfo] = []
        total = 0
        row = 1
        while row < self._tables.meta[KEYS + HIGH_WATER]:
            filling = len(page) < limit
            rows = np.zeros(min(SLICE, limit - len(page)) if filling else 0, np.int32)
            with self._lock.read:
                instance = self._instances.find(instance_id)
                if instance_id and not instance:
                    break
                wanted = np.fromiter(
                    (site is not None and (not backend or site[2] == backend) for site in self._sites.names),
                    np.uint8,
                )
                row, fitting, written = scan_keys(
                    self._addresses,
                    row,
                    SLICE if filling else SCAN,
                    tier,
                    instance,
                    wanted,
                    offset - total,
                    rows,
                )
                if written:
                    listed = rows[:written]
                    chunks = self._tables.keys["chunk"][listed]
                    page.extend(self._describe(None, listed, chunks, with_tokens=False))
            total += fitting
        return total, [_restrict(info, tier, instance_id, backend) for info in page]

    # Under the read lock

    def _walk_groups(self, columns: _KeyColumns, groups: list[set[int]]) -> None:
        chunks = columns.find_chunks(self, np.zeros(len(groups), np.int32))
        scopes = columns.scopes(self)
        for i in np.flatnonzero(chunks).tolist():
            wanted = chunks[i], scopes[i], columns.kv_ranks[i]
            found = np.zeros(1024, np.uint32)
            while (count := list_groups(self._addresses, *wanted, found)) > len(found):
                found = np.zeros(count, np.uint32)
            groups[i].update(found[:count].tolist())

    def _describe(
        self,
        keys: Sequence[ObjectKey] | None,
        rows: NDArray[np.int32],
        chunks: NDArray[np.int32],
        *,
        with_tokens: bool,
    ) -> list[KeyInfo]:
        tables = self._tables
        known = keys or [self._key(row) for row in rows.tolist()]
        placements: list[list[Placement]] = [[] for _ in known]
        count = count_places(self._addresses, rows)
        found = Found(np.empty(count, np.int64), np.empty(count, np.int32))
        gather_places(self._addresses, rows, found)
        gathered = tables.places[found.place]
        columns = zip(
            found.key.tolist(),
            gathered["instance"].tolist(),
            gathered["incarnation"].tolist(),
            gathered["site"].tolist(),
            gathered["size_bytes"].tolist(),
            strict=True,
        )
        for i, instance, incarnation, site, size_bytes in columns:
            _, tier, backend, shared = self._sites.names[site] or ("", Tier.L1, "", False)
            name = self._instances.names[instance] or ""
            placements[i].append(Placement(name, incarnation, tier, backend, size_bytes, shared))
        token_counts = np.zeros(len(rows), np.int64)
        total = count_tokens(self._addresses, chunks, token_counts)
        tokens = np.empty(total if with_tokens else 0, np.uint32)
        if with_tokens:
            gather_tokens(self._addresses, chunks, tokens)
        ends = np.cumsum(token_counts).tolist()
        accesses = tables.access_count[rows].tolist()
        return [
            KeyInfo(
                key=known[i],
                placements=sorted(placements[i], key=_place_order),
                token_ids=tokens[end - held : end] if with_tokens else _NO_TOKENS,
                num_tokens=held,
                access_count=accesses[i],
            )
            for i, (end, held) in enumerate(zip(ends, token_counts.tolist(), strict=True))
        ]

    def _key(self, row: int) -> ObjectKey:
        key = self._tables.keys[row]
        chunk = self._tables.chunks[key["chunk"]]
        digest = b"".join(chunk[f"digest{i}"].tobytes() for i in range(4))
        model_name, cache_salt = self._scopes.names[int(key["scope"])] or ("", "")
        return ObjectKey(
            digest[: int(chunk["hash_len"])],
            model_name,
            int(key["kv_rank"]),
            int(key["object_group_id"]),
            cache_salt,
        )


class _KeyColumns:
    """Keys as the columns that `find_keys` takes."""

    def __init__(self, keys: Sequence[ObjectKey]) -> None:
        padded = bytearray(b"".join(key.chunk_hash.ljust(HASH_BYTES, b"\0") for key in keys))
        self._digests: NDArray[Any] = np.frombuffer(padded, np.uint64).reshape(-1, 4)
        self._hash_lens = np.fromiter((len(key.chunk_hash) for key in keys), np.uint8)
        self._scopes = [(key.model_name, key.cache_salt) for key in keys]
        self.kv_ranks = np.fromiter((key.kv_rank for key in keys), np.uint64)
        self._groups = np.fromiter((key.object_group_id for key in keys), np.uint32)

    def find(self, reader: KeyReader, group: int | None = None) -> NDArray[np.int32]:
        """Return the rows of the live keys, 0 for others; `group` stands in for the keys' own."""
        rows = np.zeros(len(self._scopes), np.int32)
        groups = self._groups if group is None else np.full(len(rows), group, np.uint32)
        find_keys(
            reader._addresses,
            self._digests,
            self._hash_lens,
            self.scopes(reader),
            self.kv_ranks,
            groups,
            rows,
        )
        return rows

    def scopes(self, reader: KeyReader) -> NDArray[np.int32]:
        """Return the numbers of the keys' scopes, 0 where nobody stored under one."""
        return np.fromiter((reader._scopes.find(scope) for scope in self._scopes), np.int32)

    def find_chunks(self, reader: KeyReader, rows: NDArray[np.int32]) -> NDArray[np.int32]:
        """Return the chunks of the keys in `rows`, and of those not held the chunks held under other keys."""
        chunks = np.zeros(len(rows), np.int32)
        find_told_chunks(reader._addresses, self._digests, self._hash_lens, rows, chunks)
        return chunks


def _place_order(placement: Placement) -> tuple[str, str, str, bool]:
    return placement.instance_id, placement.tier.value, placement.backend, placement.shared


def _restrict(info: KeyInfo, tier: int, instance_id: str, backend: str) -> KeyInfo:
    """Leave only the placements that fit a listing's filters."""
    fitting = [
        placement
        for placement in info.placements
        if (tier == 0 or placement.tier is (Tier.L1, Tier.L2)[tier - 1])
        and (not instance_id or placement.instance_id == instance_id)
        and (not backend or placement.backend == backend)
    ]
    return KeyInfo(info.key, fitting, info.token_ids, info.num_tokens, info.access_count)
