"""Where in a document something is wrong, and what should have stood there, as told to whoever sent it."""

from __future__ import annotations

import json
from typing import Any

import pytest

from processor.ingest import wire_forms
from processor.ingest.wire_forms import DecodeError, read

KEY = {"chunk_hash_hex": "00", "model_name": "m", "kv_rank": 1}
FROM_0 = "must be an integer from 0 to "


@pytest.mark.parametrize(
    ("loc", "said"),
    [
        ((), "is wrong"),
        (("batches",), "batches: is wrong"),
        (("batches", 3, "entries", 0, "key"), "batches[3].entries[0].key: is wrong"),
        ((0, "key"), "[0].key: is wrong"),
    ],
)
def test_an_error_says_where_and_what(loc: wire_forms.Loc, said: str) -> None:
    error = DecodeError(loc, "is wrong")
    assert (str(error), error.loc, error.reason) == (said, loc, "is wrong")


def refused(entries: list[Any], base: int = 0) -> DecodeError:
    with pytest.raises(DecodeError) as caught:
        read(wire_forms.ENTRIES, json.dumps(entries), ("batches", 2, "entries"), base)
    return caught.value


@pytest.mark.parametrize(
    ("entry", "where", "reason"),
    [
        ({"key": {**KEY, "kv_rank": -1}}, ("key", "kv_rank"), FROM_0 + str(2**64 - 1)),
        ({"key": {**KEY, "object_group_id": 2**32}}, ("key", "object_group_id"), FROM_0 + str(2**32 - 1)),
        ({"key": KEY, "size_bytes": -1}, ("size_bytes",), FROM_0 + str(2**63 - 1)),
        ({"key": KEY, "token_ids": 5}, ("token_ids",), "must be an array of integers >= 0"),
        ({"key": {"model_name": "m", "kv_rank": 1}}, ("key", "chunk_hash_hex"), "is required"),
        ({}, ("key",), "is required"),
    ],
)  # fmt: skip
def test_an_entry_outside_the_contract_is_told_by_its_place_and_the_wire_s_own_words(
    entry: dict[str, Any], where: wire_forms.Loc, reason: str
) -> None:
    error = refused([{"key": KEY}, entry])
    assert (error.loc, error.reason) == (("batches", 2, "entries", 1, *where), reason)


def test_the_items_of_a_piece_are_numbered_as_those_of_the_whole() -> None:
    assert refused([{"key": KEY}, {}], base=500).loc == ("batches", 2, "entries", 501, "key")


def test_a_fault_of_the_json_is_told_without_the_byte_of_a_document_nobody_has() -> None:
    with pytest.raises(DecodeError) as caught:
        read(wire_forms.ENTRIES, b"[{]", ("here",))
    assert caught.value.loc == ("here",)
    assert "byte" not in caught.value.reason


def test_nesting_beyond_what_a_decoder_follows_is_told_as_that() -> None:
    with pytest.raises(DecodeError, match="is nested too deeply"):
        read(wire_forms.ENTRIES, '[{"x": ' + "[" * 10_000 + "]" * 10_000 + "}]")


def test_bytes_that_are_no_utf_8_are_refused() -> None:
    with pytest.raises(DecodeError):
        read(wire_forms.ENTRIES, b'[{"key": {"model_name": "\xff"}}]')


def test_a_column_should_be_base64_whatever_a_lifted_one_looks_like() -> None:
    columns = dict.fromkeys(wire_forms.ColumnsForm.__struct_fields__[2:], "")
    text = json.dumps([{
        "instance_id": "a", "incarnation": 1, "seq": 1, "event_type": "store", "tier": "l1", "backend": "x",
        "columns": {"scopes": [], "hash_len": 32, **columns, "chunk": 3},
    }])  # fmt: skip
    with pytest.raises(DecodeError) as caught:
        read(wire_forms.BATCHES, text, ("batches",))
    assert caught.value.loc == ("batches", 0, "columns", "chunk")
    assert caught.value.reason == "must be a string of base64"
