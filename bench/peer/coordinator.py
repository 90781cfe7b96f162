"""Builds the peer's gate and directory as its own composition root does, less HTTP and the views beside
them.
"""

from __future__ import annotations

from typing import Any

from lmcache.v1.distributed.api import EncodedObjectKey, Tier  # type: ignore[import-not-found]
from lmcache.v1.mp_coordinator.api import (  # type: ignore[import-not-found]
    BlendNamespace,
    CacheEventBatch,
    CacheEventEntry,
    CacheEventType,
)
from lmcache.v1.mp_coordinator.ingest.event_broadcaster import (  # type: ignore[import-not-found]
    CacheEventBroadcaster,
)
from lmcache.v1.mp_coordinator.ingest.event_gate import EventGate  # type: ignore[import-not-found]
from lmcache.v1.mp_coordinator.persistence.quiesce import QuiesceLock  # type: ignore[import-not-found]
from lmcache.v1.mp_coordinator.views.key_directory import KeyDirectory  # type: ignore[import-not-found]

from bench import workload

NAMESPACE = BlendNamespace(model_name=workload.MODEL)


def build() -> tuple[Any, Any]:
    """A gate and the directory behind it, with blend lookup on."""
    directory = KeyDirectory()
    directory.enable_blend_lookup(chunk_size=workload.CHUNK_SIZE, probe_stride=1)
    broadcaster = CacheEventBroadcaster()
    broadcaster.register_consumer(directory)
    return EventGate(broadcaster, QuiesceLock()), directory


def batch(number: int) -> Any:
    """Batch `number` as decoding would leave it."""
    stored = workload.chunks(number)
    head = workload.head(number)
    return CacheEventBatch(
        instance_id=head["instance_id"],
        incarnation=head["incarnation"],
        seq=head["seq"],
        event_type=CacheEventType(head["event_type"]),
        tier=Tier(head["tier"]),
        backend=head["backend"],
        shared=head["shared"],
        ts=head["ts"],
        entries=[
            CacheEventEntry(
                key=EncodedObjectKey(digest.tobytes().hex(), workload.MODEL, workload.KV_RANK),
                size_bytes=workload.SIZE_BYTES,
                token_ids=tokens.tolist(),
                token_offset=int(offset),
            )
            for digest, tokens, offset in zip(stored.hashes, stored.tokens, stored.offsets, strict=True)
        ],
    )


def load(gate: Any, chunks: int) -> int:
    """Apply the first batches, until `chunks` chunks are stored; returns the number of batches."""
    batches = -(-chunks // workload.BATCH_ENTRIES)
    for number in range(batches):
        gate.ingest(batch(number))
    return batches
