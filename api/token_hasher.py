"""Chunk hashes of a token sequence, as the cache servers compute them.

Hashes are prefix-chained: a chunk's is BLAKE3 over the hash of the chunk before it and the chunk's tokens as
big-endian uint32. The first chunk follows a root, the hash of eight zero bytes and the token 0. This is the
`blake3` algorithm of LMCache's `TokenHasher`; a fleet that uses another cannot be looked up by tokens.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import numpy as np
from blake3 import blake3
from numpy.typing import NDArray

ROOT: Final = blake3(bytes(8) + bytes(4)).digest()
"""What stands for the hash of the chunk before the first."""


class TokenHasher:
    """Hashes the complete chunks of sequences, `chunk_size` tokens each."""

    def __init__(self, chunk_size: int) -> None:
        self.chunk_size = chunk_size

    def count(self, tokens: NDArray[np.uint32]) -> int:
        """How many complete chunks a sequence has; tokens behind the last one are left out."""
        return len(tokens) // self.chunk_size

    def hashes(self, tokens: NDArray[np.uint32]) -> Iterator[bytes]:
        """The 32-byte hash of each complete chunk, in order; `tokens` must begin at the sequence's start."""
        parent = ROOT
        for start in range(0, self.count(tokens) * self.chunk_size, self.chunk_size):
            chunk = tokens[start : start + self.chunk_size]
            parent = blake3(parent + chunk.astype(">u4").tobytes()).digest()
            yield parent
