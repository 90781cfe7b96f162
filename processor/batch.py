"""A decoded batch as columns: the one thing that ingest hands to state.

Both wires decode into `EventBatch`; nothing past the decoder knows which one a batch came by. The arrays are
read-only by agreement: several consumers read the same ones, and some keep views of them for the length of a
call. An `Admission` is what the gate adds to a batch before it fans it out.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from producer.events import EventType, Tier

HASH_BYTES = 32
"""Bytes kept of a chunk hash; shorter ones are zero-padded and keep their length beside them."""


@dataclass(slots=True, eq=False)
class BatchColumns:
    """The entries of one batch. `c` counts its chunks, `n` its entries, `t` the tokens of all its chunks.

    Attributes:
        scopes: the `(model_name, cache_salt)` pairs that `scope` numbers.
        chunk_hashes: uint8[c, 32], zero-padded behind `hash_lens`.
        hash_lens: uint8[c], 1 to 32.
        token_starts: int64[c + 1]; chunk `i` has `tokens[token_starts[i]:token_starts[i + 1]]`, empty if
            unknown.
        tokens: uint32[t].
        token_offsets: int64[c], -1 if unknown.
        chunk: uint32[n], the chunk of an entry.
        scope: uint32[n], the scope of an entry.
        kv_rank: uint64[n].
        object_group_id: uint32[n].
        size_bytes: int64[n], 0 to 2^63-1.
        tokens_dropped: chunks whose tokens were left out, because an id was beyond uint32 or the content too
            long.
    """

    scopes: list[tuple[str, str]] = field(default_factory=list)
    chunk_hashes: NDArray[np.uint8] = field(default_factory=lambda: np.zeros((0, HASH_BYTES), np.uint8))
    hash_lens: NDArray[np.uint8] = field(default_factory=lambda: np.zeros(0, np.uint8))
    token_starts: NDArray[np.int64] = field(default_factory=lambda: np.zeros(1, np.int64))
    tokens: NDArray[np.uint32] = field(default_factory=lambda: np.zeros(0, np.uint32))
    token_offsets: NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, np.int64))
    chunk: NDArray[np.uint32] = field(default_factory=lambda: np.zeros(0, np.uint32))
    scope: NDArray[np.uint32] = field(default_factory=lambda: np.zeros(0, np.uint32))
    kv_rank: NDArray[np.uint64] = field(default_factory=lambda: np.zeros(0, np.uint64))
    object_group_id: NDArray[np.uint32] = field(default_factory=lambda: np.zeros(0, np.uint32))
    size_bytes: NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, np.int64))
    tokens_dropped: int = 0

    def __len__(self) -> int:
        return len(self.chunk)


@dataclass(slots=True, eq=False)
class EventBatch:
    """One batch of an emitter's stream, checked against the contract of `producer.events`.

    Attributes:
        ts: the emitter's clock in seconds, 0 if it gave none.
        event_time: `ts`, or where that is 0 the record's timestamp or the time of arrival; what stamps carry.
        generation: the writer's claim to a shared placement beyond its clock; 0 unless the wire carries one.
    """

    instance_id: str
    incarnation: int
    seq: int
    event_type: EventType
    tier: Tier
    backend: str
    shared: bool = False
    ts: float = 0.0
    event_time: float = 0.0
    generation: int = 0
    capacity_bytes: int = 0
    capacity_revision: int = 0
    columns: BatchColumns = field(default_factory=BatchColumns)


@dataclass(slots=True, eq=False)
class Admission:
    """A batch that the gate lets through, with what a consumer must know of its stream.

    Attributes:
        epoch: the number of the cursor it belongs to; grows with every cursor opened for the `instance_id`.
        repaired: the batch fills a missing or lost range.
        l1_void: the batch is of an older incarnation, whose L1 died with it. Private L1 entries are to be
            ignored;
            shared L1 entries count as deletes with their stamp, as the fence that came after them would have
            it.
        keep_tombstones: the emitter has an open range even after this batch, so that a delete of a private
            placement must leave a tombstone.
        keep_contents: some emitter has an open range after this batch, or this batch filled one: what is
            known of a
            chunk outlives its last key, since a batch that is still to come may have stored another of its
            keys, without tokens, at a time when they were known.
    """

    batch: EventBatch
    epoch: int
    repaired: bool = False
    l1_void: bool = False
    keep_tombstones: bool = False
    keep_contents: bool = False
