"""The metrics: every name in one table, and the collector that fills it in at a scrape.

Nothing is counted through labels on the hot path. The gate, the sources and the directory keep plain
integers of their own; a scrape looks at each once and spells out what it saw, so that series appear with
what they describe and go away with it. Only the two histograms are fed as things happen, into arrays of
their own. The registry belongs to one service; the global one of prometheus-client is left alone.
"""

from __future__ import annotations

import platform
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from typing import Final, NamedTuple, Self

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector

from processor.durability.keeper import CheckpointStatus
from processor.ingest.gate import EventGate
from processor.ingest.outcomes import GateCounters
from processor.ingest.source import SourceStatus
from processor.ingest.stream import StreamStatus
from processor.membership import Membership
from processor.meters import BlendMeter, Histogram, Meter
from processor.state.capacity import CapacityRegistry
from processor.state.directory import DirectoryStats, KeyDirectory, Usage
from producer.events import Tier

PREFIX: Final = "blendstream_"


class Kind(NamedTuple):
    """What a metric is: `gauge`, `counter` or `histogram`, its help and the names of its labels."""

    type: str
    help: str
    labels: tuple[str, ...] = ()


TABLE: Final[dict[str, Kind]] = {
    "gap_detected": Kind("gauge", "1 while the emitter's stream lacks batches, else 0.", ("instance_id",)),
    "missing_batches": Kind("gauge", "Batches of the emitter that are being looked for.", ("instance_id",)),
    "lost_batches": Kind("gauge", "Batches of the emitter that were given up.", ("instance_id",)),
    "stream_conflict": Kind("gauge", "1 while two processes seem to use the instance_id.", ("instance_id",)),
    "registered_instances": Kind("gauge", "Cache servers that are registered."),
    "instance_timeouts_total": Kind("counter", "Registered cache servers given up as not heard from."),
    "gaps_total": Kind("counter", "Times that an emitter's stream came to lack batches."),
    "gaps_cleared_total": Kind("counter", "Times that an emitter's stream ceased to lack any."),
    "ingest_batches_total": Kind("counter", "Batches by outcome; undecodable counts records.", ("result",)),
    "ingest_entries_total": Kind("counter", "Entries of applied batches.", ("event_type",)),
    "unfitting_chunks_total": Kind("counter", "Chunks stored with other than --chunk-size tokens."),
    "tokens_dropped_total": Kind("counter", "Chunks whose tokens were left out: too large, or too many."),
    "consumer_failures_total": Kind("counter", "Batches and fences a consumer failed at.", ("consumer",)),
    "dead_letters_lost_total": Kind("counter", "Undecodable records whose copy the topic did not take."),
    "fences_total": Kind("counter", "Times that an instance's memory was declared gone."),
    "consumer_lag": Kind("gauge", "Records of it still to be read; absent while unknown.", ("partition",)),
    "consumer_position": Kind("gauge", "Next offset to be read of the partition.", ("partition",)),
    "log_end": Kind("gauge", "Offset that the partition's next record will get.", ("partition",)),
    "consumer_lag_seconds": Kind("gauge", "Age of the oldest record still to be read; absent while unknown."),
    "replay_streams": Kind("gauge", "Streams that replay is at, by the state it is in.", ("state",)),
    "replay_scans_total": Kind("counter", "Stretches of partitions read again for missing batches."),
    "replay_failures_total": Kind("counter", "Such stretches that had to be given up and tried again."),
    "replay_records_total": Kind("counter", "Records read again, by what became of them.", ("outcome",)),
    "group_commits_total": Kind("counter", "Positions committed for lag tools, by result.", ("result",)),
    "event_age_seconds": Kind("histogram", "From the emitter's clock to the batch applied."),
    "ready": Kind("gauge", "1 while the state is caught up with the stream, else 0."),
    "directory_keys": Kind("gauge", "Keys with at least one placement."),
    "directory_tombstones": Kind("gauge", "Deleted placements remembered against late batches."),
    "directory_refused_total": Kind("counter", "Entries refused because the state was full."),
    "directory_placements": Kind("gauge", "Placements by tier.", ("tier",)),
    "directory_placement_bytes": Kind("gauge", "Reported bytes of the placements by tier.", ("tier",)),
    "instance_placement_bytes": Kind(
        "gauge", "Reported bytes of the placements; instance_id is empty for shared ones.",
        ("instance_id", "tier", "backend"),
    ),
    "instance_capacity_bytes": Kind(
        "gauge", "Declared size of a compartment, where one was declared.", ("instance_id", "tier", "backend")
    ),
    "state_capacity_used_ratio": Kind("gauge", "Part of --max-chunks that is in use."),
    "blend_contents": Kind("gauge", "Distinct chunk contents indexed."),
    "blend_claims": Kind("gauge", "Indexed chunks, counted once a namespace."),
    "blend_lookup_seconds": Kind("histogram", "Time to match one query."),
    "blend_matches_total": Kind("counter", "Chunks found in queries."),
    "blend_hit_tokens_total": Kind("counter", "Tokens of queries that found chunks cover."),
    "checkpoint_last_success_timestamp_seconds": Kind("gauge", "When the newest checkpoint was taken."),
    "checkpoint_duration_seconds": Kind("gauge", "Time that the last checkpoint took."),
    "checkpoint_pause_seconds": Kind("gauge", "Time that no batch was let through for the last checkpoint."),
    "checkpoint_bytes": Kind("gauge", "Bytes that the last checkpoint holds."),
    "checkpoint_written_bytes": Kind("gauge", "Bytes of these that were not linked from an earlier one."),
    "checkpoint_successes_total": Kind("counter", "Checkpoints written."),
    "checkpoint_failures_total": Kind("counter", "Checkpoints that could not be written."),
    "checkpoint_damaged": Kind("gauge", "Damaged checkpoints passed over at the start."),
    "checkpoint_restored_timestamp_seconds": Kind("gauge", "When the one restored at the start was taken."),
    "checkpoint_restore_seconds": Kind("gauge", "Time that restoring it took."),
    "build_info": Kind("gauge", "1; the versions are the labels.", ("version", "python")),
}  # fmt: skip
"""Every metric by its name without the prefix. What a scrape shows and this table lacks does not exist."""

LMCACHE_PLACEMENTS: Final = "lmcache_coordinator_key_directory_placements"
LMCACHE_BYTES: Final = "lmcache_coordinator_key_directory_placement_bytes"


@dataclass(frozen=True, slots=True)
class Scrape:
    """All that is shown, as of one moment. `capacities` are (instance_id, tier, backend, bytes)."""

    ready: bool
    streams: list[StreamStatus]
    registered: int
    timeouts: int
    counters: GateCounters
    consumer_failures: dict[str, int]
    sources: list[SourceStatus]
    refused_bodies: int
    meter: Meter
    stats: DirectoryStats
    usage: list[Usage]
    capacities: list[tuple[str, Tier, str, int]]
    capacity_used: float
    blend: BlendMeter
    checkpoints: CheckpointStatus | None

    @classmethod
    def of(
        cls,
        gate: EventGate,
        directory: KeyDirectory,
        capacities: CapacityRegistry,
        membership: Membership,
        *,
        ready: bool,
        consumer_failures: dict[str, int],
        sources: list[SourceStatus],
        refused_bodies: int,
        meter: Meter,
        blend: BlendMeter,
        checkpoints: CheckpointStatus | None,
    ) -> Self:
        """Look at the parts of a service; what has no part of its own is told."""
        return cls(
            ready=ready,
            streams=gate.streams(),
            registered=len(membership.registry),
            timeouts=membership.timeouts,
            counters=gate.counters(),
            consumer_failures=consumer_failures,
            sources=sources,
            refused_bodies=refused_bodies,
            meter=meter,
            stats=directory.stats(),
            usage=directory.usage(),
            capacities=[
                (instance_id, capacity.tier, capacity.backend, capacity.capacity_bytes)
                for instance_id, declared in capacities.get_all().items()
                for capacity in declared
            ],
            capacity_used=directory.capacity_used(),
            blend=blend,
            checkpoints=checkpoints,
        )


class ServiceCollector(Collector):
    """Spells out what `scrape` gives, anew each time; there is nothing of a service that still starts."""

    def __init__(self, scrape: Callable[[], Scrape | None]) -> None:
        self._scrape = scrape

    def describe(self) -> Iterable[Metric]:
        """The names, so that registering needs no scrape."""
        return [_family(name) for name in TABLE]

    def collect(self) -> Iterator[Metric]:
        """Every metric of the table, and LMCache's two gauges."""
        taken = self._scrape()
        yield _plain("ready", float(taken is not None and taken.ready))
        yield _labelled("build_info", [((_version(), platform.python_version()), 1)])
        if taken is None:
            return
        yield from _stream_metrics(taken)
        yield from _ingest_metrics(taken)
        yield from _source_metrics(taken.sources)
        yield from _state_metrics(taken)
        yield from _blend_metrics(taken)
        yield from _checkpoint_metrics(taken.checkpoints)
        yield from _lmcache_metrics(taken.stats)


def make_registry(scrape: Callable[[], Scrape | None]) -> CollectorRegistry:
    """A registry that shows one service, and nothing else."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(ServiceCollector(scrape))
    return registry


def render(registry: CollectorRegistry, accept: str) -> tuple[bytes, str]:
    """The scrape in the format that `accept` asks for, and its content type."""
    try:
        encoder, content_type = choose_encoder(accept)
    except (TypeError, ValueError):  # a version that is none
        encoder, content_type = choose_encoder("")
    return encoder(registry), content_type


Samples = Iterable[tuple[tuple[str, ...], float]]

_FAMILIES: Final[dict[str, Callable[..., Metric]]] = {
    "gauge": GaugeMetricFamily,
    "counter": CounterMetricFamily,
    "histogram": HistogramMetricFamily,
}


def _family(name: str) -> Metric:
    kind = TABLE[name]
    family: Metric = _FAMILIES[kind.type](PREFIX + name, kind.help, labels=kind.labels)
    return family


def _labelled(name: str, samples: Samples) -> Metric:
    family = _family(name)
    assert isinstance(family, (GaugeMetricFamily, CounterMetricFamily))
    for labels, value in samples:
        family.add_metric(list(labels), value)
    return family


def _plain(name: str, value: float) -> Metric:
    return _labelled(name, [((), value)])


def _histogram(name: str, histogram: Histogram) -> Metric:
    family = _family(name)
    assert isinstance(family, HistogramMetricFamily)
    buckets, total = histogram.buckets()
    family.add_metric([], buckets, total)
    return family


def _stream_metrics(taken: Scrape) -> Iterator[Metric]:
    streams = taken.streams
    yield _labelled("gap_detected", (((s.instance_id,), float(s.gap_detected)) for s in streams))
    yield _labelled("missing_batches", (((s.instance_id,), s.missing_batches) for s in streams))
    yield _labelled("lost_batches", (((s.instance_id,), s.lost_batches) for s in streams))
    yield _labelled("stream_conflict", (((s.instance_id,), float(s.conflict)) for s in streams))
    yield _plain("registered_instances", taken.registered)
    yield _plain("instance_timeouts_total", taken.timeouts)
    yield _plain("gaps_total", taken.counters.gaps)
    yield _plain("gaps_cleared_total", taken.counters.gaps_cleared)


def _ingest_metrics(taken: Scrape) -> Iterator[Metric]:
    undecodable = taken.refused_bodies + sum(source.undecodable for source in taken.sources)
    results = {**taken.counters.batches, "undecodable": undecodable}
    yield _labelled("ingest_batches_total", (((result,), count) for result, count in results.items()))
    yield _labelled(
        "ingest_entries_total", (((kind,), count) for kind, count in taken.counters.entries.items())
    )
    failures = taken.consumer_failures.items()
    yield _labelled("consumer_failures_total", (((name,), count) for name, count in failures))
    yield _plain("dead_letters_lost_total", sum(source.dead_letters_lost for source in taken.sources))
    yield _plain("fences_total", taken.counters.fences)
    yield _plain("unfitting_chunks_total", taken.meter.unfitting)
    yield _plain("tokens_dropped_total", taken.meter.tokens_dropped)
    yield _histogram("event_age_seconds", taken.meter.ages)


def _source_metrics(sources: list[SourceStatus]) -> Iterator[Metric]:
    partitions = [partition for source in sources for partition in source.partitions]
    # While the broker is away its last words say nothing: a lag of 0 would look as if all were well.
    heard = [
        partition for source in sources if source.lag_seconds is not None for partition in source.partitions
    ]
    yield _labelled("consumer_lag", (((str(p.partition),), p.lag) for p in heard if p.lag is not None))
    yield _labelled("consumer_position", (((str(p.partition),), p.position) for p in partitions))
    yield _labelled("log_end", (((str(p.partition),), p.end) for p in heard if p.end is not None))
    replays = [source.replay for source in sources if source.replay is not None]
    states = [((state,), count) for replay in replays for state, count in replay.states.items()]
    yield _labelled("replay_streams", states)
    yield _labelled("replay_scans_total", (((), replay.scans) for replay in replays))
    yield _labelled("replay_failures_total", (((), replay.failures) for replay in replays))
    records = [((outcome,), count) for replay in replays for outcome, count in replay.records.items()]
    yield _labelled("replay_records_total", records)
    commits = [((result,), count) for source in sources for result, count in source.commits.items()]
    yield _labelled("group_commits_total", commits)
    lags = [source.lag_seconds for source in sources]
    known = [lag for lag in lags if lag is not None]
    yield _labelled("consumer_lag_seconds", [((), max(known))] if known and len(known) == len(lags) else [])


def _state_metrics(taken: Scrape) -> Iterator[Metric]:
    stats = taken.stats
    yield _plain("directory_keys", stats.num_keys)
    yield _plain("directory_tombstones", stats.num_tombstones)
    yield _plain("directory_refused_total", stats.refused)
    yield _labelled("directory_placements", [(("l1",), stats.l1_count), (("l2",), stats.l2_count)])
    yield _labelled(
        "directory_placement_bytes", [(("l1",), stats.l1_size_bytes), (("l2",), stats.l2_size_bytes)]
    )
    held: dict[tuple[str, ...], float] = {}
    for usage in taken.usage:
        labels = (usage.instance_id, usage.tier.value, usage.backend)
        held[labels] = held.get(labels, 0) + usage.size_bytes
    yield _labelled("instance_placement_bytes", held.items())
    yield _labelled(
        "instance_capacity_bytes",
        (((instance_id, tier.value, backend), size) for instance_id, tier, backend, size in taken.capacities),
    )
    yield _plain("state_capacity_used_ratio", taken.capacity_used)


def _blend_metrics(taken: Scrape) -> Iterator[Metric]:
    yield _plain("blend_contents", taken.stats.blend.num_contents)
    yield _plain("blend_claims", taken.stats.blend.num_claims)
    yield _histogram("blend_lookup_seconds", taken.blend.seconds)
    yield _plain("blend_matches_total", taken.blend.matches)
    yield _plain("blend_hit_tokens_total", taken.blend.hit_tokens)


def _checkpoint_metrics(status: CheckpointStatus | None) -> Iterator[Metric]:
    values: dict[str, float | None] = {}
    if status is not None:
        values = {
            "last_success_timestamp_seconds": status.newest,
            "successes_total": status.successes,
            "failures_total": status.failures,
            "damaged": status.damaged,
            "restored_timestamp_seconds": status.restored_from,
            "restore_seconds": status.restore_seconds if status.restored_from else None,
        }
        if status.last is not None:
            last = status.last
            values |= {"duration_seconds": last.duration, "pause_seconds": last.pause}
            values |= {"bytes": last.bytes, "written_bytes": last.written}
    for name in TABLE:
        if name.startswith("checkpoint_"):
            value = values.get(name.removeprefix("checkpoint_"))
            yield _labelled(name, [] if value is None else [((), value)])


def _lmcache_metrics(stats: DirectoryStats) -> Iterator[Metric]:
    shown = (
        (LMCACHE_PLACEMENTS, "Placements by tier, under LMCache's name.", stats.l1_count, stats.l2_count),
        (
            LMCACHE_BYTES,
            "Reported bytes by tier, under LMCache's name.",
            stats.l1_size_bytes,
            stats.l2_size_bytes,
        ),
    )
    for name, help, l1, l2 in shown:
        family = GaugeMetricFamily(name, help, labels=["tier"])
        family.add_metric(["l1"], l1)
        family.add_metric(["l2"], l2)
        yield family


def _version() -> str:
    try:
        return version("blendstream")
    except PackageNotFoundError:
        return "unknown"
