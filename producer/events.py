"""The event contract: what a cache server may say about its cache, and what it means.

Every rule about a single field lives here once, as a check function that returns the checked value; the
classes apply them to themselves, so an object that exists is within the contract, and decoders use the same
functions. A violation is a `ContractError`, a `ValueError` that names the field and the value. Rules that
take more than one batch (sequence numbers without holes, time that does not fall) are the emitter's and the
gate's.

The names and rules of the fields are those of LMCache's coordinator, so that both can read one stream.
"""

from __future__ import annotations

import math
import reprlib
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from producer.errors import OperatorError

UNKNOWN_TOKEN_OFFSET: Final = -1
"""The chunk's place in the sequence it was stored under is not known. Not 0, which is a place."""

MAX_INT: Final = 2**63 - 1
"""The greatest value of an integer field that has no width of its own."""
MAX_KV_RANK: Final = 2**64 - 1
MAX_OBJECT_GROUP_ID: Final = 2**32 - 1
MAX_TOKEN_ID: Final = 2**32 - 1
MAX_HASH_BYTES: Final = 32
MAX_SALT_CHARS: Final = 128
MAX_WORLD_SIZE: Final = 255
MAX_CONTENT_CHUNKS: Final = 16
"""Content is kept up to this many chunk sizes; longer content counts as unknown."""

_FORBIDDEN_IN_SALT: Final = frozenset("@/\\\0")

TokenIds = NDArray[np.uint32]
NO_TOKENS: Final[TokenIds] = np.zeros(0, np.uint32)
NO_TOKENS.flags.writeable = False
"""What an entry carries whose tokens are not known."""


class EventType(StrEnum):
    """What happened to every entry of a batch."""

    STORE = "store"
    DELETE = "delete"
    ACCESS = "access"
    CONFIG = "config"


class Tier(StrEnum):
    """`L1` is the emitter's memory and dies with it; `L2` is storage that outlives it."""

    L1 = "l1"
    L2 = "l2"


class ContractError(OperatorError, ValueError):
    """A value breaks the contract.

    Attributes:
        field: the name of the field, as in the classes of this module.
        rule: what the field demands.
    """

    def __init__(self, field: str, rule: str, value: object) -> None:
        super().__init__(f"{field} must be {rule}, got {_shown(value)}")
        self.field = field
        self.rule = rule


_repr = reprlib.Repr()
_repr.maxstring = _repr.maxother = 100


def _shown(value: object) -> str:
    # Python refuses to print integers of thousands of digits; a hostile one must not hide the field's name.
    if isinstance(value, int) and value.bit_length() > 256:
        return f"an integer of {value.bit_length()} bits"
    return _repr.repr(value)


def check_int(field: str, value: object, low: int = 0, high: int = MAX_INT) -> int:
    """An integer from `low` to `high`; a bool or a float is none, whatever its value."""
    if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
        raise ContractError(field, f"an integer from {low} to {high}", value)
    return value


def check_text(field: str, value: object) -> str:
    """A string that UTF-8 can carry: one with a lone surrogate is none."""
    if not isinstance(value, str):
        raise ContractError(field, "a string", value)
    if not value.isascii():
        try:
            value.encode()
        except UnicodeEncodeError:
            raise ContractError(field, "a string without lone surrogates", value) from None
    return value


def check_flag(field: str, value: object) -> bool:
    """A bool; 0 and 1 are none."""
    if not isinstance(value, bool):
        raise ContractError(field, "true or false", value)
    return value


def check_instance_id(value: object) -> str:
    """The id of an emitter's stream: a non-empty string."""
    text = check_text("instance_id", value)
    if not text:
        raise ContractError("instance_id", "non-empty", value)
    return text


def check_model_name(value: object) -> str:
    """A model's name, free of the `@` that storage adapters separate fields by."""
    text = check_text("model_name", value)
    if "@" in text:
        raise ContractError("model_name", "free of '@'", value)
    return text


def check_cache_salt(value: object) -> str:
    """A tenant's salt: at most 128 characters, none of `@ / \\ NUL`, as it becomes part of file names."""
    text = check_text("cache_salt", value)
    if len(text) > MAX_SALT_CHARS:
        raise ContractError("cache_salt", f"at most {MAX_SALT_CHARS} characters", value)
    if not _FORBIDDEN_IN_SALT.isdisjoint(text):
        raise ContractError("cache_salt", r"free of '@', '/', '\' and NUL", value)
    return text


def check_chunk_hash(value: object) -> bytes:
    """A chunk's digest: 1 to 32 bytes."""
    if not isinstance(value, bytes) or not 1 <= len(value) <= MAX_HASH_BYTES:
        raise ContractError("chunk_hash", f"1 to {MAX_HASH_BYTES} bytes", value)
    return value


def check_world_size(value: object) -> int:
    """The number of workers that share a model: 1 to 255."""
    return check_int("world_size", value, 1, MAX_WORLD_SIZE)


def check_event_type(value: object) -> EventType:
    """An `EventType` or its name on the wire."""
    try:
        return EventType(value)  # type: ignore[arg-type]
    except ValueError:
        raise ContractError("event_type", "one of store, delete, access, config", value) from None


def check_tier(value: object) -> Tier:
    """A `Tier` or its name on the wire; never `all`, which only requests may ask for."""
    try:
        return Tier(value)  # type: ignore[arg-type]
    except ValueError:
        raise ContractError("tier", "one of l1, l2", value) from None


def check_backend(value: object, event_type: EventType) -> str:
    """A backend's name; only an access, which says nothing of places, may leave it empty."""
    text = check_text("backend", value)
    if not text and event_type is not EventType.ACCESS:
        raise ContractError("backend", f"non-empty in a {event_type} batch", value)
    return text


def check_ts(value: object) -> float:
    """Seconds on the emitter's clock, finite and not negative; 0 stands for unknown."""
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        try:
            seconds = float(value)
        except OverflowError:
            seconds = math.inf
        if 0.0 <= seconds < math.inf:
            return seconds
    raise ContractError("ts", "finite seconds >= 0", value)


def check_token_offset(value: object) -> int:
    """A place in a sequence, or `UNKNOWN_TOKEN_OFFSET`."""
    return check_int("token_offset", value, UNKNOWN_TOKEN_OFFSET)


def check_token_ids(value: object) -> TokenIds:
    """Token ids as a read-only, contiguous uint32 array; takes any sequence of integers from 0 to 2^32-1."""
    if isinstance(value, np.ndarray) and value.dtype == np.uint32 and value.ndim == 1:
        kept = not value.flags.writeable and value.flags.c_contiguous
        return value if kept else _read_only(value.copy())
    rule = f"a sequence of integers from 0 to {MAX_TOKEN_ID}"
    if not isinstance(value, np.ndarray):
        if not isinstance(value, Sequence) or isinstance(value, (str, bytes, bytearray)):
            raise ContractError("token_ids", rule, value)
        if len(value) == 0:
            return NO_TOKENS
        # NumPy would take True for 1.
        if not {bool, np.bool_}.isdisjoint(map(type, value)):
            raise ContractError("token_ids", rule, value)
    try:
        wide = np.asarray(value)
    except (OverflowError, TypeError, ValueError):
        raise ContractError("token_ids", rule, value) from None
    if wide.ndim != 1 or wide.dtype.kind not in "iu":
        raise ContractError("token_ids", rule, value)
    if len(wide) and (wide.min() < 0 or wide.max() > MAX_TOKEN_ID):
        raise ContractError("token_ids", rule, value)
    return _read_only(wide.astype(np.uint32))


def _read_only(ids: TokenIds) -> TokenIds:
    ids.flags.writeable = False
    return ids


def make_kv_rank(world_size: int, global_rank: int, local_world_size: int, local_rank: int) -> int:
    """Pack a worker's place in its group into a `kv_rank`, eight bits each, as LMCache does."""
    check_world_size(world_size)
    check_int("global_rank", global_rank, 0, world_size - 1)
    check_int("local_world_size", local_world_size, 1, MAX_WORLD_SIZE)
    check_int("local_rank", local_rank, 0, local_world_size - 1)
    return world_size << 24 | global_rank << 16 | local_world_size << 8 | local_rank


def world_size_of(kv_rank: int) -> int:
    """The world size that `make_kv_rank` packed; 0 to 255, 0 only where something else made the rank."""
    return kv_rank >> 24 & 0xFF


@dataclass(frozen=True, slots=True)
class Namespace:
    """What a requester must share with the storer for a chunk to be of use to it.

    A `world_size` of 0 is that of keys whose `kv_rank` no `make_kv_rank` made; no request may ask for it.
    """

    model_name: str
    cache_salt: str = ""
    world_size: int = 1

    def __post_init__(self) -> None:
        check_model_name(self.model_name)
        check_cache_salt(self.cache_salt)
        check_int("world_size", self.world_size, 0, MAX_WORLD_SIZE)


@dataclass(frozen=True, slots=True)
class ObjectKey:
    """One stored object: a chunk's KV for one model, worker, object group and tenant."""

    chunk_hash: bytes
    model_name: str
    kv_rank: int
    object_group_id: int = 0
    cache_salt: str = ""

    def __post_init__(self) -> None:
        check_chunk_hash(self.chunk_hash)
        check_model_name(self.model_name)
        check_int("kv_rank", self.kv_rank, 0, MAX_KV_RANK)
        check_int("object_group_id", self.object_group_id, 0, MAX_OBJECT_GROUP_ID)
        check_cache_salt(self.cache_salt)

    @property
    def world_size(self) -> int:
        """The number of workers that share the model, 0 to 255."""
        return world_size_of(self.kv_rank)

    @property
    def namespace(self) -> Namespace:
        """The namespace the key was stored in."""
        return Namespace(self.model_name, self.cache_salt, self.world_size)


@dataclass(frozen=True, slots=True, eq=False, init=False)
class CacheEventEntry:
    """One key's part in a batch.

    Attributes:
        token_ids: the chunk's tokens, uint32, read-only, empty if not known; takes any sequence of integers.
        token_offset: where the chunk's first token sat in the sequence it was stored under.
    """

    key: ObjectKey
    size_bytes: int
    token_ids: TokenIds
    token_offset: int

    def __init__(
        self,
        key: ObjectKey,
        size_bytes: int = 0,
        token_ids: Sequence[int] | NDArray[Any] = NO_TOKENS,
        token_offset: int = UNKNOWN_TOKEN_OFFSET,
    ) -> None:
        if not isinstance(key, ObjectKey):
            raise ContractError("key", "an ObjectKey", key)
        put = object.__setattr__
        put(self, "key", key)
        put(self, "size_bytes", check_int("size_bytes", size_bytes))
        put(self, "token_ids", check_token_ids(token_ids))
        put(self, "token_offset", check_token_offset(token_offset))

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, CacheEventEntry):
            return NotImplemented
        return self._scalars() == other._scalars() and np.array_equal(self.token_ids, other.token_ids)

    def __hash__(self) -> int:
        return hash((self._scalars(), self.token_ids.tobytes()))

    def _scalars(self) -> tuple[ObjectKey, int, int]:
        return self.key, self.size_bytes, self.token_offset


def check_entries(value: object) -> tuple[CacheEventEntry, ...]:
    """The entries of a batch as a tuple; any sequence of them is taken."""
    if isinstance(value, Sequence) and all(isinstance(entry, CacheEventEntry) for entry in value):
        return tuple(value)
    raise ContractError("entries", "a sequence of CacheEventEntry", value)


@dataclass(frozen=True, slots=True)
class CacheEventBatch:
    """Consecutive changes of one kind, one step of an emitter's stream.

    Attributes:
        incarnation: grows at every restart of the emitter.
        seq: counts the batches of one `(instance_id, incarnation)` from 1 without holes.
        entries: the keys concerned; none in a `config` batch, which declares a capacity. Takes any sequence.
        shared: the backend is one pool that several instances mount.
        ts: the emitter's clock in seconds, 0 if unknown.
        capacity_bytes: usable bytes of the `(tier, backend)` that a `config` batch declares, 0 for no limit.
        capacity_revision: the declaration a `config` batch belongs to; one spans a batch a compartment.
    """

    instance_id: str
    incarnation: int
    seq: int
    event_type: EventType
    tier: Tier
    backend: str
    entries: Sequence[CacheEventEntry] = ()
    shared: bool = False
    ts: float = 0.0
    capacity_bytes: int = 0
    capacity_revision: int = 0

    def __post_init__(self) -> None:
        check_instance_id(self.instance_id)
        check_int("incarnation", self.incarnation)
        check_int("seq", self.seq, 1)
        put = object.__setattr__
        put(self, "event_type", check_event_type(self.event_type))
        put(self, "tier", check_tier(self.tier))
        check_backend(self.backend, self.event_type)
        put(self, "entries", check_entries(self.entries))
        if self.entries and self.event_type is EventType.CONFIG:
            raise ContractError("entries", "empty in a config batch", self.entries)
        check_flag("shared", self.shared)
        put(self, "ts", check_ts(self.ts))
        check_int("capacity_bytes", self.capacity_bytes)
        check_int("capacity_revision", self.capacity_revision)
