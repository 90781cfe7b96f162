"""The secret that all hashing of outside data is keyed with, and what is derived from it.

Digests, tokens and names come from outside, so nobody but this process may know which of them share a bucket
or a fingerprint. One seed of 32 bytes, made at a cold start, is stretched with BLAKE3 into every key that is
needed.
"""

from __future__ import annotations

import secrets
from typing import NamedTuple

import blake3
import numpy as np
from numpy.typing import NDArray

from processor.state.hashing_kernels import BLOCK_WINDOWS, FILTER_PATTERNS, TABLE_KEYS, power_tables

SEED_BYTES = 32


class HashKeys(NamedTuple):
    """Keys in the form that kernels take; all arrays are uint64.

    Attributes:
        table: uint64[TABLE_KEYS], for bucket numbers and treap priorities.
        fingerprint: uint64[2, chunk_size], for the two halves of a fingerprint.
        powers: uint64[BLOCK_WINDOWS + chunk_size + 1], powers of the polynomial's odd base.
        inverses: uint64[BLOCK_WINDOWS + 1], powers of the base's inverse modulo 2^64, times the first of
            `scalars`.
        filter_bits: uint64[FILTER_PATTERNS], words with three bits set.
        scalars: uint64[2], an odd multiplier that spreads a window's polynomial over the filter, and the mask
            of a fingerprint: all ones, unless a test shrinks it to force collisions.
    """

    table: NDArray[np.uint64]
    fingerprint: NDArray[np.uint64]
    powers: NDArray[np.uint64]
    inverses: NDArray[np.uint64]
    filter_bits: NDArray[np.uint64]
    scalars: NDArray[np.uint64]


def new_seed() -> bytes:
    """Return a fresh secret."""
    return secrets.token_bytes(SEED_BYTES)


def derive_keys(seed: bytes, chunk_size: int, fingerprint_bits: int = 64) -> HashKeys:
    """Stretch `seed` into all keys.

    Raises:
        ValueError: the seed has not 32 bytes, or `fingerprint_bits` is not within 1 to 64.
    """
    if len(seed) != SEED_BYTES:
        raise ValueError(f"seed must have {SEED_BYTES} bytes (got {len(seed)})")
    if not 1 <= fingerprint_bits <= 64:
        raise ValueError(f"fingerprint_bits must be 1 to 64 (got {fingerprint_bits})")
    count = TABLE_KEYS + 2 * chunk_size + FILTER_PATTERNS + 2
    stream = np.frombuffer(blake3.blake3(seed).digest(length=8 * count), dtype="<u8").astype(np.uint64)
    base, multiplier = (int(word) | 1 for word in stream[-2:])
    powers, inverses = power_tables(
        np.uint64(base), np.uint64(pow(base, -1, 1 << 64)), BLOCK_WINDOWS, chunk_size
    )
    bits = stream[-2 - FILTER_PATTERNS : -2, None] >> np.arange(0, 24, 6, dtype=np.uint64) & np.uint64(63)
    return HashKeys(
        table=stream[:TABLE_KEYS].copy(),
        fingerprint=stream[TABLE_KEYS : TABLE_KEYS + 2 * chunk_size].reshape(2, chunk_size).copy(),
        powers=powers,
        inverses=inverses * np.uint64(multiplier),
        filter_bits=np.bitwise_or.reduce(np.uint64(1) << bits[:, :3], axis=1),
        scalars=np.array([multiplier, (1 << fingerprint_bits) - 1], np.uint64),
    )
