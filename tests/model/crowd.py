"""Large admissions without a gate: columns made by NumPy, for tests in which thousands of keys meet."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from processor.batch import HASH_BYTES, Admission, BatchColumns, EventBatch
from producer.events import UNKNOWN_TOKEN_OFFSET, EventType, Namespace, ObjectKey, Tier, make_kv_rank

RANK = make_kv_rank(1, 0, 1, 0)
NAMESPACE = Namespace("m")


def chunk_hash(number: int) -> bytes:
    return number.to_bytes(HASH_BYTES, "big")


def key(number: int, salt: str = "") -> ObjectKey:
    return ObjectKey(chunk_hash(number), "m", RANK, 0, salt)


def change(
    kind: EventType,
    chunks: Sequence[int],
    seq: int,
    *,
    tokens: NDArray[np.uint32] | None = None,
    offset: int = 0,
    salts: Sequence[str] = ("",),
    instance: str = "a",
    tier: Tier = Tier.L1,
    size: int = 1,
) -> Admission:
    """One batch with an entry a chunk; `tokens` has a row a chunk, and `salts` go with the chunks in turn."""
    count = len(chunks)
    width = 0 if tokens is None else tokens.shape[1]
    hashes = b"".join(map(chunk_hash, chunks))
    columns = BatchColumns(
        scopes=[("m", salt) for salt in salts],
        chunk_hashes=np.frombuffer(hashes, np.uint8).reshape(-1, HASH_BYTES),
        hash_lens=np.full(count, HASH_BYTES, np.uint8),
        token_starts=np.arange(count + 1, dtype=np.int64) * width,
        tokens=np.zeros(0, np.uint32) if tokens is None else np.ascontiguousarray(tokens).reshape(-1),
        token_offsets=np.full(count, UNKNOWN_TOKEN_OFFSET if tokens is None else offset, np.int64),
        chunk=np.arange(count, dtype=np.uint32),
        scope=np.arange(count, dtype=np.uint32) % np.uint32(len(salts)),
        kv_rank=np.full(count, RANK, np.uint64),
        object_group_id=np.zeros(count, np.uint32),
        size_bytes=np.full(count, size, np.int64),
    )
    batch = EventBatch(instance, 1, seq, kind, tier, "x", ts=100.0, event_time=100.0, columns=columns)
    return Admission(batch, epoch=1)


def texts(count: int, chunk_size: int, seed: int = 0) -> NDArray[np.uint32]:
    """Distinct contents, [count, chunk_size]."""
    rows = np.random.default_rng(seed).integers(0, 1000, (count, chunk_size), np.uint32)
    rows[:, 0] = np.arange(count) + 1_000_000 * (seed + 1)
    return rows
