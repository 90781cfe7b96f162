"""Our chunk hashes are LMCache's, or no lookup by tokens would find what its servers stored."""

from __future__ import annotations

import numpy as np
import pytest

from api.token_hasher import TokenHasher
from tests.interop.peers import run_peer

pytestmark = pytest.mark.needs("peer")


@pytest.mark.parametrize("chunk_size", [1, 16, 256])
def test_chunk_hashes_equal_those_of_lmcache(peer_python: str, chunk_size: int) -> None:
    random = np.random.default_rng(chunk_size)
    lengths = [0, chunk_size - 1, chunk_size, 3 * chunk_size, 7 * chunk_size + chunk_size // 2]
    prompts = [random.integers(0, 2**32, length, dtype=np.uint32) for length in lengths]
    prompts.append(np.full(2 * chunk_size, 2**32 - 1, np.uint32))
    told = {"chunk_size": chunk_size, "prompts": [prompt.tolist() for prompt in prompts]}
    theirs = run_peer(peer_python, "hash_chunks.py", told)
    ours = [[digest.hex() for digest in TokenHasher(chunk_size).hashes(prompt)] for prompt in prompts]
    assert ours == theirs
