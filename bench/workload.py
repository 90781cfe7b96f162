"""The work both sides are measured on, made from a chunk's number alone: no state, no files, the same
everywhere.

A fleet of one model stores chunks of 256 tokens, one entry a chunk, in batches of 256 entries, one batch a
record. Chunk `i` always has the same hash, tokens and offset, so a query that hits chunk `i` can be made
without keeping it. Runs under both interpreters, so it needs NumPy and nothing else.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

CHUNK_SIZE = 256
BATCH_ENTRIES = 256
VOCABULARY = 128_000
MODEL = "bench/model-70b"
INSTANCE = "bench-0"
KV_RANK = (1 << 24) | (1 << 8)
"""World size 1, rank 0 of 1."""
SIZE_BYTES = 40 << 20
OFFSETS = 128
"""Chunk `i` sat `i % OFFSETS` chunks into its sequence, so stored and queried positions differ."""

_CHUNKS, _QUERIES = 1, 2  # what a random stream is for; part of its seed


@dataclass(frozen=True)
class Chunks:
    """A batch's worth of chunks: hashes uint8[n, 32], tokens uint32[n, CHUNK_SIZE], offsets int64[n]."""

    number: int
    hashes: NDArray[np.uint8]
    tokens: NDArray[np.uint32]
    offsets: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.hashes)


def chunks(number: int) -> Chunks:
    """The chunks of batch `number`: `number * BATCH_ENTRIES` and the `BATCH_ENTRIES - 1` after it."""
    random = np.random.default_rng([_CHUNKS, number])
    ids = np.arange(number * BATCH_ENTRIES, (number + 1) * BATCH_ENTRIES, dtype=np.int64)
    return Chunks(
        number,
        hashes=random.integers(0, 256, (BATCH_ENTRIES, 32), np.uint8),
        tokens=random.integers(0, VOCABULARY, (BATCH_ENTRIES, CHUNK_SIZE), np.uint32),
        offsets=(ids % OFFSETS) * CHUNK_SIZE,
    )


def head(number: int, seq: int = 0, event_type: str = "store") -> dict[str, object]:
    """What the batch of `number` says beside its entries; a stream of stores alone numbers itself."""
    return {
        "instance_id": INSTANCE,
        "incarnation": 1,
        "seq": seq or number + 1,
        "event_type": event_type,
        "tier": "l1",
        "backend": "dram",
        "shared": False,
        "ts": 1_700_000_000.0 + number / 1000,
    }


def row_record(number: int, seq: int = 0) -> bytes:
    """Batch `number` as one record of the row wire, the form that LMCache's emitters send."""
    stored = chunks(number)
    entries = [
        {
            "key": _key(digest),
            "size_bytes": SIZE_BYTES,
            "token_ids": tokens.tolist(),
            "token_offset": int(offset),
        }
        for digest, tokens, offset in zip(stored.hashes, stored.tokens, stored.offsets, strict=True)
    ]
    return _record({**head(number, seq), "entries": entries})


def delete_record(number: int, seq: int) -> bytes:
    """The deletes of what batch `number` stored, as one record of the row wire."""
    entries = [{"key": _key(digest)} for digest in chunks(number).hashes]
    return _record({**head(number, seq, "delete"), "entries": entries})


def queries(count: int, length: int, hits: int, stored_chunks: int) -> Iterator[NDArray[np.uint32]]:
    """Yield prompts of `length` tokens, each with `hits` distinct stored chunks at arbitrary positions in it.

    The prompt is cut into `hits` equal stretches; a chunk lies somewhere in each, random tokens around it.
    """
    stretch = length // hits
    if stretch < CHUNK_SIZE:
        raise ValueError(f"{hits} hits of {CHUNK_SIZE} tokens do not fit into {length}")
    for query in range(count):
        random = np.random.default_rng([_QUERIES, query])
        tokens = random.integers(0, VOCABULARY, length, np.uint32)
        wanted = random.choice(stored_chunks, hits, replace=False)
        for place, chunk in enumerate(wanted):
            start = place * stretch + int(random.integers(0, stretch - CHUNK_SIZE + 1))
            batch, row = divmod(int(chunk), BATCH_ENTRIES)
            tokens[start : start + CHUNK_SIZE] = chunks(batch).tokens[row]
        yield tokens


def _key(digest: NDArray[np.uint8]) -> dict[str, object]:
    return {
        "chunk_hash_hex": digest.tobytes().hex(),
        "model_name": MODEL,
        "kv_rank": KV_RANK,
        "object_group_id": 0,
        "cache_salt": "",
    }


def _record(batch: dict[str, object]) -> bytes:
    return json.dumps({"batches": [batch]}, separators=(",", ":")).encode()
