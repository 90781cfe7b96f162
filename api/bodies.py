"""What a request asks: the bodies and query strings of the routes, decoded and checked.

Whatever is wrong is a `RequestError` with the status that LMCache's coordinator answers: 422 with the
field, or 400 for what it only finds once the body is well-formed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import msgspec
import numpy as np
from numpy.typing import NDArray

from api import decoding
from api.decoding import WHOLE, decoded
from api.http import CLOSE, RequestError, invalid, query_int
from processor.service import DecodeError, Lift
from producer.events import (
    MAX_TOKEN_ID,
    MAX_WORLD_SIZE,
    NO_TOKENS,
    ContractError,
    Namespace,
    ObjectKey,
    TokenIds,
)

MAX_TOKEN_IDS: Final = 1_000_000
"""Most tokens of one lookup, as in LMCache."""
MAX_KEYS: Final = 200_000
"""Most keys of one lookup; as many fit into a body of 32 MB."""
MAX_REGISTRATION_BYTES: Final = 64 * 1024
"""Most that a cache server may say of itself; it is kept for as long as the server is registered."""
MAX_PORT: Final = 65_535
QUOTE: Final = ord('"')


class EncodedKey(msgspec.Struct, frozen=True):
    """A key as the wire has it."""

    chunk_hash_hex: str
    model_name: str
    kv_rank: int
    object_group_id: int = 0
    cache_salt: str = ""


class LookupBody(msgspec.Struct):
    """Body of `POST /directory/lookup`: `keys`, or `token_ids` with their namespace."""

    keys: msgspec.Raw = msgspec.Raw(b"[]")
    token_ids: msgspec.Raw = msgspec.Raw(b"[]")
    model_name: str = ""
    world_size: int = 1
    cache_salt: str = ""


class BlendLookupBody(msgspec.Struct):
    """Body of `POST /directory/blend-lookup` in JSON."""

    tokens_b64: msgspec.Raw = msgspec.Raw(b'""')
    model_name: str = ""
    world_size: int = 1
    cache_salt: str = ""


class Range(msgspec.Struct):
    """Body of `POST /streams/{id}/replay` and `accept-loss`: what is left out narrows nothing."""

    incarnation: int | None = None
    first: int | None = None
    last: int | None = None


class Registration(msgspec.Struct):
    """Body of `POST /instances`: where a cache server is; an empty id asks for one."""

    ip: str
    http_port: int
    instance_id: str = ""
    metadata: dict[str, str] = msgspec.field(default_factory=dict)
    p2p_advertised_url: str = ""
    mq_port: int = 0


@dataclass(frozen=True, slots=True)
class KeyLookup:
    """A lookup of keys; `spelled` has their hashes as the request spells them."""

    keys: list[ObjectKey]
    spelled: list[str]


@dataclass(frozen=True, slots=True)
class TokenLookup:
    """A lookup of the chunks of a sequence, in a namespace that keys can have."""

    tokens: TokenIds
    namespace: Namespace


@dataclass(frozen=True, slots=True)
class BlendLookup:
    """A query for cached chunks; `namespace` is `None` where no key can have such names."""

    tokens: TokenIds
    namespace: Namespace | None


_LOOKUP = msgspec.json.Decoder(LookupBody, strict=False)
_BLEND_LOOKUP = msgspec.json.Decoder(BlendLookupBody, strict=False)
_RANGE = msgspec.json.Decoder(Range, strict=False)
_REGISTRATION = msgspec.json.Decoder(Registration, strict=False)
_KEYS = msgspec.json.Decoder(list[EncodedKey], strict=False)
_TOKENS = msgspec.json.Decoder(list[int], strict=False)
_TEXT = msgspec.json.Decoder(str)


def lookup_of(body: bytes) -> KeyLookup | TokenLookup:
    """What a `POST /directory/lookup` asks."""
    document = _document(body)
    lifted = None
    if len(body) > WHOLE:
        try:
            lifted = Lift(body, len(body))
        except DecodeError as error:
            raise invalid(
                ("body", *error.loc), f"JSON decode error: {error.reason}", "json_invalid"
            ) from None
        document = lifted.document
    form = decoding.decode(_LOOKUP, document, LookupBody.__struct_fields__, ("keys", "token_ids"))
    world_size = _world_size(form.world_size)
    encoded = _keys(form.keys)
    tokens = _token_ids(form.token_ids, lifted)
    if bool(encoded) == bool(len(tokens)):
        raise invalid(("body",), "Value error, supply exactly one of 'keys' or 'token_ids'")
    if encoded:
        keys = [_object_key(key, index) for index, key in enumerate(encoded)]
        return KeyLookup(keys, [key.chunk_hash_hex for key in encoded])
    if not form.model_name:
        raise invalid(("body",), "Value error, 'model_name' is required with 'token_ids'")
    try:
        return TokenLookup(tokens, Namespace(form.model_name, form.cache_salt, world_size))
    except ContractError as error:
        raise RequestError(400, str(error)) from None


def blend_lookup_of(body: bytes) -> BlendLookup:
    """What a `POST /directory/blend-lookup` asks in JSON."""
    form = decoding.decode(_BLEND_LOOKUP, _document(body), BlendLookupBody.__struct_fields__, ("tokens_b64",))
    tokens = tokens_of_base64(form.tokens_b64)
    world_size = _world_size(form.world_size)
    return _blend_lookup(tokens, form.model_name, form.cache_salt, world_size, ("body", "model_name"))


def raw_blend_lookup_of(body: bytes, query: Mapping[str, str]) -> BlendLookup:
    """What a `POST /directory/blend-lookup` asks whose body is the tokens themselves."""
    tokens = _tokens_of_bytes(body, ("body",), "body")
    world_size = query_int(query, "world_size", 1, 1, MAX_WORLD_SIZE)
    model_name, cache_salt = query.get("model_name", ""), query.get("cache_salt", "")
    return _blend_lookup(tokens, model_name, cache_salt, world_size, ("query", "model_name"))


def range_of(body: bytes) -> Range:
    """Which batches of a stream a request is about; an empty body names every open range."""
    if not body.strip():
        return Range()
    asked = decoded(_RANGE, body, ("body",))
    for name in Range.__struct_fields__:
        value = getattr(asked, name)
        if value is not None and not 0 <= value < 2**63:
            raise invalid(("body", name), "Input should be an integer from 0 to 2^63-1", "int_range")
    if asked.first is not None and asked.last is not None and asked.first > asked.last:
        raise invalid(("body",), "Value error, 'first' must not be greater than 'last'")
    return asked


def registration_of(body: bytes) -> Registration:
    """What a `POST /instances` says of the server that sends it."""
    if len(body) > MAX_REGISTRATION_BYTES:
        raise RequestError(413, f"a registration is larger than {MAX_REGISTRATION_BYTES} bytes", CLOSE)
    _document(body)
    asked = decoded(_REGISTRATION, body, ("body",))
    for name in ("instance_id", "ip", "p2p_advertised_url"):
        setattr(asked, name, getattr(asked, name).strip())
    if not asked.ip:
        raise invalid(("body", "ip"), "String should have at least 1 character", "string_too_short", "")
    _between("http_port", asked.http_port, 1, MAX_PORT)
    _between("mq_port", asked.mq_port, 0, MAX_PORT)
    return asked


def tokens_of_base64(raw: bytes | msgspec.Raw) -> TokenIds:
    """The tokens of a `tokens_b64` left raw: a JSON string of the base64 of little-endian uint32."""
    loc = ("body", "tokens_b64")
    literal = memoryview(raw)
    if literal[0] != QUOTE:
        raise invalid(loc, "Input should be a valid string", "string_type")
    text = literal[1:-1]
    try:
        data = decoding.base64_decoded(text)
    except ValueError as error:
        # JSON may spell the characters of base64 with escapes, and nobody does; so it need not be fast.
        if len(text) <= WHOLE and b"\\" in bytes(text):
            spelled = msgspec.json.encode(decoded(_TEXT, literal, loc))
            if b"\\" not in spelled:
                return tokens_of_base64(spelled)
        raise invalid(loc, f"Value error, tokens_b64 is not valid base64: {error}") from None
    return _tokens_of_bytes(data, loc, "tokens_b64")


def _document(body: bytes) -> NDArray[np.uint8]:
    if not body or body.isspace():
        raise invalid(("body",), "Field required", "missing")
    return np.frombuffer(body, np.uint8)


def _keys(raw: msgspec.Raw) -> list[EncodedKey]:
    keys: list[EncodedKey] = []
    for part in decoding.items(raw, _KEYS, ("body", "keys")):
        keys += part
        if len(keys) > MAX_KEYS:
            raise RequestError(400, f"too many keys in a single request (limit={MAX_KEYS})")
    return keys


def _object_key(encoded: EncodedKey, index: int) -> ObjectKey:
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


def _token_ids(raw: msgspec.Raw, lifted: Lift | None) -> TokenIds:
    """The tokens of a lookup, from the document or, in its place, from what was lifted out of it."""
    loc = ("body", "token_ids")
    literal = memoryview(raw)
    if lifted is not None and literal[:1].tobytes() == b"-":
        _, tokens, too_large = lifted.tokens(np.array([int(literal.tobytes())], np.int64), loc)
        if too_large:
            raise _no_token_id(loc)
    else:
        parts = list(decoding.items(raw, _TOKENS, loc))
        try:
            tokens = np.concatenate([np.array(part, np.uint32) for part in parts]) if parts else NO_TOKENS
        except OverflowError:
            listed = [token for part in parts for token in part]
            index = next(i for i, token in enumerate(listed) if not 0 <= token <= MAX_TOKEN_ID)
            raise _no_token_id((*loc, index)) from None
    if len(tokens) > MAX_TOKEN_IDS:
        raise RequestError(
            400, f"too many token_ids in a single request (limit={MAX_TOKEN_IDS}, got={len(tokens)})"
        )
    return tokens


def _no_token_id(loc: tuple[str | int, ...]) -> RequestError:
    return invalid(loc, f"Input should be an integer from 0 to {MAX_TOKEN_ID}", "int_range")


def _tokens_of_bytes(data: bytes, loc: tuple[str, ...], name: str) -> TokenIds:
    if len(data) % 4:
        message = f"Value error, {name} byte length {len(data)} is not a multiple of 4 (uint32 tokens)"
        raise invalid(loc, message)
    return np.frombuffer(data, "<u4")


def _blend_lookup(
    tokens: TokenIds, model_name: str, cache_salt: str, world_size: int, loc: tuple[str, str]
) -> BlendLookup:
    if len(tokens) and not model_name:
        raise invalid(loc, "Value error, 'model_name' is required with tokens")
    try:
        return BlendLookup(tokens, Namespace(model_name, cache_salt, world_size))
    except ContractError:
        return BlendLookup(tokens, None)


def _world_size(value: int) -> int:
    return _between("world_size", value, 1, MAX_WORLD_SIZE)


def _between(name: str, value: int, low: int, high: int) -> int:
    if value < low:
        message = f"Input should be greater than or equal to {low}"
        raise invalid(("body", name), message, "greater_than_equal", max(value, -(2**53)))
    if value > high:
        message = f"Input should be less than or equal to {high}"
        raise invalid(("body", name), message, "less_than_equal", min(value, 2**53))
    return value
