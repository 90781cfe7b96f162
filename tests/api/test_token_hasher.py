from __future__ import annotations

import numpy as np

from api.token_hasher import ROOT, TokenHasher


def hashes(tokens: list[int], chunk_size: int = 4) -> list[str]:
    return [digest.hex() for digest in TokenHasher(chunk_size).hashes(np.array(tokens, np.uint32))]


def test_hashes_are_those_that_lmcaches_hasher_gives() -> None:
    assert ROOT.hex() == "7e3eff9ef7613a50340eb12677ee03b83ac759fcba9bb32705f07248d56d473b"
    assert hashes([1, 2, 3, 4, 5, 6, 7, 8, 9]) == [
        "6309ed506b8721905753f5c73c070bb21c3aafbd9b474b1e231f41368b71123c",
        "98efc76eafb06cfe774c31ff151f300b61a614c27982a211bb8cdbd83a8c0e19",
    ]


def test_a_chunks_hash_depends_on_everything_before_it() -> None:
    assert hashes([1, 2, 3, 4, 5, 6, 7, 8])[1] != hashes([9, 2, 3, 4, 5, 6, 7, 8])[1]


def test_a_sequence_shorter_than_a_chunk_has_no_hashes() -> None:
    assert hashes([1, 2, 3]) == []
