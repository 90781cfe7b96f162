"""Which tokens a chunk holds, remembered from the moment it is hashed until its stores have gone out.

A store names a chunk by its hash alone, and may come long after the tokens were seen (a write to storage is
asynchronous), once for every rank. Memory is bounded: the least recently used bindings go, half of them at
once, so that eviction is rare rather than a part of every store while the cache is full.
"""

from __future__ import annotations

from itertools import islice

from producer.events import NO_TOKENS, UNKNOWN_TOKEN_OFFSET, TokenIds

Binding = tuple[TokenIds, int]
"""A chunk's tokens and the offset of its first token."""

UNBOUND: Binding = (NO_TOKENS, UNKNOWN_TOKEN_OFFSET)


class TokenBindings:
    """A bounded map from chunk hash to tokens and offset, in order of use. Not thread-safe."""

    def __init__(self, capacity: int) -> None:
        if capacity < 1:
            raise ValueError(f"capacity of token bindings must be at least 1, got {capacity}")
        self._capacity = capacity
        self._by_hash: dict[bytes, Binding] = {}
        self.evicted = 0

    def __len__(self) -> int:
        return len(self._by_hash)

    def bind(self, chunk_hash: bytes, tokens: TokenIds, offset: int) -> None:
        """Remember a chunk's content in place of what was known of it."""
        self._by_hash.pop(chunk_hash, None)
        self._by_hash[chunk_hash] = (tokens, offset)
        if len(self._by_hash) > self._capacity:
            gone = len(self._by_hash) - self._capacity // 2
            self._by_hash = dict(islice(self._by_hash.items(), gone, None))
            self.evicted += gone

    def find(self, chunk_hash: bytes) -> Binding:
        """What is known of a chunk, `UNBOUND` if nothing is; counts as a use."""
        binding = self._by_hash.pop(chunk_hash, None)
        if binding is None:
            return UNBOUND
        self._by_hash[chunk_hash] = binding
        return binding
