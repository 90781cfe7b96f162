"""Every array of the state reaches the kernels under its own name."""

from __future__ import annotations

from processor.state.entry_kernels import _keys, _tables, make_state
from processor.state.hashing import SEED_BYTES, derive_keys
from processor.state.layout import make_tables

STATE = make_state(make_tables(max_chunks=64, chunk_size=8), derive_keys(bytes(SEED_BYTES), chunk_size=8))


def test_each_table_and_key_arrives_under_its_name_with_its_type_and_shape() -> None:
    for sent, arrived in ((STATE.tables, _tables(STATE.addresses)), (STATE.keys, _keys(STATE.addresses))):
        assert sent._fields == arrived._fields
        for name, ours, theirs in zip(sent._fields, sent, arrived, strict=True):
            assert theirs.ctypes.data == ours.ctypes.data, name
            assert theirs.dtype == ours.dtype, name
            assert theirs.shape[1:] == ours.shape[1:] and len(theirs) >= len(ours), name
