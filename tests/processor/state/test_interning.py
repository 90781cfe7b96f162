"""Names as numbers: dense, used again, and for instances in alphabetical order."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from processor.state.interning import Interner, RankedNames, StateFull
from processor.state.layout import INSTANCE


def test_a_name_keeps_its_number_until_nothing_refers_to_it() -> None:
    names: Interner[str] = Interner(10, "model")
    assert [names.intern(name) for name in ("a", "b", "a", "c")] == [1, 2, 1, 3]
    assert names.sweep(np.array([0, 1, 0, 1], np.int64)) == [(2, "b")]
    assert (names.find("a"), names.find("b"), names.find("c")) == (1, 0, 3)
    assert names.intern("d") == 2
    assert (len(names), names.names) == (3, [None, "a", "d", "c"])


def test_finding_a_name_gives_it_no_number() -> None:
    names: Interner[str] = Interner(10, "model")
    assert names.find("a") == 0
    assert len(names) == 0


def test_a_name_too_many_is_refused_by_name_and_those_there_stay() -> None:
    names: Interner[str] = Interner(3, "model")
    names.intern("a")
    names.intern("b")
    with pytest.raises(StateFull, match="model 'c': 2 are in use"):
        names.intern("c")
    assert names.intern("b") == 2


changes = st.lists(st.tuples(st.booleans(), st.text("aäbz", min_size=1, max_size=3)), max_size=40)


@settings(deadline=None)
@given(changes)
def test_ranks_follow_the_alphabet_whatever_comes_and_goes(changes: list[tuple[bool, str]]) -> None:
    rows = np.zeros(64, INSTANCE)
    names = RankedNames(64, "instance", rows)
    held: set[str] = set()
    for comes, name in changes:
        if comes:
            rows[names.intern(name)]["refs"] = 1
            held.add(name)
        elif name in held:
            rows[names.find(name)]["refs"] = 0
            held.remove(name)
            names.sweep(rows["refs"])
        assert len(names) == len(held)
        by_rank = sorted(held, key=lambda name: int(rows[names.find(name)]["rank"]))
        assert by_rank == sorted(held)
        assert len({int(rows[names.find(name)]["rank"]) for name in held}) == len(held)
