"""Compiled passes over JSON text: what would hold the GIL for long, done without it.

`lift` goes once over a document and takes the bulk out: arrays of token ids become numbers in an array, long
base64 strings become spans of the text, and in the copy of the document a negative integer stands for each.
It decides nothing about the document otherwise: whatever it does not recognise is copied as it is, and the
JSON decoder that reads the copy finds what is wrong. `children` splits one container into the spans of its
values, so that a decoder can be fed in pieces; it checks the grammar between them and leaves what is in them
to the decoder. `unhex` reads digests.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from processor.kernel import kernel

Bytes = NDArray[np.uint8]
Ints = NDArray[np.int64]

QUOTE, BACKSLASH, COLON, COMMA, MINUS = 34, 92, 58, 44, 45
OPEN_ARRAY, CLOSE_ARRAY, OPEN_OBJECT, CLOSE_OBJECT = 91, 93, 123, 125
ZERO = 48
MAX_ID = 0xFFFFFFFF
BLOCK = 64
MAX_DEPTH = 1000

ARRAY, DROPPED, TEXT = 0, 1, 2
"""What a lifted value was: token ids; token ids that are left out, being too many or too large; a string."""
LIFTED_TEXT = 128
"""Strings at least so long are lifted."""
LIFTED, DOCUMENT, TOKENS, ESCAPED = 0, 1, 2, 3
"""Where `lift` puts its counts: values lifted, bytes of the document, tokens, names spelt with escapes."""

NAMES = ("token_ids", "chunk_hashes", "token_counts", "token_offsets", "chunk", "scope", "kv_rank",
         "object_group_id", "size_bytes")  # fmt: skip
"""The members that are lifted; the first also where it is an array."""
NAME_TEXT: Bytes = np.frombuffer("".join(NAMES).encode(), np.uint8)
NAME_ENDS: Ints = np.cumsum([len(name) for name in NAMES])
NULL: Bytes = np.frombuffer(b"null", np.uint8)

ALL, MALFORMED = -1, -2
"""Where `children` goes on: nowhere, because that was all, or because this is no JSON."""


@kernel
def skip_blanks(text: Bytes, at: int) -> int:
    """The next position that holds no white space."""
    while at < len(text) and (text[at] == 32 or text[at] == 10 or text[at] == 13 or text[at] == 9):
        at += 1
    return at


@kernel
def string_end(text: Bytes, at: int) -> int:
    """The position of the quote that ends the string whose first character is at `at`, or the text's end."""
    n = len(text)
    while at < n:
        # A loop of fixed length over a view becomes vector code; blocks without a quote are stepped over.
        while at + BLOCK <= n:
            block = text[at : at + BLOCK]
            found = np.uint8(0)
            for k in range(BLOCK):
                found |= np.uint8(block[k] == QUOTE) | np.uint8(block[k] == BACKSLASH)
            if found:
                break
            at += BLOCK
        stop = min(n, at + BLOCK)
        while at < stop:
            if text[at] == QUOTE:
                return at
            at += 2 if text[at] == BACKSLASH else 1
    return n


@kernel
def has_backslash(text: Bytes, start: int, stop: int) -> bool:
    """Whether something between `start` and `stop` is spelt with an escape."""
    part = text[start:stop]
    found = np.uint8(0)
    for k in range(len(part)):
        found |= np.uint8(part[k] == BACKSLASH)
    return bool(found)


@kernel
def name_index(text: Bytes, start: int, stop: int, name_text: Bytes, name_ends: Ints) -> int:
    """Which of the names stands from `start` to `stop`, -1 if none."""
    first = 0
    for i in range(len(name_ends)):
        if name_ends[i] - first == stop - start:
            same = True
            for k in range(stop - start):
                same = same and bool(text[start + k] == name_text[first + k])
            if same:
                return i
        first = name_ends[i]
    return -1


@kernel
def read_spaced_ids(text: Bytes, at: int, max_tokens: int, tokens: NDArray[np.uint32], span: Ints) -> int:
    """What `read_ids` does, for an array with white space in it."""
    count = 0
    too_large = False
    at = skip_blanks(text, at)
    empty = at < len(text) and text[at] == CLOSE_ARRAY
    while at < len(text) and not empty:
        start = at
        value = np.uint64(0)
        while at < len(text) and 48 <= text[at] <= 57:
            value = value * np.uint64(10) + np.uint64(text[at] - np.uint8(ZERO))
            at += 1
        length = at - start
        if length == 0 or (length > 1 and text[start] == ZERO):
            return -1
        too_large = too_large or length > 10 or bool(value > np.uint64(MAX_ID))
        tokens[span[1] + count] = np.uint32(value & np.uint64(MAX_ID))
        count += 1
        at = skip_blanks(text, at)
        if at < len(text) and text[at] == CLOSE_ARRAY:
            break
        if at >= len(text) or text[at] != COMMA:
            return -1
        at = skip_blanks(text, at + 1)
    if at >= len(text):
        return -1
    dropped = too_large or count > max_tokens
    span[0] = DROPPED if dropped else ARRAY
    span[2] = span[1] if dropped else span[1] + count
    return at + 1


@kernel
def read_ids(text: Bytes, at: int, max_tokens: int, tokens: NDArray[np.uint32], span: Ints) -> int:
    """Read an array of non-negative integers from behind its bracket; return the position behind it.

    The tokens go to `tokens` from `span[1]` on; `span` becomes `(kind, first, end)`. Returns -1 if the array
    is anything else.
    """
    rest = text[at:]
    out = tokens[span[1] :]
    count = start = 0
    value = np.uint64(0)
    wrong = too_large = False
    # One step a byte, whatever it is: numbers are short, and a loop for each would be left at a guess.
    for i in range(len(rest)):
        digit = np.uint64(rest[i]) - np.uint64(ZERO)
        if digit <= np.uint64(9):
            value = value * np.uint64(10) + digit
        elif rest[i] == COMMA or rest[i] == CLOSE_ARRAY:
            length = i - start
            wrong = wrong or length == 0 or (length > 1 and bool(rest[start] == ZERO))
            # Eleven digits and more may have wrapped.
            too_large = too_large or length > 10 or bool(value > np.uint64(MAX_ID))
            out[count] = np.uint32(value & np.uint64(MAX_ID))
            count += 1
            if rest[i] == CLOSE_ARRAY:
                if i == 0:
                    count, wrong = 0, False
                dropped = too_large or count > max_tokens
                span[0] = DROPPED if dropped else ARRAY
                span[2] = span[1] if dropped else span[1] + count
                return -1 if wrong else at + i + 1
            value = np.uint64(0)
            start = i + 1
        elif rest[i] == 32 or rest[i] == 10 or rest[i] == 13 or rest[i] == 9:
            return read_spaced_ids(text, at, max_tokens, tokens, span)
        else:
            return -1
    return -1


@kernel
def put_number(document: Bytes, at: int, value: int) -> int:
    """Write `-value`; return the position behind it."""
    document[at] = MINUS
    at += 1
    power = 1
    while value // power >= 10:
        power *= 10
    while power > 0:
        document[at] = ZERO + value // power % 10
        at += 1
        power //= 10
    return at


@kernel
def put_text(document: Bytes, at: int, text: Bytes, start: int, stop: int) -> int:
    """Copy `text[start:stop]`; return the position behind the copy."""
    source, target = text[start:stop], document[at : at + stop - start]
    for k in range(len(source)):
        target[k] = source[k]
    return at + len(source)


@kernel
def lift(
    text: Bytes,
    max_tokens: int,
    name_text: Bytes,
    name_ends: Ints,
    null: Bytes,
    document: Bytes,
    spans: Ints,
    tokens: NDArray[np.uint32],
    result: Ints,
) -> None:
    """Copy `text` to `document` with a number `-1 - i` in place of every value lifted, the `i`-th in order.

    Args:
        text: uint8[n], JSON in UTF-8, or anything.
        max_tokens: token ids of one array beyond which it is dropped.
        name_text: the names of the members to lift, end to end.
        name_ends: where each of them ends.
        null: the text of a null.
        document: uint8[2n + 32], out.
        spans: int64[n // 8 + 1, 3], out: kind, and where the value is, in `tokens` or (`TEXT`) in `text`.
        tokens: uint32[n // 2 + 1], out.
        result: int64[4], out, see `LIFTED`.
    """
    n = len(text)
    at = copied = size = lifted = token_count = escaped = 0
    while at < n:
        if text[at] != QUOTE:
            at += 1
            continue
        key = at + 1
        key_end = string_end(text, key)
        at = skip_blanks(text, key_end + 1)
        if at >= n or text[at] != COLON:
            continue
        escaped |= has_backslash(text, key, key_end)
        at = skip_blanks(text, at + 1)
        if at >= n:
            continue
        value = at
        kind = text[value]
        if kind == OPEN_ARRAY:
            at += 1
            if name_index(text, key, key_end, name_text, name_ends) == 0:
                spans[lifted, 1] = token_count
                end = read_ids(text, at, max_tokens, tokens, spans[lifted])
                if end >= 0:
                    token_count = spans[lifted, 2]
                    size = put_text(document, size, text, copied, value)
                    size = put_number(document, size, lifted + 1)
                    lifted += 1
                    at = copied = end
        elif kind == QUOTE:
            end = string_end(text, value + 1)
            at = end + 1
            if (
                end < n
                and end - value > LIFTED_TEXT
                and not has_backslash(text, value + 1, end)
                and name_index(text, key, key_end, name_text, name_ends) >= 0
            ):
                spans[lifted, 0], spans[lifted, 1], spans[lifted, 2] = TEXT, value + 1, end
                size = put_text(document, size, text, copied, value)
                size = put_number(document, size, lifted + 1)
                lifted += 1
                copied = at
        elif kind == MINUS and name_index(text, key, key_end, name_text, name_ends) >= 0:
            # No such member is ever negative, and this one must not pass for a lifted value.
            size = put_text(document, size, text, copied, value)
            size = put_text(document, size, null, 0, len(null))
            while at < n and (
                text[at] == MINUS or 46 <= text[at] <= 57 or text[at] | 32 == 101 or text[at] == 43
            ):
                at += 1
            copied = at
    size = put_text(document, size, text, copied, n)
    result[LIFTED], result[DOCUMENT], result[TOKENS], result[ESCAPED] = lifted, size, token_count, escaped


@kernel
def value_end(text: Bytes, at: int) -> int:
    """The position behind the value that begins at `at`, -1 if it does not end. Only counts brackets."""
    n = len(text)
    if text[at] == QUOTE:
        end = string_end(text, at + 1)
        return end + 1 if end < n else -1
    depth = 0
    start = at
    while at < n:
        c = text[at]
        if c == QUOTE:
            at = string_end(text, at + 1)
        elif c in (OPEN_ARRAY, OPEN_OBJECT):
            depth += 1
            if depth > MAX_DEPTH:
                return -1
        elif c in (CLOSE_ARRAY, CLOSE_OBJECT):
            if depth == 0:
                break
            depth -= 1
            if depth == 0:
                return at + 1
        elif depth == 0 and (c == COMMA or c <= 32):
            break
        at += 1
    return at if depth == 0 and start < at < n else -1


@kernel
def children(text: Bytes, at: int, spans: Ints, state: Ints) -> None:
    """Find the values in the container that begins at `at`, or go on where `state` says.

    Args:
        text: uint8[n].
        at: the position of the opening bracket, or -1 to go on.
        spans: int64[m, 4], out: of each value its key's first and end position (0 in an array) and its own.
        state: int64[3]: how many values were found, where to go on or `ALL` or `MALFORMED`, and the closing
            bracket awaited.
    """
    n = len(text)
    found = 0
    if at >= 0:
        state[2] = CLOSE_OBJECT if text[at] == OPEN_OBJECT else CLOSE_ARRAY
        at = skip_blanks(text, at + 1)
        if at < n and text[at] == state[2]:
            state[0], state[1] = 0, ALL
            return
    else:
        at = state[1]
    while found < len(spans):
        state[0], state[1] = found, MALFORMED
        key = key_end = 0
        at = skip_blanks(text, at)
        if state[2] == CLOSE_OBJECT:
            if at >= n or text[at] != QUOTE:
                return
            key, key_end = at + 1, string_end(text, at + 1)
            at = skip_blanks(text, key_end + 1)
            if at >= n or text[at] != COLON:
                return
            at = skip_blanks(text, at + 1)
        if at >= n:
            return
        end = value_end(text, at)
        if end < 0:
            return
        spans[found, 0], spans[found, 1], spans[found, 2], spans[found, 3] = key, key_end, at, end
        found += 1
        at = skip_blanks(text, end)
        if at >= n or (text[at] != COMMA and text[at] != state[2]):
            return
        if text[at] == state[2]:
            state[0], state[1] = found, ALL
            return
        at += 1
    state[0], state[1] = found, at


@kernel
def unhex(text: Bytes, lengths: Ints, digests: NDArray[Any], digest_lengths: Bytes) -> int:
    """Read hexadecimal digests that stand end to end.

    Args:
        text: uint8[sum of lengths], ASCII.
        lengths: int64[n], characters of each.
        digests: uint8[n, m], out, zero beyond each digest.
        digest_lengths: uint8[n], out, bytes of each.

    Returns:
        The index of the first that is not 1 to m bytes in hexadecimal, -1 if all are.
    """
    at = 0
    for i in range(len(lengths)):
        size = lengths[i] // 2
        if lengths[i] % 2 or size < 1 or size > digests.shape[1]:
            return i
        for k in range(size):
            byte = 0
            for c in text[at : at + 2]:
                if 48 <= c <= 57:
                    byte = byte * 16 + c - 48
                elif 97 <= c <= 102:
                    byte = byte * 16 + c - 87
                elif 65 <= c <= 70:
                    byte = byte * 16 + c - 55
                else:
                    return i
            digests[i, k] = byte
            at += 2
        digest_lengths[i] = size
    return -1
