"""A document whose bulk has been taken out of it, and the bulk.

`Lift` holds what the compiled pass left: the document with a negative number in place of each lifted value,
the token ids as one array, and where the base64 strings stand in the original text. Numbers are resolved
here and nowhere else.
"""

from __future__ import annotations

import binascii

import msgspec
import numpy as np
import pybase64
from numpy.typing import NDArray

from processor.ingest import decode_kernels as kernels
from processor.ingest.wire_forms import DecodeError, Loc

MAX_ESCAPED = 1 << 20
"""Bytes of a document up to which names of members may be spelt with escapes."""
BASE64_SLICE = 1 << 20
"""Characters of base64 decoded in one call; a multiple of four."""


class Lift:
    """A document with the bulk lifted out.

    Attributes:
        document: uint8[n], JSON if the original was.
    """

    def __init__(self, text: bytes, max_tokens: int) -> None:
        result = self._run(text, max_tokens)
        if result[kernels.ESCAPED]:
            # A name spelt with escapes would go unnoticed. No encoder does that, so it may cost a detour.
            if len(text) > MAX_ESCAPED:
                raise DecodeError((), f"names with escapes in a document of more than {MAX_ESCAPED} bytes")
            try:
                text = msgspec.json.encode(msgspec.json.decode(text))
            except RecursionError:
                raise DecodeError((), "is nested too deeply") from None
            except (msgspec.MsgspecError, ValueError) as error:
                raise DecodeError((), str(error)) from None
            self._run(text, max_tokens)

    def _run(self, text: bytes, max_tokens: int) -> NDArray[np.int64]:
        n = len(text)
        document = np.empty(2 * n + 32, np.uint8)
        spans = np.empty((n // 8 + 1, 3), np.int64)
        tokens = np.empty(n // 2 + 1, np.uint32)
        result = np.zeros(4, np.int64)
        kernels.lift(
            np.frombuffer(text, np.uint8),
            max_tokens,
            kernels.NAME_TEXT,
            kernels.NAME_ENDS,
            kernels.NULL,
            document,
            spans,
            tokens,
            result,
        )
        self._text = memoryview(text)
        self.document = document[: result[kernels.DOCUMENT]]
        self._spans = spans[: result[kernels.LIFTED]]
        self._tokens = tokens[: result[kernels.TOKENS]]
        return result

    def tokens(
        self, numbers: NDArray[np.int64], loc: Loc
    ) -> tuple[NDArray[np.int64], NDArray[np.uint32], int]:
        """Resolve the `token_ids` of the entries of a batch, 0 where there are none.

        Returns:
            int64[n + 1] where each entry's tokens begin, uint32[t] the tokens, how many entries lost theirs.
        """
        index = -1 - numbers
        given = np.flatnonzero(index >= 0)
        lifted = self._spans[index[given]]
        wrong = np.flatnonzero(lifted[:, 0] == kernels.TEXT)
        if len(wrong):
            raise DecodeError(
                (*loc, "entries", int(given[wrong[0]]), "token_ids"), "must be an array of integers >= 0"
            )
        firsts, counts = lifted[:, 1], lifted[:, 2] - lifted[:, 1]
        starts = np.zeros(len(index) + 1, np.int64)
        starts[given + 1] = counts
        np.cumsum(starts, out=starts)
        dropped = int(np.count_nonzero(lifted[:, 0] == kernels.DROPPED))
        total = int(starts[-1])
        if total == 0:
            return starts, self._tokens[:0], dropped
        filled = counts > 0
        origin = int(firsts[filled][0])
        if np.array_equal(firsts[filled], origin + starts[given[filled]]):
            return starts, self._tokens[origin : origin + total], dropped
        # Something between the entries was lifted too, such as a member given twice.
        parts = [self._tokens[first : first + count] for first, count in zip(firsts, counts, strict=True)]
        return starts, np.concatenate(parts), dropped

    def blob(self, value: str | int, loc: Loc) -> NDArray[np.uint8]:
        """Decode a column's base64, lifted or not, to bytes."""
        try:
            if isinstance(value, str):
                return np.frombuffer(pybase64.b64decode(value, validate=True), np.uint8)
            kind, start, end = self._spans[-1 - value].tolist()
            if kind != kernels.TEXT:
                raise DecodeError(loc, "must be a string of base64")
            return _decode_base64(self._text[start:end])
        except (binascii.Error, ValueError) as error:
            if isinstance(error, DecodeError):
                raise
            raise DecodeError(loc, f"is no base64: {error}") from None


def _decode_base64(text: memoryview) -> NDArray[np.uint8]:
    """Decode in slices, as one call would hold the GIL."""
    if len(text) <= BASE64_SLICE:
        return np.frombuffer(pybase64.b64decode(text, validate=True), np.uint8)
    decoded = np.empty(len(text) // 4 * 3, np.uint8)
    at = 0
    for start in range(0, len(text), BASE64_SLICE):
        raw = pybase64.b64decode(text[start : start + BASE64_SLICE], validate=True)
        if start + BASE64_SLICE < len(text) and len(raw) != BASE64_SLICE // 4 * 3:
            raise ValueError("padding before the end")
        decoded[at : at + len(raw)] = np.frombuffer(raw, np.uint8)
        at += len(raw)
    return decoded[:at]
