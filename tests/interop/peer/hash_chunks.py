"""Hashes prompts with LMCache's `TokenHasher`: reads `{"chunk_size", "prompts"}`, prints hex hashes a
prompt.
"""

from __future__ import annotations

import json
import sys

from lmcache.v1.multiprocess.token_hasher import TokenHasher  # type: ignore[import-not-found]

asked = json.load(sys.stdin)
hasher = TokenHasher(chunk_size=asked["chunk_size"], hash_algorithm="blake3")
print(json.dumps([[h.hex() for h in hasher.compute_chunk_hashes(prompt)] for prompt in asked["prompts"]]))
