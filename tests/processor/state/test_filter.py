"""The filter: it may pass what was never added, and never withholds what was."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from processor.state.filter_kernels import IDLE, filter_add, filter_bits, filter_drop
from processor.state.hashing import derive_keys
from processor.state.layout import (
    CONTENTS,
    FILTER_ACTIVE,
    FILTER_PHASE,
    FILTER_SHIFT,
    FILTER_VERSION,
    INDEXED_CONTENTS,
    make_tables,
)
from processor.state.table_kernels import free_row, take_row


class Filter:
    """The filter with the table of contents that it is rebuilt from."""

    def __init__(self, max_chunks: int) -> None:
        self.keys = derive_keys(bytes(32), 4)
        self.tables = make_tables(max_chunks, 4)

    def add(self, polynomial: int) -> int:
        contents = self.tables.contents
        row = int(take_row(self.tables, CONTENTS, contents))
        contents[row]["polynomial"] = polynomial
        contents[row]["occupants"] = 1
        self.tables.meta[INDEXED_CONTENTS] += 1
        filter_add(self.tables, self.keys, np.uint64(polynomial))
        return row

    def drop(self, row: int) -> None:
        self.tables.contents[row]["occupants"] = 0
        free_row(self.tables, CONTENTS, self.tables.contents, row)
        self.tables.meta[INDEXED_CONTENTS] -= 1
        filter_drop(self.tables, self.keys)

    def passes(self, polynomials: NDArray[np.uint64]) -> NDArray[np.bool_]:
        meta = self.tables.meta
        spreads = polynomials * self.keys.inverses[0]
        bits = np.array([filter_bits(self.keys.filter_bits, spread) for spread in spreads], np.uint64)
        words = self.tables.filter_words[meta[FILTER_ACTIVE], spreads >> np.uint64(meta[FILTER_SHIFT])]
        passed: NDArray[np.bool_] = (words & bits) == bits
        return passed


def polynomials(count: int, seed: int) -> NDArray[np.uint64]:
    return np.random.default_rng(seed).integers(0, 2**64, count, np.uint64)


def test_whatever_is_added_passes_at_every_stage_of_every_rebuild() -> None:
    built = Filter(1 << 16)
    lasting = polynomials(500, 0)
    for polynomial in lasting:
        built.add(int(polynomial))
    for generation in range(1, 5):
        passing = polynomials(3000, generation)
        rows = []
        for i, polynomial in enumerate(passing):
            rows.append(built.add(int(polynomial)))
            if i % 50 == 0:
                assert built.passes(lasting).all()
                assert built.passes(passing[: i + 1]).all()
        for i, row in enumerate(rows):
            built.drop(row)
            if i % 50 == 0:
                assert built.passes(lasting).all()
                assert built.passes(passing[i + 1 :]).all()
    assert built.tables.meta[FILTER_VERSION] >= 4


def test_few_foreign_windows_pass_and_contents_long_gone_pass_no_more() -> None:
    built = Filter(1 << 16)
    rows = [built.add(int(polynomial)) for polynomial in polynomials(5000, 0)]
    foreign = polynomials(5000, 1)
    assert built.passes(foreign).mean() < 0.05
    for row in rows[500:]:
        built.drop(row)
    kept = [int(polynomial) for polynomial in polynomials(2000, 2)]
    for polynomial in kept:
        built.add(polynomial)
    assert built.tables.meta[FILTER_PHASE] == IDLE
    assert built.passes(polynomials(5000, 0)[500:]).mean() < 0.5
    assert built.passes(polynomials(5000, 0)[:500]).all()
