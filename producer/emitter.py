"""Turns what a cache server does into an ordered stream of batches.

The `on_*` methods are called from the serving path, from any thread. They note the change and return: they
never wait for a sink and never raise. A thread of the emitter's own builds batches and hands them to the
sink. Order is kept: consecutive changes of one `(event_type, tier, backend, shared)` share a batch, and a
change of another kind begins the next one.

Nothing is lost in silence. A batch gets its `seq` when it is built, whether or not the sink then takes it,
and a change that cannot be sent at all (the bound of waiting changes reached, a call that breaks the
contract) uses up a `seq` of its own: readers see a hole either way.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence, Sized
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Final, Self

from numpy.typing import NDArray

from producer.changes import Capacity, ChangeLog, Group, Kind
from producer.cutting import RECORD_LIMIT, cut
from producer.events import (
    CacheEventBatch,
    CacheEventEntry,
    ContractError,
    EventType,
    ObjectKey,
    Tier,
    check_chunk_hash,
    check_instance_id,
    check_int,
    check_token_ids,
    check_token_offset,
)
from producer.sinks.protocol import PublishError, Sink
from producer.throttle import Throttle

__all__ = ["CacheEventEmitter", "Capacity", "EmitterCounters"]

FLUSH_INTERVAL: Final = 0.5
"""Seconds a change waits at most before it is handed to the sink."""
FLUSH_ENTRIES: Final = 1_024
"""Waiting entries that bring a flush forward."""
IDLE_INTERVAL: Final = 10.0
"""Seconds without a batch after which an empty one goes out, so that a lost tail shows."""
MAX_BINDINGS: Final = 65_536
"""Chunks whose tokens are remembered for stores still to come."""
MAX_WAITING: Final = 262_144
"""Entries that may wait while a sink is slow."""
CLOSE_TIMEOUT: Final = 10.0
"""Seconds that `close` gives the sink to take and deliver what is left."""

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class EmitterCounters:
    """What an emitter has done since it began.

    Attributes:
        last_seq: the last sequence number used.
        published: batches the sink took.
        dropped: sequence numbers whose batch the sink did not take, or that never had one.
        entries: entries built into batches.
        refused: entries that were never built: calls that broke the contract, came too late or found no room.
        unbound: entries of stores that went without tokens, as none were remembered.
        evicted: token bindings that gave way to newer ones.
        waiting: entries noted and not built yet.
    """

    last_seq: int
    published: int
    dropped: int
    entries: int
    refused: int
    unbound: int
    evicted: int
    waiting: int


class CacheEventEmitter:
    """Emits the stream of one instance.

    Args:
        sink: where batches go; closed with the emitter. A `producer.sinks.spool.SpoolSink` keeps them on disk
            until the broker has them.
        instance_id: the id of the stream.
        incarnation: from `producer.incarnation.next_incarnation`, above that of every earlier start.
        record_limit: bytes a record may have before compression.
        clock: seconds since the epoch.
    """

    def __init__(
        self,
        sink: Sink,
        instance_id: str,
        incarnation: int,
        *,
        flush_interval: float = FLUSH_INTERVAL,
        flush_entries: int = FLUSH_ENTRIES,
        idle_interval: float = IDLE_INTERVAL,
        max_bindings: int = MAX_BINDINGS,
        max_waiting: int = MAX_WAITING,
        record_limit: int = RECORD_LIMIT,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._sink = sink
        self._instance_id = check_instance_id(instance_id)
        self._incarnation = check_int("incarnation", incarnation)
        self._flush_interval = flush_interval
        self._flush_entries = flush_entries
        self._idle_interval = idle_interval
        self._record_limit = record_limit
        self._log = ChangeLog(max_waiting, max_bindings, clock)
        self._closing = threading.Event()

        # Guards building and publishing, so that sequence numbers reach the sink in order.
        self._publishing = threading.Lock()
        self._seq = 0
        self._revision = 0
        self._published = 0
        self._dropped = 0
        self._entries = 0
        self._misfits = 0
        self._last_publish = time.monotonic()

        self._throttle = Throttle()
        self._wake = threading.Event()
        self._thread = threading.Thread(target=self._run, name="cache-event-emitter", daemon=True)
        self._thread.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def instance_id(self) -> str:
        """The id of the stream."""
        return self._instance_id

    @property
    def incarnation(self) -> int:
        """The incarnation of the stream."""
        return self._incarnation

    def counters(self) -> EmitterCounters:
        """A reading of the counters; those of a batch under way may be a step apart."""
        return EmitterCounters(
            last_seq=self._seq,
            published=self._published,
            dropped=self._dropped,
            entries=self._entries,
            refused=self._log.refused + self._misfits,
            unbound=self._log.unbound,
            evicted=self._log.evicted,
            waiting=self._log.waiting,
        )

    def on_tokens(
        self,
        chunk_hashes: Sequence[bytes],
        token_ids: Sequence[Sequence[int] | NDArray[Any]],
        token_offsets: Sequence[int],
    ) -> None:
        """Remember the tokens of chunks for the stores that will name them.

        Args:
            chunk_hashes: the digests of the chunks.
            token_ids: the tokens of each chunk.
            token_offsets: where the first token of each chunk sits in its sequence.
        """
        try:
            self._log.bind(
                [
                    (check_chunk_hash(chunk_hash), check_token_ids(tokens), check_token_offset(offset))
                    for chunk_hash, tokens, offset in zip(chunk_hashes, token_ids, token_offsets, strict=True)
                ]
            )
        except Exception as error:
            # A store of theirs goes out without tokens; nothing is missing from the stream.
            self._warn("tokens", "cannot remember tokens: %s", error)

    def on_store(
        self,
        tier: Tier,
        backend: str,
        keys: Sequence[ObjectKey],
        sizes: Sequence[int],
        *,
        shared: bool = False,
    ) -> None:
        """Keys were stored, each in as many bytes; their chunks' tokens go along where remembered."""
        self._note(EventType.STORE, tier, backend, shared, keys, sizes)

    def on_delete(self, tier: Tier, backend: str, keys: Sequence[ObjectKey], *, shared: bool = False) -> None:
        """Keys were dropped."""
        self._note(EventType.DELETE, tier, backend, shared, keys)

    def on_access(
        self, tier: Tier, keys: Sequence[ObjectKey], *, backend: str = "", shared: bool = False
    ) -> None:
        """Keys were read."""
        self._note(EventType.ACCESS, tier, backend, shared, keys)

    def on_capacity(self, capacities: Sequence[Capacity]) -> None:
        """Declare all compartments of the instance; takes the place of any declaration before it."""
        try:
            if not all(isinstance(capacity, Capacity) for capacity in capacities):
                raise ContractError("capacities", "a sequence of Capacity", capacities)
            self._log.declare(tuple(capacities))
        except Exception as error:
            self._warn("capacity", "cannot declare capacities: %s", error)

    def flush(self, timeout: float = CLOSE_TIMEOUT) -> bool:
        """Hand over all that was noted before and wait for delivery; not for the serving path.

        Returns:
            Whether the sink has nothing left to deliver.
        """
        self._publish()
        return self._sink.flush(timeout)

    def close(self) -> None:
        """Hand over what was noted and close the sink, which delivers what it can within seconds."""
        if self._closing.is_set():
            return
        self._log.close()
        self._closing.set()
        self._wake.set()
        self._thread.join(CLOSE_TIMEOUT)
        if self._thread.is_alive():
            logger.warning("the sink of %r still holds up a batch, leaving it behind", self._instance_id)
            return
        try:
            self._publish()
            self._sink.close()
        except Exception as error:
            logger.warning("the sink of %r does not close: %s", self._instance_id, error)

    def _note(
        self,
        event_type: EventType,
        tier: Tier,
        backend: str,
        shared: bool,
        keys: Sequence[ObjectKey],
        sizes: Sequence[int] = (),
    ) -> None:
        try:
            if len(keys):
                self._log.note(Kind(event_type, tier, backend, shared), keys, sizes)
        except Exception as error:
            self._log.leave_hole(len(keys) if isinstance(keys, Sized) else 1)
            self._warn("refused", "a change cannot be emitted and leaves a gap: %s", error)
        if self._log.waiting >= self._flush_entries:
            self._wake.set()

    # What follows runs on the emitter's own thread, or on one that calls flush or close.

    def _run(self) -> None:
        while not self._closing.is_set():
            self._wake.wait(self._flush_interval)
            self._wake.clear()
            try:
                self._publish(idle_after=self._idle_interval)
            except Exception:
                logger.exception("the emitter of %r stumbled", self._instance_id)

    def _publish(self, idle_after: float | None = None) -> None:
        with self._publishing:
            drained = self._log.drain()
            batches: list[CacheEventBatch] = []
            for group in drained.groups:
                batches += self._build(group)
            batches += self._declare(drained.capacities, drained.ts)
            idle = time.monotonic() - self._last_publish
            if not batches and idle_after is not None and idle >= idle_after:
                batches = [self._number(Kind(EventType.ACCESS, Tier.L1, ""), drained.ts)]
            if batches and not self._hand_over(batches) and drained.capacities:
                # A declaration is small and whole, so it can be made again.
                self._log.declare(drained.capacities, again=True)

    def _build(self, group: Group) -> list[CacheEventBatch]:
        if group.kind is None:
            self._skip()
            return []
        entries: list[CacheEventEntry] = []
        for key, size, (tokens, offset) in group.rows:
            try:
                entries.append(CacheEventEntry(key, size, tokens, offset))
            except ContractError as error:
                self._warn("refused", "a change cannot be emitted and leaves a gap: %s", error)
        if misfits := len(group.rows) - len(entries):
            self._misfits += misfits
            self._skip()
        names = (self._instance_id, group.kind.backend)
        pieces = cut(entries, names, self._sink.wires, self._record_limit)
        self._entries += len(entries)
        return [self._number(group.kind, group.ts, piece) for piece in pieces]

    def _declare(self, capacities: Sequence[Capacity], ts: float) -> list[CacheEventBatch]:
        self._revision += bool(capacities)
        return [
            self._number(
                Kind(EventType.CONFIG, capacity.tier, capacity.backend, capacity.shared),
                ts,
                capacity_bytes=capacity.capacity_bytes,
                capacity_revision=self._revision,
            )
            for capacity in capacities
        ]

    def _number(
        self, kind: Kind, ts: float, entries: Sequence[CacheEventEntry] = (), **capacity: int
    ) -> CacheEventBatch:
        self._seq += 1
        return CacheEventBatch(
            self._instance_id,
            self._incarnation,
            self._seq,
            kind.event_type,
            kind.tier,
            kind.backend,
            entries,
            kind.shared,
            ts,
            **capacity,
        )

    def _skip(self) -> None:
        self._seq += 1
        self._dropped += 1

    def _hand_over(self, batches: list[CacheEventBatch]) -> bool:
        self._last_publish = time.monotonic()
        dropped = 0
        try:
            self._sink.publish(batches)
        except Exception as error:
            dropped = error.dropped if isinstance(error, PublishError) else len(batches)
            self._warn("sink", "batches are lost and leave a gap: %s", error)
        self._published += len(batches) - dropped
        self._dropped += dropped
        return dropped == 0

    def _warn(self, trouble: str, message: str, error: Exception) -> None:
        if self._throttle.due(trouble):
            logger.warning("emitter of %r: " + message, self._instance_id, error)
