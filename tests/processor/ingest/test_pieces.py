"""Documents cut at the values of their containers: what a piece is, and what is malformed between pieces."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from processor.ingest import pieces
from processor.ingest.pieces import Document, is_array, is_object, members, root, runs, text_of
from processor.ingest.wire_forms import DecodeError

untimed = settings(deadline=None)  # the first call compiles the kernels
values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=4), inner, max_size=4),
    max_leaves=12,
)


def document(text: str) -> Document:
    return np.frombuffer(text.encode(), np.uint8)


def at(whole: Document, span: tuple[int, int]) -> Any:
    return json.loads(whole[span[0] : span[1]].tobytes())


def items(whole: Document) -> list[tuple[int, list[Any]]]:
    """The runs of the array that the document is, decoded."""
    return [
        (first, json.loads(text_of(whole, spans))) for first, spans in runs(whole, (0, len(whole)), ("here",))
    ]


def test_the_root_is_the_object_without_the_blanks_around_it() -> None:
    assert root(document(' \n{"a": [1]} \t')) == (2, 12)


@pytest.mark.parametrize("text", ["", "  ", "[1]", "3", '"{}"', "null"])
def test_what_is_no_object_is_no_root(text: str) -> None:
    with pytest.raises(DecodeError, match="must be an object"):
        root(document(text))


@pytest.mark.parametrize("text", ["{", '{"a": "}', "{} {}", "{}x"])
def test_a_root_that_does_not_end_or_is_followed_by_something_is_malformed(text: str) -> None:
    with pytest.raises(DecodeError, match="JSON is malformed"):
        root(document(text))


def test_arrays_and_objects_are_told_by_how_they_begin() -> None:
    whole = document('[{"a": 1}, [2], 3]')
    spans = [span for _, run in runs(whole, (0, len(whole)), ()) for span in run]
    assert [(is_array(whole, span), is_object(whole, span)) for span in spans] == [
        (False, True),
        (True, False),
        (False, False),
    ]


def test_only_the_members_asked_for_are_found_and_of_two_the_last() -> None:
    whole = document('{ "seq" : 1, "other": {"seq": 9}, "entries":[ 2 ,3], "seq":4 }')
    found = members(whole, root(whole), {"seq", "entries", "absent"}, ())
    assert {name: at(whole, span) for name, span in found.items()} == {"seq": 4, "entries": [2, 3]}


def test_a_name_that_only_begins_like_one_asked_for_is_another() -> None:
    whole = document('{"seqs": 1, "se": 2}')
    assert members(whole, root(whole), {"seq"}, ()) == {}


@untimed
@given(st.dictionaries(st.sampled_from(["seq", "entries", "x", "ü", ""]), values), st.sampled_from([None, 1]))
def test_members_of_any_object_are_what_a_decoder_finds(said: dict[str, Any], indent: int | None) -> None:
    whole = document(json.dumps(said, ensure_ascii=False, indent=indent))
    found = members(whole, root(whole), {"seq", "entries"}, ())
    expected = {name: value for name, value in said.items() if name in ("seq", "entries")}
    assert {name: at(whole, span) for name, span in found.items()} == expected


@untimed
@given(st.lists(values, max_size=20), st.sampled_from([None, 1]), st.integers(1, 60))
def test_the_runs_of_any_array_make_it_up_and_no_run_of_several_is_too_long(
    said: list[Any], indent: int | None, size: int
) -> None:
    whole = document(json.dumps(said, indent=indent))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pieces, "PIECE", size)
        cut = items(whole)
        longest = [
            spans[-1][1] - spans[0][0] for _, spans in runs(whole, (0, len(whole)), ()) if len(spans) > 1
        ]
    assert [value for _, run in cut for value in run] == said
    counts = [len(run) for _, run in cut]
    assert [first for first, _ in cut] == [sum(counts[:i]) for i in range(len(counts))]
    assert all(length <= size for length in longest)


def test_items_are_numbered_on_where_more_come_than_are_looked_at_in_one_go(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(pieces, "_SPANS", 4)
    whole = document(json.dumps(list(range(11))))
    assert [(first, run) for first, run in items(whole)] == [
        (0, [0, 1, 2, 3]),
        (4, [4, 5, 6, 7]),
        (8, [8, 9, 10]),
    ]


@pytest.mark.parametrize("text", ["[1,]", "[1 2]", "[,1]", "[1", "[1}", '["a]'])
def test_a_malformed_array_is_refused_where_it_stands(text: str) -> None:
    with pytest.raises(DecodeError, match="JSON is malformed") as caught:
        items(document(text))
    assert caught.value.loc == ("here",)


@pytest.mark.parametrize("text", ['{"a" 1}', "{1: 2}", '{"a": }', '{"a": 1,}', '{"a": 1'])
def test_a_malformed_object_is_refused_where_it_stands(text: str) -> None:
    whole = document(text)
    with pytest.raises(DecodeError, match="JSON is malformed") as caught:
        members(whole, (0, len(whole)), {"a"}, ("there",))
    assert caught.value.loc == ("there",)


def test_an_empty_array_has_no_runs() -> None:
    assert items(document("[ ]")) == []
