"""Token bindings are remembered in order of use and go in bulk."""

from __future__ import annotations

import numpy as np
import pytest

from producer.bindings import UNBOUND, TokenBindings
from producer.events import TokenIds


def tokens(first: int) -> TokenIds:
    return np.arange(first, first + 3, dtype=np.uint32)


def digest(i: int) -> bytes:
    return i.to_bytes(4, "big")


def filled(capacity: int, count: int) -> TokenBindings:
    bindings = TokenBindings(capacity)
    for i in range(count):
        bindings.bind(digest(i), tokens(i), i)
    return bindings


def test_a_binding_is_found_as_often_as_it_is_asked_for() -> None:
    bindings = filled(8, 3)
    for _ in range(2):
        found, offset = bindings.find(digest(1))
        assert found.tolist() == [1, 2, 3]
        assert offset == 1


def test_an_unknown_chunk_is_unbound() -> None:
    assert filled(8, 3).find(digest(9)) is UNBOUND


def test_a_newer_binding_takes_the_place_of_an_older() -> None:
    bindings = filled(8, 3)
    bindings.bind(digest(1), tokens(7), 7)
    assert bindings.find(digest(1))[1] == 7
    assert len(bindings) == 3


def test_one_more_than_the_bound_evicts_down_to_half_of_it() -> None:
    bindings = filled(8, 8)
    assert (len(bindings), bindings.evicted) == (8, 0)
    bindings.bind(digest(8), tokens(8), 8)
    assert (len(bindings), bindings.evicted) == (4, 5)
    assert [i for i in range(9) if bindings.find(digest(i)) is not UNBOUND] == [5, 6, 7, 8]


def test_what_was_used_last_is_kept() -> None:
    bindings = filled(8, 8)
    bindings.find(digest(0))
    bindings.bind(digest(8), tokens(8), 8)
    assert [i for i in range(9) if bindings.find(digest(i)) is not UNBOUND] == [0, 6, 7, 8]


def test_a_bound_of_none_is_refused() -> None:
    with pytest.raises(ValueError, match="at least 1, got 0"):
        TokenBindings(0)
