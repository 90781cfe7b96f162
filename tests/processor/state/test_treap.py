"""The treap of claims against a sorted list."""

from __future__ import annotations

import bisect

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from processor.state.layout import CLAIM, make_tables
from processor.state.treap_kernels import treap_after, treap_insert, treap_remove

Step = tuple[bool, int]


@settings(deadline=None)
@given(st.lists(st.tuples(st.integers(0, 3).map(bool), st.integers(1, 30)), max_size=60), st.integers(0, 3))
def test_it_finds_the_next_one_as_a_sorted_list_does(steps: list[Step], priorities: int) -> None:
    """Row `n` has order `2 * n`; few priorities make ties."""
    claims = np.zeros(32, CLAIM)
    claims["hash"] = np.random.default_rng(priorities).integers(0, 4**priorities, 32)
    claims["order"] = 2 * np.arange(32)
    tables = make_tables(64, 1)._replace(claims=claims)
    held: list[int] = []
    root = 0
    for comes, row in steps:
        if comes and row not in held:
            root = treap_insert(tables, root, row)
            bisect.insort(held, row)
        elif not comes and row in held:
            root = treap_remove(tables, root, row)
            held.remove(row)
        for order in range(-1, 64):
            place = bisect.bisect_right(held, order // 2)
            assert treap_after(claims, root, order) == (held[place] if place < len(held) else 0)
    assert (root == 0) == (not held)


def test_it_stays_shallow_whatever_order_claims_come_in() -> None:
    count = 1 << 14
    claims = np.zeros(count + 1, CLAIM)
    claims["hash"] = np.random.default_rng(0).integers(0, 1 << 32, count + 1)
    claims["order"] = np.arange(count + 1)
    tables = make_tables(64, 1)._replace(claims=claims)
    for rows in (range(1, count + 1), range(count, 0, -1)):
        root = 0
        for row in rows:
            root = treap_insert(tables, root, row)
        assert depth(claims, int(root)) < 60


def depth(claims: np.ndarray[tuple[int], np.dtype[np.void]], root: int) -> int:
    deepest, stack = 0, [(root, 1)]
    while stack:
        row, level = stack.pop()
        deepest = max(deepest, level)
        stack += [(int(child), level + 1) for child in (claims[row]["left"], claims[row]["right"]) if child]
    return deepest
