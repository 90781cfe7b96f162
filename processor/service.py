"""One processor: builds the parts, runs them, and is all that `api` sees of them.

    sources --> gate --> broadcaster --> directory, capacities, meter
                 ^
    membership --+

Start and stop are ordered: a source is the first to go, so that nothing is offered to parts that have
stopped, and the last checkpoint follows. Between them a thread keeps house once a second. All of it may be
called from any thread, and answers from the state while the broker is away. Until `start` has returned only
`phase`, `not_ready`, `warnings`, `scrape` and `stop` may be called: they touch nothing that is being made.
"""

from __future__ import annotations

import logging
import threading
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future

import numpy as np
from numpy.typing import NDArray

from processor.config import Config, ConfigError
from processor.durability.checkpoint import Report
from processor.durability.components import make_keeper
from processor.durability.errors import CheckpointError, CheckpointsDisabled
from processor.housekeeping import Housekeeper
from processor.ingest import pieces
from processor.ingest.broadcaster import Broadcaster
from processor.ingest.decode import DecodeError, Decoder
from processor.ingest.gate import EventGate
from processor.ingest.http_source import HttpEventSource
from processor.ingest.kafka_settings import KafkaSettings
from processor.ingest.kafka_source import KafkaEventSource
from processor.ingest.lifting import Lift
from processor.ingest.outcomes import IngestSummary, UnknownStream
from processor.ingest.source import EventSource
from processor.ingest.stream import LostRange, StreamStatus
from processor.membership import Membership
from processor.meters import BlendMeter, Meter
from processor.metrics import Scrape, make_registry, render
from processor.phase import STARTING, Lifecycle, Phase, StartAbandoned
from processor.readiness import behind, checkpoint_warnings, state_warnings, told_range
from processor.state.capacity import CapacityRegistry
from processor.state.directory import DirectoryStats, KeyDirectory, KeyInfo, Match, default_max_chunks
from processor.state.registry import Instance
from processor.state.usage import FleetUsage, InstanceUsage, fleet_usage, instance_usage
from processor.warmup import warm_up
from producer.events import Namespace, ObjectKey, Tier

__all__ = [
    "CheckpointError",
    "CheckpointsDisabled",
    "Config",
    "DecodeError",
    "DirectoryStats",
    "FleetUsage",
    "IngestSummary",
    "Instance",
    "InstanceUsage",
    "KeyInfo",
    "Lift",
    "LostRange",
    "Match",
    "NoLog",
    "Phase",
    "Service",
    "StartAbandoned",
    "StreamStatus",
    "UnknownStream",
    "pieces",
]

logger = logging.getLogger(__name__)

STOP_WITHIN = 6.0
"""Seconds that stopping may take; the checkpoint at the end gets what ending the sources leaves of them."""
START_PATIENCE = 2.0
"""Seconds that a start under way is given to notice the end."""


class NoLog(RuntimeError):
    """Nothing can be replayed, since events do not come from a log."""


class Service:
    """A processor of one fleet's events.

    Args:
        config: its settings; valid by construction.
        clock: seconds since the epoch.
    """

    def __init__(self, config: Config, *, clock: Callable[[], float] = time.time) -> None:
        self.config = config
        self._clock = clock
        self._max_chunks = config.max_chunks or default_max_chunks(config.chunk_size)
        self._directory = KeyDirectory(
            chunk_size=config.chunk_size,
            max_chunks=self._max_chunks,
            enable_blend=config.enable_blend_lookup,
            probe_stride=config.blend_probe_stride,
        )
        self._capacities = CapacityRegistry()
        self._meter = Meter(config.chunk_size, clock)
        self._blend = BlendMeter()
        self._broadcaster = Broadcaster([self._directory, self._capacities, self._meter])
        self._gate = EventGate(
            self._broadcaster,
            repair_window=config.repair_window,
            clock=clock,
            seekable=config.event_transport == "kafka",
        )
        self._push = HttpEventSource(self._gate, Decoder(config.chunk_size), clock=clock)
        self._kafka = self._kafka_source() if config.event_transport == "kafka" else None
        self._sources: list[EventSource] = [self._push] if config.push_enabled else []
        if self._kafka is not None:
            self._sources.append(self._kafka)
        self._membership = Membership(
            self._gate,
            self._capacities,
            self._kafka,
            timeout=config.instance_timeout,
            interval=config.health_check_interval,
            ready=lambda: not self.not_ready(),
        )
        self._keeper = make_keeper(
            config, self._gate, self._directory.parts, self._kafka,
            {"capacities": self._capacities, "membership": self._membership}, clock,
        )  # fmt: skip
        self._refused_bodies = 0
        self._life = Lifecycle()
        self._moving = threading.Lock()
        # A checkpoint that fails is logged where it does.
        self._housekeeper = Housekeeper(
            self._gate, self._membership, self._sources, self.not_ready, self._state_warnings,
            clock=clock, clock_skew=config.clock_skew,
        )  # fmt: skip
        self._registry = make_registry(self._scrape)

    @property
    def phase(self) -> Phase:
        """How far starting is, or that it is over; only while `RUNNING` may the state be asked."""
        return self._life.phase

    def start(self) -> None:
        """Load the kernels, restore the state and begin to read events; `phase` tells how far that is.

        The kernels take a second, or a minute where they were never compiled on this machine.

        Raises:
            ConfigError: librdkafka refuses a setting.
            CheckpointError: the folder of checkpoints, or the one in it, cannot be used.
            StartAbandoned: `stop` was called meanwhile.
        """
        with self._moving:
            self._life.enter(Phase.LOADING)
            warm_up()
            self._life.enter(Phase.RESTORING)
            if self._keeper:
                self._keeper.start()
            self._life.enter(Phase.CONNECTING)
            self._directory.keep_memory_ready()
            try:
                for source in self._sources:
                    source.start()
            except ValueError as error:
                raise ConfigError(f"--kafka-config: {error}") from None
            self._housekeeper.start()
            self._membership.start()
            self._life.enter(Phase.RUNNING)

    def stop(self) -> None:
        """End reading, keep the state and let go of everything. May be called twice, and without a start.

        A start under way in another thread ends with its next step. One that does not come to it soon is left
        alone, and no checkpoint is written: so far it only read, and the process may end in its midst.
        """
        last = self._life.end()
        if not self._moving.acquire(timeout=START_PATIENCE):
            logger.info("ending in the midst of a start (%s)", last.value)
            return
        try:
            self._stop()
        finally:
            self._moving.release()

    def push(self, body: bytes) -> IngestSummary:
        """Offer the batches of one envelope, all or, if one breaks the contract, none.

        Raises:
            DecodeError: the envelope or one of its batches is malformed.
        """
        try:
            return self._push.ingest(body, self._clock())
        except DecodeError:
            self._refused_bodies += 1
            raise

    def lookup(self, keys: Sequence[ObjectKey]) -> list[KeyInfo]:
        """What is known of each key, in order."""
        return self._directory.lookup(keys)

    def expand_groups(self, keys: Sequence[ObjectKey]) -> list[ObjectKey]:
        """Each key with its stored copies in other object groups, ascending by group."""
        return self._directory.expand_groups(keys)

    def list_keys(
        self, tier: Tier | None, instance_id: str, backend: str, offset: int, limit: int
    ) -> tuple[int, list[KeyInfo]]:
        """How many keys have a matching placement, and one page of them; empty strings match all."""
        return self._directory.list_keys(tier, instance_id, backend, offset, limit)

    def match(self, tokens: NDArray[np.uint32], namespace: Namespace, most: int | None = None) -> list[Match]:
        """The cached chunks in `tokens` that `namespace` may use, ascending by their place in the query.

        Where there are more than `most`, the search ends early, with more than that, and counts for nothing.
        """
        began = time.perf_counter()
        matches = self._directory.match(tokens, namespace, most)
        if most is None or len(matches) <= most:
            self._blend.observe(time.perf_counter() - began, matches, self.config.chunk_size)
        return matches

    def stats(self) -> DirectoryStats:
        """Counts of the directory and of the blend index."""
        return self._directory.stats()

    def streams(self, gap: bool | None = None) -> list[StreamStatus]:
        """Every emitter's stream; with `gap`, only those that have one, or have none."""
        return self._gate.streams(gap)

    def stream(self, instance_id: str) -> StreamStatus:
        """One emitter's stream.

        Raises:
            UnknownStream: nothing is known of the instance.
        """
        status = self._gate.stream(instance_id)
        if status is None:
            raise UnknownStream(instance_id)
        return status

    def accept_loss(
        self, instance_id: str, incarnation: int | None, first: int | None, last: int | None
    ) -> StreamStatus:
        """Give up on missing batches and return the stream; what is `None` narrows nothing.

        Raises:
            UnknownStream: nothing is known of the instance.
        """
        status = self._gate.accept_loss(instance_id, incarnation, first, last)
        logger.info("of %r is given up: %s", instance_id, told_range(incarnation, first, last))
        return status

    def replay(
        self, instance_id: str, incarnation: int | None, first: int | None, last: int | None
    ) -> StreamStatus:
        """Search the log for what a stream lacks, and return the stream; what is `None` narrows nothing.

        Raises:
            UnknownStream: nothing is known of the instance.
            NoLog: events do not come from a log.
        """
        if self._kafka is None:
            self.stream(instance_id)
            raise NoLog("cache events come by POST /events: there is no log to search")
        self._kafka.replay(instance_id, incarnation, first, last)
        logger.info("of %r is searched for: %s", instance_id, told_range(incarnation, first, last))
        return self.stream(instance_id)

    def reset(self, instance_id: str) -> None:
        """Fence an emitter, forget its cursor and let any incarnation in.

        Raises:
            UnknownStream: nothing is known of the instance.
        """
        self._gate.reset(instance_id)
        logger.info("the stream of %r begins afresh", instance_id)

    def register(
        self,
        instance_id: str,
        ip: str,
        http_port: int,
        *,
        metadata: Mapping[str, str] | None = None,
        p2p_advertised_url: str = "",
        mq_port: int = 0,
    ) -> tuple[str, bool]:
        """A cache server joins the fleet; from now on it has to be heard from.

        Returns:
            its id, made up if it gave none; whether it was registered already.
        """
        name = instance_id or f"mp-{uuid.uuid4().hex}"
        entry = Instance(
            name, ip, http_port, self._clock(), dict(metadata or {}), p2p_advertised_url, mq_port
        )
        return name, self._membership.register(entry)

    def heartbeat(self, instance_id: str) -> bool:
        """A cache server lives; returns whether it is registered."""
        return self._membership.registry.heard(instance_id)

    def drop_instance(self, instance_id: str) -> None:
        """An instance left the fleet: its memory is gone, and records from before now no longer count."""
        self._membership.depart(instance_id)

    def instances(self) -> list[Instance]:
        """Every registered cache server."""
        return self._membership.registry.instances()

    def fleet_usage(self) -> FleetUsage:
        """How full the compartments of every server and the shared pools are."""
        registered = [instance.instance_id for instance in self.instances()]
        return fleet_usage(self._directory.usage(), self._capacities.get_all(), registered)

    def instance_usage(self, instance_id: str) -> InstanceUsage | None:
        """How full a server's compartments are; None if nothing is known of it."""
        return instance_usage(
            instance_id,
            self._directory.usage(),
            self._capacities.get(instance_id),
            instance_id in self._membership.registry,
        )

    def checkpoint(self) -> Future[Report]:
        """Have a checkpoint written; the result comes when it is on disk, or is a `CheckpointError`.

        Raises:
            CheckpointError: there is no folder to write it to, or it is too early or too late for it.
        """
        if not self._keeper:
            raise CheckpointsDisabled("no checkpoints are kept: --checkpoint-path names the folder for them")
        return self._keeper.ask()

    def not_ready(self) -> list[str]:
        """Why answers may lack what the stream has said already; empty once they do not."""
        phase = self.phase
        if phase is not Phase.RUNNING:
            return [phase.value]
        return [reason for source in self._sources for reason in behind(source.status(), self.config)]

    def warnings(self) -> list[str]:
        """What does not keep the service from being ready, but wants attention."""
        if self.phase is not Phase.RUNNING:
            return []
        checkpoints = self._keeper.status() if self._keeper else None
        return [*self._state_warnings(), *checkpoint_warnings(checkpoints)]

    def scrape(self, accept: str = "") -> tuple[bytes, str]:
        """The metrics in the text format that `accept` asks for, and its content type."""
        return render(self._registry, accept)

    def _stop(self) -> None:
        deadline = time.monotonic() + STOP_WITHIN
        self._membership.stop()
        for source in self._sources:
            source.stop()
        self._housekeeper.stop()
        if self._keeper:
            self._keeper.stop(max(deadline - time.monotonic(), 0.0))
        if self._kafka is not None:
            # Only now: what the last checkpoint holds was committed through it.
            self._kafka.close()
        self._directory.close()

    def _state_warnings(self) -> list[str]:
        return state_warnings(self._directory.capacity_used(), self._max_chunks, self._meter)

    def _scrape(self) -> Scrape | None:
        if self.phase in STARTING:
            return None
        return Scrape.of(
            self._gate,
            self._directory,
            self._capacities,
            self._membership,
            ready=not self.not_ready(),
            consumer_failures=dict(self._broadcaster.failures),
            sources=[source.status() for source in self._sources],
            refused_bodies=self._refused_bodies,
            meter=self._meter,
            blend=self._blend,
            checkpoints=self._keeper.status() if self._keeper else None,
        )

    def _kafka_source(self) -> KafkaEventSource:
        config = self.config
        settings = KafkaSettings(
            bootstrap_servers=config.kafka_bootstrap_servers,
            topic=config.kafka_topic,
            group_id=config.kafka_group_id,
            properties=config.librdkafka_settings(),
            dead_letter_topic=config.kafka_dead_letter_topic,
            repair_window=config.repair_window,
        )
        return KafkaEventSource(self._gate, Decoder(config.chunk_size), settings, clock=self._clock)
