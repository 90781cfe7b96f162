"""The bulk of a document, taken out and resolved: numbers for values, tokens and base64 where they stood."""

from __future__ import annotations

import base64
import json
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from processor.ingest import lifting
from processor.ingest.decode_kernels import LIFTED_TEXT
from processor.ingest.lifting import Lift
from processor.ingest.wire_forms import DecodeError

untimed = settings(deadline=None)  # the first call compiles the kernels
MAX_TOKENS = 8
PLACE = ("batches", 0)
LONG = "A" * LIFTED_TEXT
"""Shorter strings are left where they are."""


def lift(said: Any) -> tuple[Lift, Any]:
    """A document gone over, and what a decoder makes of what is left."""
    lifted = Lift(json.dumps(said).encode(), MAX_TOKENS)
    return lifted, json.loads(lifted.document.tobytes())


def test_token_ids_and_long_columns_give_way_to_negative_numbers_and_all_else_stays() -> None:
    said = {"seq": 5, "token_ids": [1, 2], "kv_rank": LONG, "size_bytes": 7, "scope": "AAAA", "model": LONG}
    _, left = lift(said)
    assert left == {**said, "token_ids": -1, "kv_rank": -2}


def test_the_tokens_of_entries_come_as_one_array_with_where_each_begins() -> None:
    lifted, left = lift([{"token_ids": [7, 8]}, {}, {"token_ids": []}, {"token_ids": [9]}])
    numbers = np.array([entry.get("token_ids", 0) for entry in left])
    starts, tokens, dropped = lifted.tokens(numbers, PLACE)
    assert (starts.tolist(), tokens.tolist(), dropped) == ([0, 2, 2, 2, 3], [7, 8, 9], 0)
    assert tokens.dtype == np.uint32


@untimed
@given(st.lists(st.lists(st.integers(0, 2**32 - 1), max_size=MAX_TOKENS), max_size=8), st.randoms())
def test_tokens_are_resolved_for_any_choice_of_entries(said: list[list[int]], random: Any) -> None:
    lifted, left = lift([{"token_ids": ids} for ids in said])
    chosen = [random.randrange(len(said)) for _ in said]
    starts, tokens, dropped = lifted.tokens(
        np.array([left[index]["token_ids"] for index in chosen], np.int64), PLACE
    )
    assert dropped == 0
    assert [tokens[a:b].tolist() for a, b in pairwise(starts)] == [said[index] for index in chosen]


@pytest.mark.parametrize("ids", [[2**32], list(range(MAX_TOKENS + 1))])
def test_tokens_beyond_the_limits_cost_their_entry_its_tokens_alone(ids: list[int]) -> None:
    lifted, left = lift([{"token_ids": [1]}, {"token_ids": ids}, {"token_ids": [2]}])
    starts, tokens, dropped = lifted.tokens(np.array([entry["token_ids"] for entry in left]), PLACE)
    assert (starts.tolist(), tokens.tolist(), dropped) == ([0, 1, 1, 2], [1, 2], 1)


def test_a_string_where_tokens_should_be_is_told_with_its_entry() -> None:
    lifted, left = lift([{"token_ids": [1]}, {"token_ids": LONG}])
    with pytest.raises(DecodeError, match="must be an array of integers >= 0") as caught:
        lifted.tokens(np.array([entry["token_ids"] for entry in left]), PLACE)
    assert caught.value.loc == ("batches", 0, "entries", 1, "token_ids")


@untimed
@given(st.binary(max_size=200))
def test_a_column_is_decoded_whether_lifted_or_not(raw: bytes) -> None:
    text = base64.b64encode(raw).decode()
    lifted, left = lift({"chunk": text})
    assert lifted.blob(left["chunk"], PLACE).tobytes() == raw
    assert lifted.blob(text, PLACE).tobytes() == raw


@untimed
@given(st.binary(max_size=200))
def test_a_long_column_is_decoded_slice_by_slice(raw: bytes) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(lifting, "BASE64_SLICE", 8)
        lifted, left = lift({"chunk": base64.b64encode(raw).decode()})
        assert lifted.blob(left["chunk"], PLACE).tobytes() == raw


@pytest.mark.parametrize(
    "text", ["A", "AAA", "AA=A", "====", "A AA", "AAA!", "AAAA=", "AA==AAAA", "AAAAAA==AAAA"]
)
@pytest.mark.parametrize("slice_of", [4, 1 << 20])
def test_what_is_no_base64_is_refused_whatever_slices_it_is_read_in(
    text: str, slice_of: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lifting, "BASE64_SLICE", slice_of)
    text = LONG + text
    lifted, left = lift({"chunk": text})
    assert left["chunk"] == -1
    with pytest.raises(DecodeError, match="is no base64") as caught:
        lifted.blob(left["chunk"], (*PLACE, "columns", "chunk"))
    assert caught.value.loc == ("batches", 0, "columns", "chunk")


def test_an_array_where_base64_should_be_is_refused() -> None:
    lifted, left = lift({"token_ids": [1, 2]})
    with pytest.raises(DecodeError, match="must be a string of base64"):
        lifted.blob(left["token_ids"], PLACE)


def test_names_spelt_with_escapes_are_found_in_documents_of_moderate_size(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    text = rb'{"token\u005fids": [3, 4]}'
    lifted = Lift(text, MAX_TOKENS)
    left = json.loads(lifted.document.tobytes())
    assert left == {"token_ids": -1}
    assert lifted.tokens(np.array([-1]), PLACE)[1].tolist() == [3, 4]
    monkeypatch.setattr(lifting, "MAX_ESCAPED", len(text) - 1)
    with pytest.raises(DecodeError, match="names with escapes"):
        Lift(text, MAX_TOKENS)


@pytest.mark.parametrize("text", [rb'{"\u005f": ', b'{"\\u005f": ' + b"[" * 5_000 + b"]" * 5_000 + b"}"])
def test_a_document_with_escapes_that_cannot_be_read_is_refused(text: bytes) -> None:
    with pytest.raises(DecodeError):
        Lift(text, MAX_TOKENS)
