"""JSON from clients, decoded without holding the interpreter for long, and its errors told by their place.

msgspec decodes what is short. A long document is cut at the values of its containers first, by compiled
code that leaves other threads alone, and decoded piece by piece; so is base64. Whatever is wrong becomes a
`RequestError` of status 422 whose `loc` leads to the field, worded as pydantic words it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any, Final, TypeVar

import msgspec
import numpy as np
import pybase64
from numpy.typing import NDArray

from api.http import RequestError, invalid
from processor.service import DecodeError, pieces

WHOLE: Final = 256 * 1024
"""Bytes of a document that is decoded in one call where its long fields are left raw; else it is cut up."""
BASE64_SLICE: Final = 1 << 20
"""Characters of base64 decoded in one call; a multiple of four."""

Loc = tuple[str, ...]
Form = TypeVar("Form", bound=msgspec.Struct)
Result = TypeVar("Result")


def decode(
    decoder: msgspec.json.Decoder[Form],
    document: NDArray[np.uint8],
    fields: tuple[str, ...],
    raw: tuple[str, ...],
) -> Form:
    """Decode an object.

    Args:
        decoder: of a struct.
        document: uint8[n], the text.
        fields: the names of the struct's fields.
        raw: those among them that the struct leaves raw, and that may be of any length.
    """
    if len(document) <= WHOLE:
        whole: Form = decoded(decoder, memoryview(document.data), ("body",))
        return whole
    parts = _cut(lambda: pieces.members(document, pieces.root(document), fields, ()), ("body",))
    short: list[bytes] = []
    for name, (start, end) in parts.items():
        if name in raw:
            continue
        if end - start > pieces.PIECE:
            raise invalid(("body", name), f"Value error, takes more than {pieces.PIECE} bytes")
        short.append(b'"%b":%b' % (name.encode(), document[start:end].tobytes()))
    form: Form = decoded(decoder, b"{%b}" % b",".join(short), ("body",))
    for name in raw:
        if name in parts:
            start, end = parts[name]
            setattr(form, name, msgspec.Raw(memoryview(document.data)[start:end]))
    return form


def items(raw: msgspec.Raw, decoder: msgspec.json.Decoder[list[Result]], loc: Loc) -> Iterator[list[Result]]:
    """The items of an array left raw, in lists of what one call may decode."""
    view = memoryview(raw)
    if len(view) <= pieces.PIECE:
        yield decoded(decoder, view, loc)
        return
    document = np.frombuffer(view, np.uint8)
    if not pieces.is_array(document, (0, len(view))):
        kind, message = _EXPECTED["array"]
        raise invalid(loc, message, kind)
    runs = pieces.runs(document, (0, len(view)), ())
    while run := _cut(lambda: next(runs, None), loc):
        base, spans = run
        if spans[0][1] - spans[0][0] > pieces.PIECE:
            raise invalid((*loc, base), f"Value error, takes more than {pieces.PIECE} bytes")
        yield decoded(decoder, pieces.text_of(document, spans), loc, base)


def base64_decoded(view: memoryview) -> bytes:
    """Decode base64; a `ValueError` says what is wrong with it."""
    if len(view) <= BASE64_SLICE:
        return pybase64.b64decode(view, validate=True)
    slices = [
        pybase64.b64decode(view[start : start + BASE64_SLICE], validate=True)
        for start in range(0, len(view), BASE64_SLICE)
    ]
    if any(len(part) != BASE64_SLICE // 4 * 3 for part in slices[:-1]):
        raise ValueError("padding inside the data")
    return b"".join(slices)


def decoded(decoder: msgspec.json.Decoder[Result], data: Any, loc: Loc, base: int = 0) -> Result:
    """Decode JSON that stands at `loc`; the items of an array are numbered from `base`."""
    try:
        return decoder.decode(data)
    except msgspec.ValidationError as error:
        raise _validation_error(str(error), loc, base) from None
    except msgspec.DecodeError as error:
        raise invalid(loc, f"JSON decode error: {error}", "json_invalid") from None
    except UnicodeDecodeError:
        raise invalid(loc, "JSON decode error: not UTF-8", "json_invalid") from None
    except RecursionError:
        raise invalid(loc, "JSON decode error: nested too deeply", "json_invalid") from None


_STEP = re.compile(r"\.([A-Za-z_]\w*)|\[(\d+)\]|\[\.\.\.\]")
_EXPECTED: Final = {
    "int": ("int_type", "Input should be a valid integer"),
    "str": ("string_type", "Input should be a valid string"),
    "array": ("list_type", "Input should be a valid list"),
    "object": (
        "model_attributes_type",
        "Input should be a valid dictionary or object to extract fields from",
    ),
}


def _validation_error(text: str, loc: Loc, base: int) -> RequestError:
    """msgspec says what it missed and where (`... - at `$.keys[0]``); say it as a pydantic error does."""
    reason, _, path = text.partition(" - at `$")
    steps: list[str | int] = [
        name or int(index) for name, index in _STEP.findall(path.rstrip("`")) if name or index
    ]
    if steps and isinstance(steps[0], int):
        steps[0] += base
    where = [*loc, *steps]
    missing = re.fullmatch(r"Object missing required field `(\w+)`", reason)
    if missing:
        return invalid([*where, missing[1]], "Field required", "missing")
    expected = re.match(r"Expected `(\w+)", reason)
    kind, message = _EXPECTED.get(expected[1] if expected else "", ("value_error", f"Value error, {reason}"))
    return invalid(where, message, kind)


def _cut(call: Callable[[], Result], loc: Loc) -> Result:
    try:
        return call()
    except DecodeError as error:
        raise invalid((*loc, *error.loc), f"JSON decode error: {error.reason}", "json_invalid") from None
