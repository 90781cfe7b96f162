"""What the model is told, in the form in which the engine is told it.

The model reads `producer.events` as they are; the processor reads columns. Entries that say the same of the
same chunk share a row of the chunk columns here, as they do on our own wire.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from processor.batch import HASH_BYTES, Admission, BatchColumns, EventBatch
from producer.events import CacheEventBatch, CacheEventEntry
from tests.model.gate import Admitted


def event_batch(batch: CacheEventBatch, event_time: float | None = None, generation: int = 0) -> EventBatch:
    return EventBatch(
        instance_id=batch.instance_id,
        incarnation=batch.incarnation,
        seq=batch.seq,
        event_type=batch.event_type,
        tier=batch.tier,
        backend=batch.backend,
        shared=batch.shared,
        ts=batch.ts,
        event_time=batch.ts if event_time is None else event_time,
        generation=generation,
        capacity_bytes=batch.capacity_bytes,
        capacity_revision=batch.capacity_revision,
        columns=columns(batch.entries),
    )


def admission(admitted: Admitted) -> Admission:
    return Admission(
        batch=event_batch(admitted.batch, admitted.event_time, admitted.generation),
        epoch=admitted.epoch,
        repaired=admitted.repaired,
        l1_void=admitted.l1_void,
        keep_tombstones=admitted.keep_tombstones,
        keep_contents=admitted.keep_contents,
    )


def columns(entries: Sequence[CacheEventEntry]) -> BatchColumns:
    chunks: dict[tuple[bytes, bytes, int], int] = {}
    scopes: dict[tuple[str, str], int] = {}
    chunk_of, scope_of = [], []
    for entry in entries:
        said = (entry.key.chunk_hash, entry.token_ids.tobytes(), entry.token_offset)
        chunk_of.append(chunks.setdefault(said, len(chunks)))
        scope_of.append(scopes.setdefault((entry.key.model_name, entry.key.cache_salt), len(scopes)))
    hashes = b"".join(chunk_hash.ljust(HASH_BYTES, b"\0") for chunk_hash, _, _ in chunks)
    lengths = [len(tokens) // 4 for _, tokens, _ in chunks]
    return BatchColumns(
        scopes=list(scopes),
        chunk_hashes=np.frombuffer(hashes, np.uint8).reshape(-1, HASH_BYTES),
        hash_lens=np.array([len(chunk_hash) for chunk_hash, _, _ in chunks], np.uint8),
        token_starts=np.cumsum([0, *lengths], dtype=np.int64),
        tokens=np.frombuffer(b"".join(tokens for _, tokens, _ in chunks), np.uint32),
        token_offsets=np.array([offset for _, _, offset in chunks], np.int64),
        chunk=np.array(chunk_of, np.uint32),
        scope=np.array(scope_of, np.uint32),
        kv_rank=np.array([entry.key.kv_rank for entry in entries], np.uint64),
        object_group_id=np.array([entry.key.object_group_id for entry in entries], np.uint32),
        size_bytes=np.array([entry.size_bytes for entry in entries], np.int64),
    )
