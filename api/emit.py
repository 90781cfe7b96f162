"""The command `emit`: batches from a trace file or made up, handed to a sink of choice.

It holds no emitter: batches go out as they are, with the numbers they have, so that any story can be told.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from api.console import UserError, counted, no_nan, stdout_console
from processor.offline import flag_of
from producer.events import CacheEventBatch

PUBLISH_BATCHES: Final = 64
"""Batches handed to a sink at a time."""
DELIVERY_TIMEOUT: Final = 30.0
"""Seconds to wait for the last record to be taken."""
OF_SYNTHETIC: Final = (
    "instance_id", "incarnation", "chunks", "chunk_size", "world_size", "model_name", "seed"
)  # fmt: skip
"""Options that a trace file leaves nothing to do."""
OF_KAFKA: Final = ("kafka_topic", "kafka_config", "spool", "wire")
"""Options that mean nothing by HTTP."""

out = stdout_console()


def emit(
    context: typer.Context,
    trace: Annotated[Path | None, typer.Argument(help="A trace file: one batch a line.")] = None,
    synthetic: Annotated[int, typer.Option(help="Make up this many batches instead.", min=0)] = 0,
    url: Annotated[str, typer.Option(help="Post to this server.")] = "",
    kafka_bootstrap_servers: Annotated[
        str, typer.Option(envvar="BLENDSTREAM_KAFKA_BOOTSTRAP_SERVERS", help="Produce to these brokers.")
    ] = "",
    kafka_topic: Annotated[
        str, typer.Option(envvar="BLENDSTREAM_KAFKA_TOPIC", help="Topic to produce to.")
    ] = "lmcache-cache-events",
    kafka_config: Annotated[
        Path | None, typer.Option(envvar="BLENDSTREAM_KAFKA_CONFIG", help="Properties file for librdkafka.")
    ] = None,
    spool: Annotated[
        Path | None, typer.Option(help="Folder where batches wait while the brokers are away.")
    ] = None,
    wire: Annotated[str, typer.Option(help="rows or columns; rows while LMCache reads too.")] = "columns",
    rate: Annotated[
        float, typer.Option(help="Batches a second; 0 for as fast as possible.", min=0, callback=no_nan)
    ] = 0.0,
    instance_id: Annotated[str, typer.Option(help="Of synthetic batches.")] = "synthetic-1",
    incarnation: Annotated[int, typer.Option(help="Of synthetic batches; 0 takes the clock.")] = 0,
    chunks: Annotated[int, typer.Option(help="Chunks of a synthetic batch.", min=1)] = 16,
    chunk_size: Annotated[int, typer.Option(help="Tokens of a synthetic chunk.", min=1)] = 256,
    world_size: Annotated[int, typer.Option(help="Workers of a synthetic instance.", min=1)] = 1,
    model_name: Annotated[str, typer.Option(help="Of synthetic keys.")] = "synthetic",
    seed: Annotated[int, typer.Option(help="Of synthetic tokens.", min=0)] = 0,
) -> None:
    """Send cache events, from a trace file or made up, to Kafka or to a server."""
    from api.synthetic import Synthetic
    from producer.sinks.protocol import PublishError
    from producer.sinks.trace import read_trace

    if (trace is None) == (synthetic == 0):
        raise UserError("give either a trace file or --synthetic N")
    if trace is not None and not trace.is_file():
        raise UserError(f"no such trace file: {trace}")
    if trace is not None:
        _refuse(context, OF_SYNTHETIC, "says nothing of a trace file, which is sent as it is")
    if url:
        _refuse(context, OF_KAFKA, "goes with --kafka-bootstrap-servers, not with --url")
    sink = _sink(url, kafka_bootstrap_servers, kafka_topic, kafka_config, wire, spool)
    now = time.time()
    made = Synthetic(
        instance_id, incarnation or int(now), synthetic, chunks, chunk_size, world_size, model_name, seed=seed
    )
    events = read_trace(trace) if trace is not None else _as_of_now(made.events(now))
    try:
        sent, entries = _publish(sink, events, rate)
        if not sink.flush(DELIVERY_TIMEOUT):
            raise UserError("not every batch was taken in time; is the broker there?" + _left_in(spool, sink))
    except PublishError as error:
        raise UserError(str(error) + _left_in(spool, sink)) from None
    finally:
        sink.close()
    out.print(f"sent {counted(sent, 'batch', 'batches')} with {counted(entries, 'entry', 'entries')}")


def _as_of_now(events: Iterator[CacheEventBatch]) -> Iterator[CacheEventBatch]:
    """Batches with the time at which each is asked for, which is when it is about to be sent."""
    return (replace(batch, ts=time.time()) for batch in events)


def _refuse(context: typer.Context, names: Iterable[str], reason: str) -> None:
    """Refuse options that would do nothing; one that the environment sets is meant for other commands too."""
    for name in names:
        source = context.get_parameter_source(name)
        if source is not None and source.name == "COMMANDLINE":
            raise UserError(f"{flag_of(name)} {reason}")


def _sink(url: str, brokers: str, topic: str, config: Path | None, wire: str, spool: Path | None) -> Any:
    if bool(url) == bool(brokers):
        raise UserError("give either --url or --kafka-bootstrap-servers")
    if url:
        from producer.sinks.http import HttpSink

        path = url.removeprefix("unix:")
        return HttpSink("http://localhost", uds=path) if path != url else HttpSink(url)
    from producer.kafka_properties import read_properties
    from producer.sinks.kafka import KafkaSink
    from producer.sinks.kafka_carrier import KafkaCarrier
    from producer.wire import Wire

    if wire not in tuple(Wire):
        raise UserError(f"--wire must be one of {', '.join(Wire)}, got {wire!r}")
    try:
        properties = read_properties(config) if config else {}
        if spool:
            return _spool(spool, KafkaCarrier(brokers, topic, wire=Wire(wire), properties=properties))
        _check_brokers(brokers)
        return KafkaSink(brokers, topic, wire=Wire(wire), properties=properties)
    except (OSError, ValueError) as error:
        raise UserError(f"--kafka-config: {error}") from None


def _spool(folder: Path, carrier: Any) -> Any:
    from producer.sinks.spool import SpoolSink

    try:
        return SpoolSink(folder, carrier)
    except OSError as error:
        raise UserError(f"--spool: {error}") from None


def _left_in(folder: Path | None, sink: Any) -> str:
    """What becomes of the batches that a spool still has."""
    if folder is None:
        return ""
    left = f"; what is left waits in {folder} and goes first next time"
    if in_memory := sink.counters().in_memory:
        left += f", save {in_memory} batches in memory, which its disk did not take: they are lost"
    return left


def _check_brokers(brokers: str) -> None:
    """Ask one broker who it is, so that a wrong address is told at once rather than after a timeout."""
    from confluent_kafka import KafkaException
    from confluent_kafka.admin import AdminClient

    try:
        AdminClient({"bootstrap.servers": brokers, "log_level": 0}).list_topics(timeout=5.0)
    except KafkaException as error:
        raise UserError(
            f"no Kafka broker answers at {brokers} ({error.args[0].str()}); "
            "`blendstream broker` starts a local one"
        ) from None


def _publish(sink: Any, events: Iterator[Any], rate: float) -> tuple[int, int]:
    sent = entries = 0
    group: list[Any] = []
    began = time.monotonic()
    for batch in events:
        group.append(batch)
        entries += len(batch.entries)
        if len(group) >= (1 if rate else PUBLISH_BATCHES):
            sink.publish(group)
            sent += len(group)
            group = []
            if rate:
                time.sleep(max(0.0, began + sent / rate - time.monotonic()))
    if group:
        sink.publish(group)
    return sent + len(group), entries
