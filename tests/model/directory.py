"""The key directory and the blend index as the design words them: dictionaries, and a look at everything.

A row is one place that a key is or was held: live, or a tombstone. All else follows from the rows and from
what is known of the chunks: a key exists while it has a live row, a claim is a namespace with a key of the
chunk, and a query is matched by comparing its every window with the content of every chunk.

A chunk's content goes with its last key, save while some emitter has an open range: a batch may yet come
late that stored another key of the chunk, without its tokens, when they were still known. Such content shows
nowhere, and goes at the next `expire` if no key took it up.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from producer.events import UNKNOWN_TOKEN_OFFSET, CacheEventEntry, EventType, Namespace, ObjectKey, Tier
from tests.model.gate import Admitted

Tokens = tuple[int, ...]
ContentStamp = tuple[int, float, str, int, int]
"""(generation, event time, instance id, epoch, seq); a shared placement's too."""
Stamp = tuple[int, int] | ContentStamp
"""A private placement has one writer, so (epoch, seq) orders its writes."""


class Place(NamedTuple):
    key: ObjectKey
    owner: str | None
    """The instance that holds it, None for a shared pool."""
    tier: Tier
    backend: str


@dataclass
class Row:
    instance_id: str
    incarnation: int
    size_bytes: int
    stamp: Stamp
    live: bool


@dataclass
class Content:
    """What is known of a chunk: its tokens and where they sat, each with the stamp of who said so."""

    tokens: Tokens
    stamp: ContentStamp
    offset: int = UNKNOWN_TOKEN_OFFSET
    offset_stamp: ContentStamp | None = None


class Held(NamedTuple):
    """A live placement as lookups show it."""

    instance_id: str
    incarnation: int
    tier: Tier
    backend: str
    size_bytes: int
    shared: bool


class Match(NamedTuple):
    chunk_hash: bytes
    old_st: int
    cur_st: int


@dataclass
class Recency:
    last_access: float = 0.0
    access_count: int = 0


@dataclass
class Directory:
    chunk_size: int
    blend: bool = True
    probe_stride: int = 1
    rows: dict[Place, Row] = field(default_factory=dict)
    contents: dict[bytes, Content] = field(default_factory=dict)
    recency: dict[ObjectKey, Recency] = field(default_factory=dict)
    occupants: list[bytes] = field(default_factory=list)
    """Indexed chunks in the order in which they became so."""
    heard: set[str] = field(default_factory=set)
    """Instances that spoke since their last fence."""
    keep_contents: bool = False
    """Some emitter has an open range: a late batch may yet want the content of a chunk without keys."""

    # What the gate tells.

    def consume(self, admitted: Admitted) -> None:
        self.keep_contents = admitted.keep_contents
        self.heard.add(admitted.batch.instance_id)
        for entry in admitted.batch.entries:
            match admitted.batch.event_type:
                case EventType.STORE:
                    self._write(admitted, entry, live=True)
                    self._bind(admitted, entry)
                case EventType.DELETE:
                    self._write(admitted, entry, live=False)
                case EventType.ACCESS:
                    self._access(admitted, entry.key)
            self._refresh([entry.key])

    def fence(self, instance_id: str) -> None:
        mine = [
            (place, row)
            for place, row in self.rows.items()
            if row.live and place.tier is Tier.L1 and row.instance_id == instance_id
        ]
        for place, row in mine:
            if place.owner is None:
                row.live = False
            else:
                del self.rows[place]
        self.heard.discard(instance_id)
        self._refresh(place.key for place, _ in mine)

    def settle(self, instance_id: str) -> None:
        for place, row in list(self.rows.items()):
            if place.owner == instance_id and not row.live:
                del self.rows[place]

    def expire(self, before: float) -> None:
        self.keep_contents = False
        for place, row in list(self.rows.items()):
            if place.owner is None and not row.live and row.stamp[1] < before:
                del self.rows[place]
        live = {key.chunk_hash for key in self.live_keys()}
        self.contents = {chunk: known for chunk, known in self.contents.items() if chunk in live}

    # The rules of an entry.

    def _write(self, admitted: Admitted, entry: CacheEventEntry, *, live: bool) -> None:
        batch = admitted.batch
        if admitted.l1_void and batch.tier is Tier.L1:
            if not batch.shared:
                return
            live = False
        owner = None if batch.shared else batch.instance_id
        place = Place(entry.key, owner, batch.tier, batch.backend)
        stamp: Stamp = content_stamp(admitted) if batch.shared else (admitted.epoch, batch.seq)
        old = self.rows.get(place)
        if old is not None and stamp < old.stamp:
            return
        if live or batch.shared or admitted.keep_tombstones:
            self.rows[place] = Row(batch.instance_id, batch.incarnation, entry.size_bytes, stamp, live)
        elif old is not None:
            del self.rows[place]

    def _bind(self, admitted: Admitted, entry: CacheEventEntry) -> None:
        if self.is_live(entry.key) and not (admitted.l1_void and admitted.batch.tier is Tier.L1):
            recency = self.recency.setdefault(entry.key, Recency())
            recency.last_access = max(recency.last_access, admitted.event_time)
        tokens, stamp = tuple(entry.token_ids.tolist()), content_stamp(admitted)
        if not tokens:
            return
        chunk = entry.key.chunk_hash
        known = self.contents.get(chunk)
        if known is None or known.tokens != tokens:
            if known is not None and stamp < known.stamp:
                return
            if chunk in self.occupants:
                self.occupants.remove(chunk)
            known = self.contents[chunk] = Content(tokens, stamp)
        known.stamp = max(known.stamp, stamp)
        if entry.token_offset != UNKNOWN_TOKEN_OFFSET and (
            known.offset_stamp is None or stamp >= known.offset_stamp
        ):
            known.offset, known.offset_stamp = entry.token_offset, stamp

    def _access(self, admitted: Admitted, key: ObjectKey) -> None:
        if not self.is_live(key) or (admitted.l1_void and admitted.batch.tier is Tier.L1):
            return
        recency = self.recency.setdefault(key, Recency())
        recency.last_access = max(recency.last_access, admitted.event_time)
        recency.access_count += 1

    def _refresh(self, keys: Iterable[ObjectKey]) -> None:
        """Let go of what the last live row of a key, and the last live key of a chunk, took with it."""
        for key in keys:
            if not self.is_live(key):
                self.recency.pop(key, None)
            chunk = key.chunk_hash
            if not self.keys_of(chunk) and not self.keep_contents:
                self.contents.pop(chunk, None)
            indexed = self._is_indexed(chunk)
            if indexed and chunk not in self.occupants:
                self.occupants.append(chunk)
            elif not indexed and chunk in self.occupants:
                self.occupants.remove(chunk)

    def _is_indexed(self, chunk: bytes) -> bool:
        known = self.contents.get(chunk)
        return (
            self.blend
            and known is not None
            and len(known.tokens) == self.chunk_size
            and known.offset != UNKNOWN_TOKEN_OFFSET
            and bool(self.keys_of(chunk))
        )

    # What anyone may ask.

    def is_live(self, key: ObjectKey) -> bool:
        return any(place.key == key and row.live for place, row in self.rows.items())

    def live_keys(self) -> set[ObjectKey]:
        return {place.key for place, row in self.rows.items() if row.live}

    def keys_of(self, chunk: bytes) -> set[ObjectKey]:
        return {p.key for p, row in self.rows.items() if p.key.chunk_hash == chunk and row.live}

    def namespaces_of(self, chunk: bytes) -> set[Namespace]:
        return {key.namespace for key in self.keys_of(chunk)}

    def placements(self, key: ObjectKey) -> list[Held]:
        held = [
            Held(row.instance_id, row.incarnation, p.tier, p.backend, row.size_bytes, p.owner is None)
            for p, row in self.rows.items()
            if p.key == key and row.live
        ]
        return sorted(held, key=lambda h: (h.instance_id, h.tier, h.backend, h.shared))

    def token_ids(self, key: ObjectKey) -> Tokens:
        known = self.contents.get(key.chunk_hash)
        return known.tokens if known is not None and self.keys_of(key.chunk_hash) else ()

    def last_access(self, key: ObjectKey) -> float:
        return self.recency[key].last_access if key in self.recency else 0.0

    def access_count(self, key: ObjectKey) -> int:
        return self.recency[key].access_count if key in self.recency else 0

    def expand_groups(self, key: ObjectKey) -> list[ObjectKey]:
        def but_group(k: ObjectKey) -> tuple[object, ...]:
            return k.chunk_hash, k.model_name, k.kv_rank, k.cache_salt

        copies = {k for k in self.live_keys() if but_group(k) == but_group(key)} | {key}
        return sorted(copies, key=lambda k: k.object_group_id)

    def listed(self, tier: Tier | None, instance_id: str, backend: str) -> dict[ObjectKey, list[Held]]:
        found = {
            key: [
                held
                for held in self.placements(key)
                if (tier is None or held.tier is tier)
                and (not instance_id or held.instance_id == instance_id)
                and (not backend or held.backend == backend)
            ]
            for key in self.live_keys()
        }
        return {key: held for key, held in found.items() if held}

    def match(self, query: Sequence[int], namespace: Namespace) -> list[Match]:
        found: list[Match] = []
        for position in range(0, len(query) - self.chunk_size + 1, self.probe_stride):
            window = tuple(query[position : position + self.chunk_size])
            for chunk in self.occupants:
                known = self.contents[chunk]
                if (
                    known.tokens == window
                    and namespace in self.namespaces_of(chunk)
                    and chunk not in {m.chunk_hash for m in found}
                ):
                    found.append(Match(chunk, known.offset, position))
                    break
        return found

    def usage(self) -> dict[tuple[str, Tier, str, bool], tuple[int, int]]:
        """Number and bytes of the live placements by place, the owner of a shared pool being ""."""
        held: dict[tuple[str, Tier, str, bool], list[int]] = {}
        for place, row in self.rows.items():
            if row.live:
                held.setdefault(_site(place), []).append(row.size_bytes)
        return {site: (len(sizes), sum(sizes)) for site, sizes in held.items()}

    def names(self) -> dict[str, int]:
        """How many names of each kind some row, or what is known of some chunk, still needs."""
        stamps = [k.stamp for k in self.contents.values()]
        stamps += [k.offset_stamp for k in self.contents.values() if k.offset_stamp is not None]
        return {
            "instances": len(
                {row.instance_id for row in self.rows.values()} | {stamp[2] for stamp in stamps}
            ),
            "scopes": len({(place.key.model_name, place.key.cache_salt) for place in self.rows}),
            "sites": len({_site(place) for place in self.rows}),
        }

    def counts(self) -> dict[str, object]:
        """Everything that the statistics count."""
        live = {place: row for place, row in self.rows.items() if row.live}
        l1 = [row for place, row in live.items() if place.tier is Tier.L1]
        l2 = [row for place, row in live.items() if place.tier is Tier.L2]
        claims = [(chunk, namespace) for chunk in self.occupants for namespace in self.namespaces_of(chunk)]
        holders = self.heard | {row.instance_id for row in l1}
        return {
            "num_keys": len(self.live_keys()),
            "num_placements": len(live),
            "num_tombstones": len(self.rows) - len(live),
            "l1_keys_by_instance": {i: sum(row.instance_id == i for row in l1) for i in holders},
            "l1_count": len(l1),
            "l1_size_bytes": sum(row.size_bytes for row in l1),
            "l2_count": len(l2),
            "l2_size_bytes": sum(row.size_bytes for row in l2),
            "num_contents": len({self.contents[chunk].tokens for chunk in self.occupants}),
            "num_chunks": len(self.occupants),
            "num_claims": len(claims),
            "num_namespaces": len({namespace for _, namespace in claims}),
        }


def _site(place: Place) -> tuple[str, Tier, str, bool]:
    return place.owner or "", place.tier, place.backend, place.owner is None


def content_stamp(admitted: Admitted) -> ContentStamp:
    batch = admitted.batch
    return admitted.generation, admitted.event_time, batch.instance_id, admitted.epoch, batch.seq
