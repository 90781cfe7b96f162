"""What the server answers, as the client reads it: one type a body, with the names of the wire."""

from __future__ import annotations

import msgspec


class BlendMatch(msgspec.Struct, frozen=True):
    """A cached chunk found in a query.

    Attributes:
        chunk_hash: its hash in hex.
        old_st: where its first token sat in the sequence it was stored under.
        cur_st: where it sits in the query.
    """

    chunk_hash: str
    old_st: int
    cur_st: int


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
    incarnation: int
    tier: str
    backend: str
    size_bytes: int
    shared: bool = False


class LookedUp(msgspec.Struct, frozen=True):
    """What is known of one key; an unknown one has no placements."""

    key: Key
    placements: list[Placement]
    token_ids: list[int]
    access_count: int


class Lookup(msgspec.Struct, frozen=True):
    """The answer to a lookup: how many chunks it resolved to, and a result a key."""

    chunks: int
    results: list[LookedUp]


class ListedKey(msgspec.Struct, frozen=True):
    """One key of a listing, with those of its placements that matched."""

    key: Key
    placements: list[Placement]
    num_tokens: int
    access_count: int


class KeyPage(msgspec.Struct, frozen=True):
    """One page of a listing, and how many keys there are in all."""

    total: int
    keys: list[ListedKey]


class BlendCounts(msgspec.Struct, frozen=True):
    """How much of the directory a blend lookup can find."""

    num_contents: int
    num_chunks: int
    num_claims: int
    num_namespaces: int
    table_size: int


class Stats(msgspec.Struct, frozen=True):
    """Counts of the directory."""

    num_keys: int
    num_placements: int
    l1_keys_by_instance: dict[str, int]
    blend: BlendCounts
    l1_count: int
    l1_size_bytes: int
    l2_count: int
    l2_size_bytes: int


class Lost(msgspec.Struct, frozen=True):
    """Batches that were given up; `last` is `None` while nobody knows where they end."""

    first: int
    last: int | None
    incarnation: int
    reason: str | None


class Replay(msgspec.Struct, frozen=True):
    """What is done to find a stream's missing batches; the last three are there while a partition is read."""

    state: str
    partition: int | None
    offset: int | None
    until: int | None


class Stream(msgspec.Struct, frozen=True):
    """An emitter's stream."""

    instance_id: str
    incarnation: int
    epoch: int
    last_seq: int
    gap_detected: bool
    conflict: bool
    missing: list[tuple[int, int]]
    lost: list[Lost]
    replay: Replay | None
    partition: int | None
    offset: int | None
    last_event_ts: float


class Pushed(msgspec.Struct, frozen=True):
    """What became of pushed batches."""

    applied: int
    duplicates: int
    stale: int


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
    http_port: int
    registration_time: float
    metadata: dict[str, str]
    p2p_advertised_url: str
    mq_port: int


class CompartmentUsage(msgspec.Struct, frozen=True):
    """How full a compartment is; without a declared size `capacity_bytes` is 0, and there is no ratio."""

    tier: str
    backend: str
    shared: bool
    used_bytes: int
    capacity_bytes: int
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
