"""The workload in columns, the form that our emitters send, as `producer.wire` encodes it."""

from __future__ import annotations

from typing import Any

from bench import workload
from producer.events import CacheEventBatch, CacheEventEntry, ObjectKey
from producer.wire import encode_columns


def column_record(number: int, seq: int = 0) -> bytes:
    """Batch `number` as one record of the column wire."""
    stored = workload.chunks(number)
    entries = [
        CacheEventEntry(
            ObjectKey(digest.tobytes(), workload.MODEL, workload.KV_RANK),
            workload.SIZE_BYTES,
            tokens,
            int(offset),
        )
        for digest, tokens, offset in zip(stored.hashes, stored.tokens, stored.offsets, strict=True)
    ]
    head: dict[str, Any] = workload.head(number, seq)
    return encode_columns([CacheEventBatch(**head, entries=entries)])
