"""Hashes under secret keys.

Buckets and fingerprints are multilinear: the upper half of `k_0 + sum k_i * x_i` modulo 2^64 over 32-bit
words `x_i` and random 64-bit keys, which is strongly universal (Dietzfelbinger 1996; Lemire and Kaser 2014).
A window's polynomial `sum t_j * C^j` can be made to collide whatever the odd base `C`; it only ever feeds the
filter.

Loops over tokens count in uint64: a signed index could be negative and mean "from the end", and checking for
that keeps the loop from being vectorised (133 against 22 ns for 256 products).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from processor.kernel import Int, kernel

TABLE_KEYS = 16
FILTER_PATTERNS = 1024
BLOCK_WINDOWS = 4096
"""Windows that are hashed from one set of power tables, which with it fit the second-level cache."""

_LOW = np.uint64(0xFFFFFFFF)
_HALF = np.uint64(32)


@kernel
def hash_digest(keys: NDArray[np.uint64], d0: Int, d1: Int, d2: Int, d3: Int, length: Int) -> Int:
    """Return the uint32 hash of a zero-padded 32-byte digest and its length."""
    total = keys[0] + keys[1] * np.uint64(length)
    total += keys[2] * (d0 & _LOW) + keys[3] * (d0 >> _HALF)
    total += keys[4] * (d1 & _LOW) + keys[5] * (d1 >> _HALF)
    total += keys[6] * (d2 & _LOW) + keys[7] * (d2 >> _HALF)
    total += keys[8] * (d3 & _LOW) + keys[9] * (d3 >> _HALF)
    return np.uint32(total >> _HALF)


@kernel
def hash_words(keys: NDArray[np.uint64], a: Int, b: Int, c: Int, d: Int, e: Int) -> Int:
    """Return the uint32 hash of up to five 32-bit words; unused ones are 0."""
    total = keys[10] + keys[11] * (np.uint64(a) & _LOW) + keys[12] * (np.uint64(b) & _LOW)
    total += (
        keys[13] * (np.uint64(c) & _LOW) + keys[14] * (np.uint64(d) & _LOW) + keys[15] * (np.uint64(e) & _LOW)
    )
    return np.uint32(total >> _HALF)


@kernel
def fingerprint(keys: NDArray[np.uint64], mask: Int, tokens: NDArray[np.uint32], start: Int) -> Int:
    """Return the uint64 fingerprint of `keys.shape[1]` tokens from `start` on."""
    low = np.uint64(0)
    high = np.uint64(0)
    first = np.uint64(start)
    for i in range(np.uint64(keys.shape[1])):
        token = np.uint64(tokens[first + i])
        low += keys[0, i] * token
        high += keys[1, i] * token
    return ((high >> _HALF << _HALF) | (low >> _HALF)) & mask


@kernel
def polynomial(powers: NDArray[np.uint64], tokens: NDArray[np.uint32], start: Int, count: Int) -> Int:
    """Return `sum tokens[start + j] * C^j` modulo 2^64 over `count` tokens."""
    total = np.uint64(0)
    first = np.uint64(start)
    for j in range(np.uint64(count)):
        total += powers[j] * np.uint64(tokens[first + j])
    return total


def power_tables(
    base: np.uint64, inverse: np.uint64, windows: Int, chunk_size: Int
) -> tuple[NDArray[np.uint64], NDArray[np.uint64]]:
    """Return the powers of `base` that a block of windows needs, and those of its inverse."""
    powers = np.full(windows + chunk_size + 1, base, np.uint64)
    inverses = np.full(windows + 1, inverse, np.uint64)
    powers[0] = inverses[0] = 1
    return np.multiply.accumulate(powers), np.multiply.accumulate(inverses)
