"""The key directory: which keys the fleet holds and where; it drives the blend index.

A consumer of admitted batches and the place of all lookups. The gate calls the writing methods from one
thread at a time, in order; a batch is applied in slices of SLICE entries, each under the write lock. Every
lookup takes the read lock, waits for one slice at most and sees each entry whole or not at all. Numbers of
interned names are only used while a lock is held, since the writer gives them back with the last row that
uses them.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Final, Literal

import numpy as np
from numpy.typing import NDArray

from processor.batch import HASH_BYTES, Admission, BatchColumns
from processor.state.blend import BlendIndex, Match
from processor.state.entry_kernels import (
    apply_slice,
    expire_slice,
    fence_slice,
    forget_dormant_slice,
    make_state,
    settle_slice,
)
from processor.state.hashing import derive_keys, new_seed
from processor.state.interning import Interner, RankedNames, StateFull
from processor.state.layout import (
    CAPACITY,
    CHUNKS,
    DORMANT,
    KEEP_CONTENTS,
    KEYS,
    L1_BYTES,
    L1_COUNT,
    L2_BYTES,
    L2_COUNT,
    LIVE_KEYS,
    MAX_INSTANCES,
    MAX_SCOPES,
    MAX_SITES,
    PLACES,
    REFUSED,
    SHARED_TOMBSTONES,
    TIER_L1,
    TIER_L2,
    TOKENS,
    TOMBSTONES,
    USED,
    ZEROED,
    make_tables,
)
from processor.state.limits import MOST_CHUNKS
from processor.state.lookup import KeyInfo, KeyReader, Placement
from processor.state.mapping import MappedFiles
from processor.state.parts import Parts
from processor.state.prefault import Prefault
from processor.state.rwlock import RWLock
from processor.state.stats import DirectoryStats, Usage, default_max_chunks
from processor.state.write_kernels import ACCESS, DELETE, STORE, Columns, Write
from producer.events import EventType, Namespace, ObjectKey, Tier

__all__ = ["DirectoryStats", "KeyDirectory", "KeyInfo", "Match", "Placement", "Usage", "default_max_chunks"]

logger = logging.getLogger(__name__)

SLICE = 256
EXPIRE_AT_MOST = 65_536

_EVENTS = {EventType.STORE: STORE, EventType.DELETE: DELETE, EventType.ACCESS: ACCESS}
_LAYOUT: Final[tuple[Literal["C"], Literal["A"], Literal["W"]]] = ("C", "A", "W")
_TIERS = {Tier.L1: TIER_L1, Tier.L2: TIER_L2}

Site = tuple[str, Tier, str, bool]
"""Where a placement is: owner ("" in a shared pool), tier, backend, shared."""


class KeyDirectory:
    """The fleet's map. Safe to read from any thread; written by the gate alone.

    Args:
        chunk_size: tokens of a chunk, the fleet's.
        max_chunks: bound of the state; past it new keys are refused and counted.
        enable_blend: index contents for `match`.
        probe_stride: positions of a query between two probes.
        seed: the secret that hashing is keyed with, 32 bytes; a fresh one unless given.
        fingerprint_bits: fewer than 64 force collisions in tests.

    Raises:
        ValueError: a size that is not positive, or a seed of another length.
        MemoryError: the address space is not to be had.
    """

    name = "directory"

    def __init__(
        self,
        *,
        chunk_size: int,
        max_chunks: int,
        enable_blend: bool = True,
        probe_stride: int = 1,
        seed: bytes | None = None,
        fingerprint_bits: int = 64,
    ) -> None:
        for field, value in (
            ("chunk_size", chunk_size),
            ("max_chunks", max_chunks),
            ("probe_stride", probe_stride),
        ):
            if value < 1:
                raise ValueError(f"{field} must be at least 1 (got {value})")
        if max_chunks > MOST_CHUNKS:
            raise ValueError(f"max_chunks must be at most {MOST_CHUNKS} (got {max_chunks})")
        self.chunk_size = chunk_size
        self._tables = make_tables(max_chunks, chunk_size)
        secret = seed or new_seed()
        self._state = make_state(self._tables, derive_keys(secret, chunk_size, fingerprint_bits))
        self._addresses = self._state.addresses
        self._prefault: Prefault | None = None
        self._lock = RWLock()
        self._instances = RankedNames(MAX_INSTANCES, "instance", self._tables.instances)
        self._scopes: Interner[tuple[str, str]] = Interner(MAX_SCOPES, "model and salt")
        self._sites: Interner[Site] = Interner(MAX_SITES, "backend")
        self._groups: set[int] = set()
        self._heard: dict[str, None] = {}
        self._full = False
        self.parts = Parts(
            self._state, self._lock, self._instances, self._scopes, self._sites, self._groups, self._heard,
            secret, enable_blend, MappedFiles(),
        )  # fmt: skip
        self.blend = BlendIndex(self.parts, stride=probe_stride)
        self._reader = KeyReader(self.parts)

    # Writing: the gate's thread

    def consume(self, admission: Admission) -> None:
        """Apply one batch.

        An entry of which the stamp is older than what stands is ignored; one for which there is no room is
        refused.
        """
        batch = admission.batch
        event = _EVENTS.get(batch.event_type)
        self._heard[batch.instance_id] = None
        columns = batch.columns
        self._tables.meta[KEEP_CONTENTS] = admission.keep_contents
        void = admission.l1_void and batch.tier is Tier.L1
        if event is None or not len(columns):
            return
        if void and (event == ACCESS or (event == DELETE and not batch.shared)):
            return
        arrays = _arrays(columns)
        # What an older incarnation had in its own memory is gone, but the tokens it told of are as true as
        # ever.
        tombstones = event != ACCESS and (batch.shared or (admission.keep_tombstones and not void))
        with self._lock.write:
            try:
                site, instance, scopes = self._names(admission, create=tombstones or event == STORE)
            except StateFull as error:
                self._tables.meta[ZEROED] += 1
                self._refuse(len(columns), error)
                return
        write = Write(
            event, site, batch.shared, instance, batch.incarnation, batch.generation, batch.event_time,
            admission.epoch, batch.seq, tombstones, void, admission.keep_contents, self.blend.enabled,
        )  # fmt: skip
        named = arrays._replace(scope_ids=scopes)
        refused = int(self._tables.meta[REFUSED])
        for begin in range(0, len(columns), SLICE):
            with self._lock.write:
                apply_slice(self._addresses, write, named, begin, min(begin + SLICE, len(columns)))
        if self._tables.meta[REFUSED] > refused:
            self._refuse(0, "no room for more rows")
            self._forget_dormant()
        else:
            self._full = False
        if tombstones or event == STORE:
            self._note_unused(site, instance, scopes)
        self._sweep_names()
        if self._prefault is not None:
            self._prefault.note_growth()

    def fence(self, instance_id: str) -> None:
        """Void the L1 placements that an instance reported; what it holds in L2 stays."""
        self._heard.pop(instance_id, None)
        self._in_slices(instance_id, fence_slice)

    def settle(self, instance_id: str) -> None:
        """Forget the deletes remembered for an instance, which has nothing missing any more."""
        self._in_slices(instance_id, settle_slice)

    def expire(self, before: float) -> None:
        """Forget what was remembered for writes still to come, now that no emitter has anything missing.

        These are the deletes in shared pools with an event time before `before`, in seconds, a bounded number
        a call, and what is known of chunks without keys.
        """
        self._tables.meta[KEEP_CONTENTS] = 0
        self._forget_dormant()
        for _ in range(0, min(int(self._tables.meta[SHARED_TOMBSTONES]), EXPIRE_AT_MOST), SLICE):
            with self._lock.write:
                expire_slice(self._addresses, self.blend.enabled, before, SLICE)
        self._sweep_names()

    def keep_memory_ready(self) -> None:
        """Touch memory ahead of the tables' ends from now on, and move what was restored into memory, in a
        thread that `close` ends."""
        self._prefault = Prefault(self._tables, self.parts.mapped, self._lock)

    def close(self) -> None:
        """End the thread that keeps memory ready; the directory can still be read."""
        if self._prefault is not None:
            self._prefault.close()

    # Reading: any thread

    def lookup(self, keys: Sequence[ObjectKey]) -> list[KeyInfo]:
        """Return what is known of each key, in order; a key nobody holds has no placements."""
        return self._reader.lookup(keys)

    def expand_groups(self, keys: Sequence[ObjectKey]) -> list[ObjectKey]:
        """Return each key with the held keys that differ from it in the object group alone, by ascending
        group.
        """
        return self._reader.expand_groups(keys)

    def list_keys(
        self, tier: Tier | None, instance_id: str, backend: str, offset: int, limit: int
    ) -> tuple[int, list[KeyInfo]]:
        """Return how many keys have a placement that fits, and a page of them with only those placements.

        None and "" fit everything. Pages of a directory that changes may skip or repeat keys.
        """
        return self._reader.list_keys(_TIERS[tier] if tier else 0, instance_id, backend, offset, limit)

    def match(self, tokens: NDArray[np.uint32], namespace: Namespace, most: int | None = None) -> list[Match]:
        """Return the cached chunks that a query contains; see `BlendIndex.match`."""
        return self.blend.match(tokens, namespace, most)

    def stats(self) -> DirectoryStats:
        """Return the counts, all of one moment."""
        with self._lock.read:
            meta = self._tables.meta
            instances = self._tables.instances
            return DirectoryStats(
                num_keys=int(meta[LIVE_KEYS]),
                num_placements=int(meta[L1_COUNT] + meta[L2_COUNT]),
                l1_keys_by_instance={
                    name: int(instances[self._instances.find(name)]["l1_count"])
                    for name in tuple(self._heard)
                },
                blend=self.blend.stats(),
                l1_count=int(meta[L1_COUNT]),
                l1_size_bytes=int(meta[L1_BYTES]),
                l2_count=int(meta[L2_COUNT]),
                l2_size_bytes=int(meta[L2_BYTES]),
                num_tombstones=int(meta[TOMBSTONES]),
                refused=int(meta[REFUSED]),
            )

    def usage(self) -> list[Usage]:
        """Return what each place holds, places that hold nothing left out."""
        with self._lock.read:
            return [
                Usage(
                    *site,
                    int(self._tables.sites[number]["count"]),
                    int(self._tables.sites[number]["size_bytes"]),
                )
                for number, site in enumerate(self._sites.names)
                if site is not None and self._tables.sites[number]["count"]
            ]

    def capacity_used(self) -> float:
        """Return the part of the fullest table that is in use, 0 to 1."""
        meta = self._tables.meta
        return max(
            float(meta[table + USED] / meta[table + CAPACITY]) for table in (CHUNKS, KEYS, PLACES, TOKENS)
        )

    def interned(self) -> dict[str, int]:
        """Return how many names of each kind are in use."""
        return {"instances": len(self._instances), "scopes": len(self._scopes), "sites": len(self._sites)}

    # Inside

    def _names(self, admission: Admission, *, create: bool) -> tuple[int, int, NDArray[np.int32]]:
        batch = admission.batch
        site_name: Site = ("" if batch.shared else batch.instance_id, batch.tier, batch.backend, batch.shared)
        if not create:
            scopes = [self._scopes.find(scope) for scope in batch.columns.scopes]
            return (
                self._sites.find(site_name),
                self._instances.find(batch.instance_id),
                np.array(scopes, np.int32),
            )
        site = self._sites.intern(site_name)
        self._tables.sites[site]["tier"] = _TIERS[batch.tier]
        self._tables.sites[site]["shared"] = batch.shared
        instance = self._instances.intern(batch.instance_id)
        scopes = [self._scopes.intern(scope) for scope in batch.columns.scopes]
        if len(self._groups) <= self._reader.groups_worth_asking:
            self._groups.update(np.unique(batch.columns.object_group_id).tolist())
        return site, instance, np.array(scopes, np.int32)

    def _note_unused(self, site: int, instance: int, scopes: NDArray[np.int32]) -> None:
        """Let the next sweep take names that were given numbers for entries of which none left a row."""
        tables = self._tables
        if not (
            tables.sites[site]["refs"]
            and tables.instances[instance]["refs"]
            and tables.scope_refs[scopes].all()
        ):
            tables.meta[ZEROED] += 1

    def _refuse(self, entries: int, reason: object) -> None:
        self._tables.meta[REFUSED] += entries
        if not self._full:
            self._full = True
            logger.error("The state is full and refuses new keys: %s; raise --max-chunks", reason)

    def _in_slices(self, instance_id: str, slice_kernel: Callable[..., int]) -> None:
        instance = self._instances.find(instance_id)
        keep = bool(self._tables.meta[KEEP_CONTENTS])
        while instance:
            with self._lock.write:
                done = slice_kernel(self._addresses, self.blend.enabled, keep, instance, SLICE)
            if done < SLICE:
                break
        self._sweep_names()

    def _forget_dormant(self) -> None:
        while self._tables.meta[DORMANT]:
            with self._lock.write:
                forget_dormant_slice(self._addresses, SLICE)

    def _sweep_names(self) -> None:
        meta = self._tables.meta
        if not meta[ZEROED]:
            return
        with self._lock.write:
            meta[ZEROED] = 0
            self._sites.sweep(self._tables.sites["refs"])
            self._instances.sweep(self._tables.instances["refs"])
            self._scopes.sweep(self._tables.scope_refs)


def _arrays(columns: BatchColumns) -> Columns:
    """Return the columns in the memory layout that the kernels are compiled for, copying none that has it.

    The scopes are yet to be numbered.
    """
    digests = np.require(columns.chunk_hashes, np.uint8, _LAYOUT).reshape(-1, HASH_BYTES)
    return Columns(
        digests=np.require(digests.view(np.uint64), np.uint64, _LAYOUT),
        hash_lens=np.require(columns.hash_lens, np.uint8, _LAYOUT),
        token_starts=np.require(columns.token_starts, np.int64, _LAYOUT),
        tokens=np.require(columns.tokens, np.uint32, _LAYOUT),
        token_offsets=np.require(columns.token_offsets, np.int64, _LAYOUT),
        chunk=np.require(columns.chunk, np.uint32, _LAYOUT),
        scope=np.require(columns.scope, np.uint32, _LAYOUT),
        kv_rank=np.require(columns.kv_rank, np.uint64, _LAYOUT),
        object_group_id=np.require(columns.object_group_id, np.uint32, _LAYOUT),
        size_bytes=np.require(columns.size_bytes, np.int64, _LAYOUT),
        scope_ids=np.zeros(0, np.int32),
    )
