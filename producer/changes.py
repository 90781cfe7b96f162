"""What a cache server did and the emitter has yet to build into batches: an ordered, bounded list.

This is the part that the serving path touches. One lock guards it, held for as long as it takes to note the
keys of one call. Consecutive changes of one kind are kept together; a change of another kind begins the
next group, so that order is kept. A change that cannot be kept leaves a hole in its place, which takes a
sequence number later.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from producer.bindings import UNBOUND, Binding, TokenBindings
from producer.events import (
    ContractError,
    EventType,
    ObjectKey,
    Tier,
    TokenIds,
    check_backend,
    check_flag,
    check_int,
    check_tier,
)


@dataclass(frozen=True, slots=True)
class Kind:
    """What the entries of one batch have in common."""

    event_type: EventType
    tier: Tier
    backend: str
    shared: bool = False

    def __post_init__(self) -> None:
        object.__setattr__(self, "tier", check_tier(self.tier))
        check_backend(self.backend, self.event_type)
        check_flag("shared", self.shared)


@dataclass(frozen=True, slots=True)
class Capacity:
    """The usable bytes of one `(tier, backend)`, 0 for no limit."""

    tier: Tier
    backend: str
    capacity_bytes: int
    shared: bool = False

    def __post_init__(self) -> None:
        object.__setattr__(self, "tier", check_tier(self.tier))
        check_backend(self.backend, EventType.CONFIG)
        check_int("capacity_bytes", self.capacity_bytes)
        check_flag("shared", self.shared)


@dataclass(slots=True)
class Group:
    """Consecutive changes of one kind; with no kind, the place of changes that could not be kept.

    Attributes:
        rows: the key, the size in bytes, and the tokens and offset of its chunk.
        ts: when the last of them was noted, in seconds.
    """

    kind: Kind | None
    rows: list[tuple[ObjectKey, int, Binding]] = field(default_factory=list)
    ts: float = 0.0


@dataclass(frozen=True, slots=True)
class Drained:
    """All that was noted since the last time.

    Attributes:
        capacities: the last declaration, which came at no particular place among the changes.
        ts: now; not before any group's, nor after that of any group still to come.
    """

    groups: list[Group]
    capacities: Sequence[Capacity]
    ts: float


class ChangeLog:
    """The changes still to be sent. Thread-safe.

    Args:
        max_waiting: entries that may wait; more leave a hole.
        max_bindings: chunks whose tokens are remembered.
        clock: seconds since the epoch; what the log reads from it never falls.
    """

    def __init__(self, max_waiting: int, max_bindings: int, clock: Callable[[], float]) -> None:
        self._max_waiting = max_waiting
        self._clock = clock
        self._lock = threading.Lock()
        self._bindings = TokenBindings(max_bindings)
        self._groups: list[Group] = []
        self._capacities: Sequence[Capacity] = ()
        self._ts = 0.0
        self._closed = False
        self.waiting = 0
        self.refused = 0
        self.unbound = 0

    @property
    def evicted(self) -> int:
        """Token bindings that gave way to newer ones."""
        return self._bindings.evicted

    def bind(self, bindings: Sequence[tuple[bytes, TokenIds, int]]) -> None:
        """Remember the tokens and offsets of chunks."""
        with self._lock:
            for chunk_hash, tokens, offset in bindings:
                self._bindings.bind(chunk_hash, tokens, offset)

    def note(self, kind: Kind, keys: Sequence[ObjectKey], sizes: Sequence[int] = ()) -> None:
        """Append changes of one kind; stores have a size a key, and take their chunks' tokens along.

        Raises:
            ContractError: there are not as many sizes as keys stored; nothing was noted.
        """
        is_store = kind.event_type is EventType.STORE
        if is_store and len(sizes) != len(keys):
            raise ContractError("sizes", f"as many as the {len(keys)} keys", sizes)
        with self._lock:
            if self._closed or self.waiting + len(keys) > self._max_waiting:
                self._leave_hole(len(keys))
                return
            if is_store:
                find = self._bindings.find
                rows = [(key, size, find(key.chunk_hash)) for key, size in zip(keys, sizes, strict=True)]
                self.unbound += sum(row[2] is UNBOUND for row in rows)
            else:
                rows = [(key, 0, UNBOUND) for key in keys]
            if not self._groups or self._groups[-1].kind != kind:
                self._groups.append(Group(kind))
            group = self._groups[-1]
            group.rows += rows
            group.ts = self._now()
            self.waiting += len(rows)

    def leave_hole(self, entries: int) -> None:
        """Keep the place of changes that cannot be sent."""
        with self._lock:
            self._leave_hole(entries)

    def declare(self, capacities: Sequence[Capacity], *, again: bool = False) -> None:
        """Hold a declaration for the next drain, in place of one held; `again` yields to that one instead."""
        with self._lock:
            if not (again and self._capacities):
                self._capacities = capacities

    def drain(self) -> Drained:
        """Take all that was noted."""
        with self._lock:
            groups, self._groups, self.waiting = self._groups, [], 0
            capacities, self._capacities = self._capacities, ()
            return Drained(groups, capacities, self._now())

    def close(self) -> None:
        """Refuse changes from now on."""
        with self._lock:
            self._closed = True

    def _leave_hole(self, entries: int) -> None:
        self.refused += entries
        if not self._groups or self._groups[-1].kind is not None:
            self._groups.append(Group(None))

    def _now(self) -> float:
        self._ts = max(self._ts, self._clock())
        return self._ts
