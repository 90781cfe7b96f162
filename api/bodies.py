"""The request bodies, decoded and checked.

Small fields are decoded by msgspec into the structs below. Long ones (token arrays, base64) are left raw
there, so that no single call holds the interpreter for long, and are decoded in slices. Whatever is
wrong with a body is a `RequestError` with the status that LMCache's coordinator answers: 422 with the
field, or 400 for what it only finds once the body is well-formed.
"""

from __future__ import annotations

import binascii
import re
from collections.abc import Callable, Iterator
from typing import Any, Final, TypeVar

import msgspec
import numpy as np
import pybase64
from numpy.typing import NDArray

from api.http import RequestError, invalid
from processor.service import DecodeError, pieces
from producer.events import MAX_WORLD_SIZE, ContractError, Namespace, ObjectKey

MAX_TOKEN_IDS: Final = 1_000_000
MAX_KEYS: Final = 200_000
"""Most keys of one lookup; as many fit into a body of 32 MB."""
WHOLE_BODY: Final = 256 * 1024
"""Bytes of a body that is decoded in one call, its long fields left raw; a longer one is cut up first."""
BASE64_SLICE: Final = 1 << 20
"""Characters of base64 decoded in one call; a multiple of four."""
EMPTY: Final = msgspec.Raw(b"[]")

QUOTE: Final = ord('"')
LONG_FIELDS: Final = ("keys", "token_ids", "tokens_b64")
"""Fields that may be of any length."""

Body = TypeVar("Body", bound=msgspec.Struct)
Result = TypeVar("Result")


class EncodedKey(msgspec.Struct, frozen=True):
    """A key as the wire has it."""

    chunk_hash_hex: str
    model_name: str
    kv_rank: int
    object_group_id: int = 0
    cache_salt: str = ""


class LookupBody(msgspec.Struct):
    """Body of `POST /directory/lookup`: `keys`, or `token_ids` with their namespace."""

    keys: msgspec.Raw = EMPTY
    token_ids: msgspec.Raw = EMPTY
    model_name: str = ""
    world_size: int = 1
    cache_salt: str = ""


class BlendLookupBody(msgspec.Struct):
    """Body of `POST /directory/blend-lookup` in JSON."""

    tokens_b64: msgspec.Raw = msgspec.Raw(b'""')
    model_name: str = ""
    world_size: int = 1
    cache_salt: str = ""


class AcceptLossBody(msgspec.Struct):
    """Body of `POST /streams/{id}/accept-loss`: which ranges; without a field, all."""

    incarnation: int | None = None
    first: int | None = None
    last: int | None = None


_decoders: dict[Any, msgspec.json.Decoder[Any]] = {
    kind: msgspec.json.Decoder(kind, strict=False) for kind in (LookupBody, BlendLookupBody, AcceptLossBody)
}
_keys_decoder = msgspec.json.Decoder(list[EncodedKey], strict=False)
_tokens_decoder = msgspec.json.Decoder(list[int], strict=False)
_text_decoder = msgspec.json.Decoder(str)


def decode(kind: type[Body], body: bytes) -> Body:
    """Decode a JSON body into one of the structs of this module."""
    if not body.strip():
        raise invalid(("body",), "Field required", "missing")
    if len(body) > WHOLE_BODY:
        return _decode_cut_up(kind, body)
    decoded: Body = _decoded(_decoders[kind], body, ("body",))
    return decoded


def _decode_cut_up(kind: type[Body], body: bytes) -> Body:
    document = np.frombuffer(body, np.uint8)
    parts = _cut(
        lambda: pieces.members(document, pieces.root(document), kind.__struct_fields__, ()), ("body",)
    )
    members = []
    for name, (start, end) in parts.items():
        if name in LONG_FIELDS:
            continue
        if end - start > pieces.PIECE:
            raise invalid(("body", name), f"Value error, takes more than {pieces.PIECE} bytes")
        members.append(b'"%b":%b' % (name.encode(), body[start:end]))
    decoded: Body = _decoded(_decoders[kind], b"{%b}" % b",".join(members), ("body",))
    for name, (start, end) in parts.items():
        if name in LONG_FIELDS:
            setattr(decoded, name, msgspec.Raw(memoryview(body)[start:end]))
    return decoded


def keys_of(body: LookupBody) -> list[EncodedKey]:
    """The keys that a lookup names; 400 if there are too many of them."""
    keys: list[EncodedKey] = []
    for part in _items(body.keys, _keys_decoder, ("body", "keys")):
        keys += part
        if len(keys) > MAX_KEYS:
            raise RequestError(400, f"too many keys in a single request (limit={MAX_KEYS})")
    return keys


def object_key_of(encoded: EncodedKey, index: int) -> ObjectKey:
    """The key that an encoded one stands for."""
    try:
        chunk_hash = bytes.fromhex(encoded.chunk_hash_hex)
        return ObjectKey(
            chunk_hash, encoded.model_name, encoded.kv_rank, encoded.object_group_id, encoded.cache_salt
        )
    except ContractError as error:
        field = "chunk_hash_hex" if error.field == "chunk_hash" else error.field
        raise invalid(("body", "keys", index, field), f"Value error, {error}") from None
    except ValueError as error:
        loc = ("body", "keys", index, "chunk_hash_hex")
        raise invalid(loc, f"Value error, {error}", given=encoded.chunk_hash_hex) from None


def token_ids_of(body: LookupBody) -> NDArray[np.uint32]:
    """The tokens that a lookup names, uint32; 400 if there are too many of them."""
    loc = ("body", "token_ids")
    parts: list[NDArray[np.uint32]] = []
    count = 0
    for part in _items(body.token_ids, _tokens_decoder, loc):
        try:
            parts.append(np.array(part, dtype=np.uint32))
        except OverflowError:
            index = count + next(i for i, token in enumerate(part) if not 0 <= token < 2**32)
            message = "Input should be an integer from 0 to 4294967295"
            raise invalid((*loc, index), message, "int_range") from None
        count += len(part)
    if count > MAX_TOKEN_IDS:
        raise RequestError(
            400, f"too many token_ids in a single request (limit={MAX_TOKEN_IDS}, got={count})"
        )
    return np.concatenate(parts) if parts else np.zeros(0, np.uint32)


def _items(raw: msgspec.Raw, decoder: msgspec.json.Decoder[Any], loc: tuple[str, ...]) -> Iterator[list[Any]]:
    """The items of an array left raw, in lists of what one call may decode."""
    view = memoryview(raw)
    if len(view) <= pieces.PIECE:
        yield _decoded(decoder, view, loc)
        return
    document = np.frombuffer(view, np.uint8)
    if not pieces.is_array(document, (0, len(view))):
        raise invalid(loc, *reversed(_EXPECTED["array"]))
    runs = pieces.runs(document, (0, len(view)), ())
    while run := _cut(lambda: next(runs, None), loc):
        base, items = run
        if items[0][1] - items[0][0] > pieces.PIECE:
            raise invalid((*loc, base), f"Value error, takes more than {pieces.PIECE} bytes")
        yield _decoded(decoder, pieces.text_of(document, items), loc, base)


def _cut(call: Callable[[], Result], loc: tuple[str, ...]) -> Result:
    try:
        return call()
    except DecodeError as error:
        raise invalid((*loc, *error.loc), f"JSON decode error: {error.reason}", "json_invalid") from None


def tokens_of_base64(raw: bytes | msgspec.Raw) -> NDArray[np.uint32]:
    """The tokens of a `tokens_b64` left raw: a JSON string of the base64 of little-endian uint32."""
    loc = ("body", "tokens_b64")
    literal = memoryview(raw)
    if literal[0] != QUOTE:
        raise invalid(loc, "Input should be a valid string", "string_type")
    text: memoryview = literal[1:-1]
    try:
        data = _base64_decoded(text)
    except (binascii.Error, ValueError) as error:
        # JSON may spell the characters of base64 with escapes, and nobody does; so it need not be fast.
        if not len(text) or len(text) > WHOLE_BODY or b"\\" not in bytes(text):
            raise invalid(loc, f"Value error, tokens_b64 is not valid base64: {error}") from None
        spelled = msgspec.json.encode(_decoded(_text_decoder, literal, loc))
        if b"\\" in spelled:
            raise invalid(loc, f"Value error, tokens_b64 is not valid base64: {error}") from None
        return tokens_of_base64(spelled)
    return tokens_of_bytes(data, loc, "tokens_b64")


def tokens_of_bytes(data: bytes | bytearray, loc: tuple[str, ...], name: str = "body") -> NDArray[np.uint32]:
    """The tokens of a little-endian uint32 buffer."""
    if len(data) % 4:
        message = f"Value error, {name} byte length {len(data)} is not a multiple of 4 (uint32 tokens)"
        raise invalid(loc, message)
    return np.frombuffer(data, dtype="<u4")


def _base64_decoded(view: memoryview) -> bytes:
    if len(view) <= BASE64_SLICE:
        return pybase64.b64decode(view, validate=True)
    slices = [
        pybase64.b64decode(view[start : start + BASE64_SLICE], validate=True)
        for start in range(0, len(view), BASE64_SLICE)
    ]
    if any(len(part) != BASE64_SLICE // 4 * 3 for part in slices[:-1]):
        raise binascii.Error("padding inside the data")
    return b"".join(slices)


def check_world_size(value: int, loc: tuple[str, ...]) -> int:
    """A world size of 1 to 255."""
    if value < 1:
        raise invalid(loc, "Input should be greater than or equal to 1", "greater_than_equal", min(value, 0))
    if value > MAX_WORLD_SIZE:
        message = f"Input should be less than or equal to {MAX_WORLD_SIZE}"
        raise invalid(loc, message, "less_than_equal", min(value, 2**53))
    return value


def namespace_of(model_name: str, cache_salt: str, world_size: int) -> Namespace | None:
    """The namespace of a blend lookup; `None` where no key can have such names."""
    try:
        return Namespace(model_name, cache_salt, world_size)
    except ContractError:
        return None


def check_range(body: AcceptLossBody) -> AcceptLossBody:
    """Bounds in order, none negative."""
    for name in ("incarnation", "first", "last"):
        value = getattr(body, name)
        if value is not None and not 0 <= value < 2**63:
            raise invalid(("body", name), "Input should be an integer from 0 to 2^63-1", "int_range")
    if body.first is not None and body.last is not None and body.first > body.last:
        raise invalid(("body",), "Value error, 'first' must not be greater than 'last'")
    return body


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


def _decoded(decoder: msgspec.json.Decoder[Any], data: Any, loc: tuple[str, ...], base: int = 0) -> Any:
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


def _validation_error(text: str, loc: tuple[str, ...], base: int) -> RequestError:
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
