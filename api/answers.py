"""What the server answers, as the client reads it: one type a body, with the names of the wire.

The OpenAPI document takes the schemas of these answers from here, so what it promises of a field is said
at the field.
"""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

Count = Annotated[int, Meta(ge=0)]
TokenId = Annotated[int, Meta(ge=0, lt=2**32)]
ChunkHash = Annotated[str, Meta(extra_json_schema={"pattern": "^([0-9a-fA-F]{2}){1,32}$"})]
"""In hex; no client checks that again."""
Tier = Annotated[str, Meta(extra_json_schema={"enum": ["l1", "l2"]})]
ReplayState = Annotated[
    str, Meta(extra_json_schema={"enum": ["waiting", "queued", "scanning", "backing_off"]})
]


class BlendMatch(msgspec.Struct, frozen=True):
    """A cached chunk found in a query."""

    chunk_hash: ChunkHash
    old_st: Annotated[Count, Meta(description="Its place in the sequence it was stored under.")]
    cur_st: Annotated[Count, Meta(description="Its place in the query.")]


class BlendMatches(msgspec.Struct, frozen=True):
    """The answer to a blend lookup, ascending by the place in the query."""

    matches: list[BlendMatch]


class Key(msgspec.Struct, frozen=True):
    """A key as the wire has it."""

    chunk_hash_hex: str
    model_name: str
    kv_rank: int
    object_group_id: int = 0
    cache_salt: str = ""


class Placement(msgspec.Struct, frozen=True):
    """One place where a key is held."""

    instance_id: str
    incarnation: Count
    tier: Tier
    backend: str
    size_bytes: Count
    shared: bool


class LookedUp(msgspec.Struct, frozen=True):
    """What is known of one key; an unknown one has no placements."""

    key: Key
    placements: list[Placement]
    token_ids: list[TokenId]
    access_count: Count


class Lookup(msgspec.Struct, frozen=True):
    """The answer to a lookup: how many chunks it resolved to, and a result a key."""

    chunks: Count
    results: list[LookedUp]


class ListedKey(msgspec.Struct, frozen=True):
    """One key of a listing, with those of its placements that matched."""

    key: Key
    placements: Annotated[list[Placement], Meta(min_length=1)]
    num_tokens: Count
    access_count: Count


class KeyPage(msgspec.Struct, frozen=True):
    """One page of a listing, and how many keys there are in all."""

    total: Count
    keys: list[ListedKey]


class BlendCounts(msgspec.Struct, frozen=True):
    """How much of the directory a blend lookup can find."""

    num_contents: Count
    num_chunks: Count
    num_claims: Count
    num_namespaces: Count
    table_size: Count


class Stats(msgspec.Struct, frozen=True):
    """Counts of the directory."""

    num_keys: Count
    num_placements: Count
    l1_keys_by_instance: dict[str, Count]
    blend: BlendCounts
    l1_count: Count
    l1_size_bytes: Count
    l2_count: Count
    l2_size_bytes: Count


class Lost(msgspec.Struct, frozen=True):
    """Batches that were given up; `last` is `None` while nobody knows where they end."""

    first: Count
    last: int | None
    incarnation: Count
    reason: str | None


class Replay(msgspec.Struct, frozen=True):
    """What is done to find a stream's missing batches; the last three are there while a partition is read."""

    state: ReplayState
    partition: int | None
    offset: int | None
    until: int | None


class Stream(msgspec.Struct, frozen=True):
    """An emitter's stream."""

    instance_id: str
    incarnation: Count
    epoch: Count
    last_seq: Count
    gap_detected: bool
    conflict: bool
    missing: list[tuple[Count, Count]]
    lost: list[Lost]
    replay: Replay | None
    partition: int | None
    offset: int | None
    last_event_ts: float


class Streams(msgspec.Struct, frozen=True):
    """Every stream that was asked for."""

    streams: list[Stream]


class Pushed(msgspec.Struct, frozen=True):
    """What became of pushed batches."""

    applied: Count
    duplicates: Count
    stale: Count


class Checkpoint(msgspec.Struct, frozen=True):
    """A checkpoint that is on disk; times in seconds, `created` since the epoch."""

    number: int
    path: str
    bytes: int
    written: int
    created: float
    duration: float
    pause: float


class Registered(msgspec.Struct, frozen=True):
    """The id under which a cache server is registered, and whether it was before."""

    instance_id: str
    re_registered: bool


class Instance(msgspec.Struct, frozen=True):
    """A registered cache server."""

    instance_id: str
    ip: str
    http_port: Count
    registration_time: float
    metadata: dict[str, str]
    p2p_advertised_url: str
    mq_port: Count


class Instances(msgspec.Struct, frozen=True):
    """Every registered cache server."""

    instances: list[Instance]


class CompartmentUsage(msgspec.Struct, frozen=True):
    """How full a compartment is; without a declared size there is no ratio."""

    tier: Tier
    backend: str
    shared: bool
    used_bytes: Count
    capacity_bytes: Annotated[Count, Meta(description="0 where no size was declared.")]
    usage_ratio: float | None


class InstanceUsage(msgspec.Struct, frozen=True):
    """How full a server's own compartments are."""

    instance_id: str
    registered: bool
    declared_capacity: bool
    modules: list[CompartmentUsage]


class FleetUsage(msgspec.Struct, frozen=True):
    """How full every server and every shared pool is."""

    instances: list[InstanceUsage]
    shared_modules: list[CompartmentUsage]
