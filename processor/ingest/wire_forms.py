"""The wire's JSON as typed structs, and its errors as places in the document.

The structs describe documents that `lifting` has been over: a member that it lifts holds a negative integer
there. Honest documents cannot bring such a number in, so `Lifted` is a type of its own, checked by msgspec
like the others.
"""

from __future__ import annotations

import re
from typing import Annotated, Any, Final

import msgspec
from msgspec import UNSET, Meta, UnsetType

from producer.events import MAX_HASH_BYTES, MAX_INT, MAX_KV_RANK, MAX_OBJECT_GROUP_ID, EventType, Tier

Loc = tuple[str | int, ...]
"""The way to a value by names and indices, as in `("batches", 3, "entries", 0, "key", "kv_rank")`."""

Lifted = Annotated[int, Meta(le=-1)]
Natural = Annotated[int, Meta(ge=0, le=MAX_INT)]
Blob = str | Lifted


class DecodeError(ValueError):
    """What was read is not an envelope of batches within the contract.

    Attributes:
        loc: where, empty if the document as a whole is at fault.
        reason: what is wrong there.
    """

    def __init__(self, loc: Loc, reason: str) -> None:
        where = "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in loc).lstrip(".")
        super().__init__(f"{where}: {reason}" if where else reason)
        self.loc = loc
        self.reason = reason


class KeyForm(msgspec.Struct, gc=False):
    """A key of the row wire."""

    chunk_hash_hex: str
    model_name: str
    kv_rank: Annotated[int, Meta(ge=0)]  # its upper bound is beyond what Meta can say
    object_group_id: Annotated[int, Meta(ge=0, le=MAX_OBJECT_GROUP_ID)] = 0
    cache_salt: str = ""


class EntryForm(msgspec.Struct, gc=False):
    """An entry of the row wire; `token_ids` is 0 if it gives none."""

    key: KeyForm
    size_bytes: Natural = 0
    token_ids: Lifted = 0
    token_offset: Annotated[int, Meta(ge=-1, le=MAX_INT)] = -1


class ColumnsForm(msgspec.Struct, gc=False):
    """The columns of a batch; all but the first two are base64 or lifted."""

    scopes: list[tuple[str, str]]
    hash_len: Annotated[int, Meta(ge=1, le=MAX_HASH_BYTES)]
    chunk_hashes: Blob
    token_counts: Blob
    token_offsets: Blob
    token_ids: Blob
    chunk: Blob
    scope: Blob
    kv_rank: Blob
    object_group_id: Blob
    size_bytes: Blob


class BatchForm(msgspec.Struct, gc=False):
    """A batch in either form."""

    instance_id: str
    incarnation: Natural
    seq: Annotated[int, Meta(ge=1, le=MAX_INT)]
    event_type: EventType
    tier: Tier
    backend: str
    entries: list[EntryForm] | UnsetType | None = UNSET
    columns: ColumnsForm | None = None
    shared: bool = False
    ts: Annotated[float, Meta(ge=0)] = 0.0
    generation: Natural = 0
    capacity_bytes: Natural = 0
    capacity_revision: Natural = 0


class EnvelopeForm(msgspec.Struct):
    """What a record or a request body is."""

    batches: list[BatchForm] = []


ENVELOPE: Final = msgspec.json.Decoder(EnvelopeForm)
BATCH: Final = msgspec.json.Decoder(BatchForm)
BATCHES: Final = msgspec.json.Decoder(list[BatchForm])
ENTRIES: Final = msgspec.json.Decoder(list[EntryForm])
SCOPES: Final = msgspec.json.Decoder(list[tuple[str, str]])

_AT = re.compile(r" - at `\$(.*)`$", re.DOTALL)
_STEP = re.compile(r"\.(\w+)|\[(\d+)\]")
_MISSING = re.compile(r"^Object missing required field `(\w+)`")
_BYTE = re.compile(r" \(byte \d+\)")

_ROW_REASONS: Final = {
    "token_ids": "must be an array of integers >= 0",
    "kv_rank": f"must be an integer from 0 to {MAX_KV_RANK}",
    "object_group_id": f"must be an integer from 0 to {MAX_OBJECT_GROUP_ID}",
    "size_bytes": f"must be an integer from 0 to {MAX_INT}",
}


def read(decoder: msgspec.json.Decoder[Any], text: Any, loc: Loc = (), base: int = 0) -> Any:
    """Decode a piece of a document that stands at `loc`; the items of an array are numbered from `base`."""
    try:
        return decoder.decode(text)
    except RecursionError:
        raise DecodeError(loc, "is nested too deeply") from None
    except (msgspec.MsgspecError, ValueError, OverflowError) as error:
        raise _located(str(error), loc, base) from None


def _located(message: str, loc: Loc, base: int) -> DecodeError:
    at = _AT.search(message)
    reason = _BYTE.sub("", message[: at.start()] if at else message)
    steps: list[str | int] = [name or int(index) for name, index in _STEP.findall(at.group(1) if at else "")]
    if steps and isinstance(steps[0], int):
        steps[0] += base
    missing = _MISSING.match(reason)
    if missing:
        steps.append(missing.group(1))
        reason = "is required"
    where = (*loc, *steps)
    if where and not missing:
        reason = _reason(where, reason)
    return DecodeError(where, reason)


def _reason(where: Loc, reason: str) -> str:
    """Say what a member that may be lifted should be, not what a lifted one looks like."""
    name = where[-1]
    if "columns" in where:
        return "must be a string of base64" if name in ColumnsForm.__struct_fields__[2:] else reason
    return _ROW_REASONS.get(name, reason) if isinstance(name, str) else reason
