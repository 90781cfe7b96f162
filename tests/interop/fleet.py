"""Random histories of a small fleet, as Hypothesis draws them.

The fleet stores a few documents over and over: behind different prefixes, for several models, tenants and
ranks, in private and shared places. So keys collide, contents recur under different hashes, and little is
needed to overwrite, delete or restart at an awkward moment. Time rises through the whole fleet.

What LMCache and Blendstream answer differently on purpose is kept out, where the drawing makes it: - A
chunk's offset is either always known or never. (LMCache lets an unknown one overwrite a known one, and one
learnt late claims for the storing key's namespace alone.) - A batch that was lost never turns up, for
LMCache would call it a duplicate; what is delivered twice had arrived.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
from hypothesis import strategies as st

from api.token_hasher import TokenHasher
from producer.events import (
    UNKNOWN_TOKEN_OFFSET,
    CacheEventBatch,
    CacheEventEntry,
    EventType,
    Namespace,
    ObjectKey,
    Tier,
    make_kv_rank,
)
from tests.model.fleets import deliveries, in_order

CHUNK_SIZE = 4
DOCUMENTS = [[1, 2, 3, 4], [5, 6, 7, 8], [9, 9, 9, 9], [0, 4_294_967_295, 0, 1]]
PROMPTS = [[0, 1, 2], [1, 0, 2], [0, 1, 3], [2, 2, 2]]
"""Prompts that the fleet stored, as documents in order."""
NAMESPACES = [
    Namespace("model-a"),
    Namespace("model-a", "tenant"),
    Namespace("model-a", world_size=2),
    Namespace("models/b", "ünïcode"),
]
INSTANCES = ["server-a", "server-b", "server ç"]
GROUPS = [0, 3]
SIZES = [0, 1, 4096, 2**40]
MOVES = 40
"""The most moves of a history."""
ENTRIES = 6
"""The most entries of a store."""


@dataclass(frozen=True)
class Chunk:
    """A chunk hash with its content, and the other content that it has when a history changes it."""

    digest: bytes
    tokens: tuple[int, ...]
    offset: int
    other: tuple[int, ...]


@dataclass(frozen=True)
class Compartment:
    tier: Tier
    backend: str
    shared: bool = False


COMPARTMENTS = [
    Compartment(Tier.L1, "dram"),
    Compartment(Tier.L2, "fs"),
    Compartment(Tier.L2, "s3", shared=True),
    Compartment(Tier.L2, "fs", shared=True),
    Compartment(Tier.L1, "cxl", shared=True),
]


def tokens_of(documents: list[int]) -> list[int]:
    return [token for document in documents for token in DOCUMENTS[document]]


def _chunks() -> list[Chunk]:
    found: dict[bytes, Chunk] = {}
    hasher = TokenHasher(CHUNK_SIZE)
    for documents in PROMPTS:
        tokens = tokens_of(documents)
        for number, digest in enumerate(hasher.hashes(np.array(tokens, np.uint32))):
            start = number * CHUNK_SIZE
            content = tuple(tokens[start : start + CHUNK_SIZE])
            found[digest] = Chunk(digest, content, start, other=tuple(reversed(content)))
    return [
        *found.values(),
        Chunk(b"\x01\x02\x03", tuple(DOCUMENTS[0]), 400, other=tuple(DOCUMENTS[1])),
        Chunk(bytes(8), tuple(DOCUMENTS[0]), UNKNOWN_TOKEN_OFFSET, other=(1,)),
        Chunk(b"\xff" * 32, (1, 2, 3), 0, other=tuple(DOCUMENTS[2])),
        Chunk(b"\xfe" * 31, tuple(range(9)), 8, other=(1, 2)),
    ]


CHUNKS = _chunks()


def all_keys() -> list[ObjectKey]:
    """Every key that a history may mention."""
    return [
        ObjectKey(chunk.digest, namespace.model_name, rank, group, namespace.cache_salt)
        for chunk in CHUNKS
        for namespace in NAMESPACES
        for rank in ranks_of(namespace)
        for group in GROUPS
    ]


def ranks_of(namespace: Namespace) -> list[int]:
    size = namespace.world_size
    return [make_kv_rank(size, rank, size, rank) for rank in range(size)]


@dataclass(frozen=True)
class Deliver:
    """A batch arrives."""

    batch: CacheEventBatch


@dataclass(frozen=True)
class Depart:
    """An instance is deregistered."""

    instance_id: str


Step = Deliver | Depart


@dataclass(frozen=True)
class History:
    """What reaches the coordinators, in order of arrival."""

    steps: tuple[Step, ...]

    @property
    def batches(self) -> list[CacheEventBatch]:
        return [step.batch for step in self.steps if isinstance(step, Deliver)]

    @property
    def shares_memory(self) -> bool:
        """Whether some L1 is shared between instances."""
        return any(batch.shared and batch.tier is Tier.L1 for batch in self.batches)


@dataclass
class _Emitter:
    instance_id: str
    incarnation: int
    seq: int = 0
    delivered: list[CacheEventBatch] = field(default_factory=list)


@dataclass
class _Fleet:
    """Draws moves of the fleet and keeps what the next ones need to know."""

    draw: st.DrawFn
    every_store_has_tokens: bool
    contents_change: bool
    emitters: list[_Emitter] = field(
        default_factory=lambda: [_Emitter(name, 1_700_000_000 + i) for i, name in enumerate(INSTANCES)]
    )
    steps: list[Step] = field(default_factory=list)
    stores: list[CacheEventBatch] = field(default_factory=list)
    now: float = 1_000.0

    def store(self, emitter: _Emitter) -> None:
        count = self.draw(st.integers(1, ENTRIES))
        drawn = self.draw(st.lists(_STORED, min_size=count, max_size=count, unique_by=_key_of))
        entries = [self._entry(*stored) for stored in drawn]
        compartment = self.draw(st.sampled_from(COMPARTMENTS))
        self.stores.append(self._deliver(emitter, EventType.STORE, compartment, entries))

    def delete(self, emitter: _Emitter) -> None:
        """Delete some of what was stored once, where this instance may delete it; it may be long gone."""
        stores = [batch for batch in self.stores if batch.shared or batch.instance_id == emitter.instance_id]
        if not stores:
            return
        store = self.draw(st.sampled_from(stores))
        compartment = Compartment(store.tier, store.backend, store.shared)
        self._deliver(emitter, EventType.DELETE, compartment, self._some_of(store))

    def access(self, emitter: _Emitter) -> None:
        if not self.stores:
            return
        store = self.draw(st.sampled_from(self.stores))
        place = Compartment(store.tier, self.draw(st.sampled_from(["", "dram"])))
        self._deliver(emitter, EventType.ACCESS, place, self._some_of(store))

    def config(self, emitter: _Emitter) -> None:
        compartment = self.draw(st.sampled_from(COMPARTMENTS))
        self._deliver(emitter, EventType.CONFIG, compartment, [])

    def restart(self, emitter: _Emitter) -> None:
        emitter.incarnation += self.draw(st.integers(1, 3))
        emitter.seq = 0

    def lose(self, emitter: _Emitter) -> None:
        """A batch that never arrives."""
        emitter.seq += 1

    def repeat(self, emitter: _Emitter) -> None:
        """A batch that arrives again, perhaps of an older incarnation."""
        if emitter.delivered:
            self.steps.append(Deliver(self.draw(st.sampled_from(emitter.delivered))))

    def depart(self, emitter: _Emitter) -> None:
        self.steps.append(Depart(emitter.instance_id))
        # The gate has forgotten what it has seen, so nothing from before may be repeated.
        emitter.delivered.clear()
        self.restart(emitter)

    def _entry(self, key: ObjectKey, size: int, with_tokens: bool, changed: bool) -> CacheEventEntry:
        if not (with_tokens or self.every_store_has_tokens):
            return CacheEventEntry(key, size)
        chunk = next(chunk for chunk in CHUNKS if chunk.digest == key.chunk_hash)
        tokens = chunk.other if changed and self.contents_change else chunk.tokens
        return CacheEventEntry(key, size, tokens, chunk.offset)

    def _some_of(self, store: CacheEventBatch) -> list[CacheEventEntry]:
        wanted = self.draw(st.integers(0, 2 ** len(store.entries) - 1))
        return [CacheEventEntry(entry.key) for i, entry in enumerate(store.entries) if not wanted >> i & 1]

    def _deliver(
        self, emitter: _Emitter, event_type: EventType, place: Compartment, entries: list[CacheEventEntry]
    ) -> CacheEventBatch:
        emitter.seq += 1
        self.now += 0.25
        batch = CacheEventBatch(
            instance_id=emitter.instance_id,
            incarnation=emitter.incarnation,
            seq=emitter.seq,
            event_type=event_type,
            tier=place.tier,
            backend=place.backend,
            entries=entries,
            shared=place.shared,
            ts=self.now,
            capacity_bytes=1 << 30 if event_type is EventType.CONFIG else 0,
        )
        emitter.delivered.append(batch)
        self.steps.append(Deliver(batch))
        return batch


_Stored = tuple[ObjectKey, int, bool, bool]
_STORED: st.SearchStrategy[_Stored] = st.tuples(
    st.sampled_from(all_keys()),
    st.sampled_from(SIZES),
    st.sampled_from([True, True, False]),
    st.sampled_from([False, False, False, True]),
)


def _key_of(stored: _Stored) -> ObjectKey:
    return stored[0]


_Move = Callable[[_Fleet, _Emitter], None]
_STEADY: Sequence[_Move] = [_Fleet.store] * 4 + [_Fleet.delete] * 3 + [_Fleet.access, _Fleet.restart]
_EVERYTHING: Sequence[_Move] = [*_STEADY, _Fleet.config, _Fleet.repeat, _Fleet.depart]
_WITH_LOSSES: Sequence[_Move] = [*_EVERYTHING, _Fleet.lose]


@st.composite
def histories(draw: st.DrawFn) -> History:
    """Anything that may happen to a fleet, delivered in order.

    Stores without tokens and losses do not meet: while a batch is missing, ours remembers the tokens of a
    chunk that has lost its last key, for a late store without tokens; LMCache has forgotten them.
    """
    losses = draw(st.booleans())
    fleet = _Fleet(draw, every_store_has_tokens=losses, contents_change=True)
    for move, number in draw(_moves(_WITH_LOSSES if losses else _EVERYTHING)):
        move(fleet, fleet.emitters[number])
    return History(tuple(fleet.steps))


@st.composite
def complete_histories(draw: st.DrawFn, every_store_has_tokens: bool) -> History:
    """Histories without losses and departures in which a chunk keeps its content, delivered in order,
    once.
    """
    fleet = _Fleet(draw, every_store_has_tokens, contents_change=False)
    for move, number in draw(_moves(_STEADY)):
        move(fleet, fleet.emitters[number])
    return History(tuple(fleet.steps))


def _moves(kinds: Sequence[_Move]) -> st.SearchStrategy[list[tuple[_Move, int]]]:
    move = st.tuples(st.sampled_from(kinds), st.integers(0, len(INSTANCES) - 1))
    # Hypothesis keeps lists short left to itself; what goes wrong takes a while to come about.
    return st.integers(0, MOVES).flatmap(lambda n: st.lists(move, min_size=n, max_size=n))


@st.composite
def delivered_badly(draw: st.DrawFn, history: History) -> tuple[History, History]:
    """The same batches late, doubled and shuffled; and with each stream in order, taking turns as those do.

    Which stream is read when may change what is known of a chunk: tokens go with the last key heard of.
    """
    turns = draw(st.permutations([batch.instance_id for batch in history.batches]))
    delivery = draw(deliveries(history.batches, turns))
    return _arriving(delivery), _arriving(in_order(history.batches, turns))


def _arriving(batches: list[CacheEventBatch]) -> History:
    return History(tuple(Deliver(batch) for batch in batches))


@st.composite
def queries(draw: st.DrawFn) -> list[int]:
    """A prompt: stored documents, whole or cut, with other tokens between them."""
    pieces = draw(
        st.lists(
            st.one_of(
                st.sampled_from(DOCUMENTS),
                st.sampled_from([list(reversed(document)) for document in DOCUMENTS]),
                st.lists(st.integers(0, 9), min_size=1, max_size=3),
            ),
            max_size=6,
        )
    )
    return [token for piece in pieces for token in piece]
