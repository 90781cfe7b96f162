"""Large JSON documents a piece at a time.

One call of a JSON decoder holds the GIL to its end, so a large document is cut at the values of its
containers: runs of an array's items, each small enough for one call, and the members of an object one by
one. The cutting itself is compiled and holds nothing. What a piece contains is checked by the decoder that
reads it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator

import numpy as np
from numpy.typing import NDArray

from processor.ingest import decode_kernels as kernels
from processor.ingest.wire_forms import DecodeError, Loc

PIECE = 128 * 1024
"""Bytes of a piece: what a decoder reads in about a quarter of a millisecond."""
_SPANS = 4096

Span = tuple[int, int]
"""Where a value begins, and where it has ended."""
Document = NDArray[np.uint8]


def root(document: Document) -> Span:
    """The span of the object that the document is."""
    start = kernels.skip_blanks(document, 0)
    if start == len(document) or document[start] != kernels.OPEN_OBJECT:
        raise DecodeError((), "must be an object")
    end = kernels.value_end(document, start)
    if end < 0 or kernels.skip_blanks(document, end) != len(document):
        raise DecodeError((), "JSON is malformed")
    return start, end


def is_array(document: Document, span: Span) -> bool:
    """Whether the value is an array."""
    return bool(document[span[0]] == kernels.OPEN_ARRAY)


def is_object(document: Document, span: Span) -> bool:
    """Whether the value is an object."""
    return bool(document[span[0]] == kernels.OPEN_OBJECT)


def members(document: Document, span: Span, names: Collection[str], loc: Loc) -> dict[str, Span]:
    """The spans of those members of an object that have one of `names`; of members given twice, the last."""
    wanted = {name.encode(): name for name in names}
    longest = max(map(len, wanted))
    found: dict[str, Span] = {}
    for spans in _children(document, span, loc):
        short = spans[spans[:, 1] - spans[:, 0] <= longest]
        for key, key_end, start, end in short.tolist():
            name = wanted.get(document[key:key_end].tobytes())
            if name is not None:
                found[name] = (start, end)
    return found


def runs(document: Document, span: Span, loc: Loc) -> Iterator[tuple[int, list[Span]]]:
    """The items of an array in runs of at most `PIECE` bytes; a longer item makes a run by itself.

    Yields:
        The index of the run's first item, and the spans of its items.
    """
    base = 0
    for spans in _children(document, span, loc):
        starts, ends = spans[:, 2], spans[:, 3]
        first = 0
        while first < len(spans):
            stop = max(first + 1, int(np.searchsorted(ends, starts[first] + PIECE, "right")))
            yield base + first, [(start, end) for start, end in spans[first:stop, 2:].tolist()]
            first = stop
        base += len(spans)


def text_of(document: Document, items: list[Span]) -> bytes:
    """A run of an array's items as an array of its own."""
    return b"[" + document[items[0][0] : items[-1][1]].tobytes() + b"]"


def _children(document: Document, span: Span, loc: Loc) -> Iterator[NDArray[np.int64]]:
    state = np.zeros(3, np.int64)
    at = span[0]
    part = document[: span[1]]
    while True:
        spans = np.empty((_SPANS, 4), np.int64)
        kernels.children(part, at, spans, state)
        if state[1] == kernels.MALFORMED:
            raise DecodeError(loc, "JSON is malformed")
        yield spans[: state[0]]
        if state[1] == kernels.ALL:
            return
        at = -1
