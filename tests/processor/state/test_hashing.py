"""Hashes under secret keys: the polynomial of every window, and fingerprints that tell windows apart."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from processor.state.hashing import derive_keys, new_seed
from processor.state.hashing_kernels import BLOCK_WINDOWS, fingerprint, hash_digest, polynomial
from processor.state.layout import make_tables
from processor.state.lookup_kernels import test_windows as hash_windows

SEED = bytes(range(32))
MODULUS = 1 << 64
WIDTH = 16
KEYS = derive_keys(SEED, WIDTH)
FULL = np.uint64(MODULUS - 1)
tokens = st.lists(
    st.integers(0, 3) | st.sampled_from((2**31, 2**32 - 1)), min_size=WIDTH, max_size=WIDTH
).map(lambda ids: np.array(ids, np.uint32))


@settings(deadline=None)
@given(tokens)
def test_the_polynomial_is_the_sum_of_tokens_times_powers_of_the_base(window: np.ndarray) -> None:
    base = int(KEYS.powers[1])
    expected = sum(token * pow(base, j, MODULUS) for j, token in enumerate(window.tolist())) % MODULUS
    assert int(polynomial(KEYS.powers, window, 0, WIDTH)) == expected
    assert base % 2 == 1


@pytest.mark.parametrize("begin", [0, 5, 4090])
def test_a_query_gives_each_window_the_polynomial_that_its_content_has(begin: int) -> None:
    query = np.random.default_rng(begin).integers(0, 2**32, begin + BLOCK_WINDOWS + WIDTH, np.uint32)
    sums = np.zeros(BLOCK_WINDOWS + WIDTH, np.uint64)
    spreads = np.zeros(BLOCK_WINDOWS, np.uint64)
    passed = np.zeros(BLOCK_WINDOWS, np.uint8)
    tables = make_tables(64, WIDTH)
    arguments = np.uint64(begin), np.uint64(BLOCK_WINDOWS)
    hash_windows(tables, KEYS, query, *arguments, sums, spreads, passed)
    # What the filter is asked for a window is what a content of the same tokens is entered under.
    multiplier = int(KEYS.inverses[0])
    for i in [0, 1, 2, 1000, BLOCK_WINDOWS - 2, BLOCK_WINDOWS - 1]:
        content = int(polynomial(KEYS.powers, query, begin + i, WIDTH))
        assert int(spreads[i]) == content * multiplier % MODULUS
    assert not passed.any()


@settings(deadline=None)
@given(tokens, st.integers(0, WIDTH - 1), st.integers(1, 2**32 - 1))
def test_windows_that_differ_in_one_token_have_different_fingerprints(
    window: np.ndarray,
    place: int,
    change: int,
) -> None:
    other = window.copy()
    other[place] ^= np.uint32(change)
    prints = [int(fingerprint(KEYS.fingerprint, FULL, w, 0)) for w in (window, other, window)]
    assert prints[0] == prints[2] != prints[1]


def test_a_fingerprint_is_that_of_the_tokens_wherever_they_stand() -> None:
    query = np.random.default_rng(0).integers(0, 2**32, 1000, np.uint32)
    for start in (0, 1, 7, 1000 - WIDTH):
        alone = query[start : start + WIDTH].copy()
        assert fingerprint(KEYS.fingerprint, FULL, query, start) == fingerprint(
            KEYS.fingerprint, FULL, alone, 0
        )


def test_many_windows_share_no_fingerprint() -> None:
    query = np.random.default_rng(0).integers(0, 3, 50_000, np.uint32)
    windows = {query[i : i + WIDTH].tobytes(): i for i in range(50_000 - WIDTH)}
    prints = {int(fingerprint(KEYS.fingerprint, FULL, query, i)) for i in windows.values()}
    assert len(prints) == len(windows)


def test_digests_of_different_lengths_hash_apart_though_padded_alike() -> None:
    hashes = {int(hash_digest(KEYS.table, *(np.uint64(0),) * 4, np.uint8(length))) for length in range(1, 33)}
    assert len(hashes) == 32


def test_one_seed_gives_one_set_of_keys_and_another_seed_another() -> None:
    again, other = derive_keys(SEED, WIDTH), derive_keys(new_seed(), WIDTH)
    for mine, same, theirs in zip(KEYS, again, other, strict=True):
        assert np.array_equal(mine, same)
        assert mine.dtype == np.uint64
        assert mine is KEYS.scalars or not np.array_equal(mine, theirs)


def test_inverses_undo_powers() -> None:
    inverses = KEYS.inverses * np.uint64(pow(int(KEYS.inverses[0]), -1, MODULUS))
    assert (inverses[:100] * KEYS.powers[:100] == 1).all()


def test_keys_that_cannot_be_made_are_refused() -> None:
    with pytest.raises(ValueError, match=r"32 bytes \(got 3\)"):
        derive_keys(b"abc", WIDTH)
    for bits in (0, 65):
        with pytest.raises(ValueError, match=f"got {bits}"):
            derive_keys(SEED, WIDTH, bits)
