"""The `blendstream` command.

The options of `serve` are the fields of `processor.config.Config`; nothing is said twice. What a user can
get wrong ends in one line on stderr and status 1 (2 for a command line that makes no sense), never in a
traceback. Parts that take long to import are imported by the command that needs them.
"""

from __future__ import annotations

import inspect
import logging
import os
import sys
import time
from collections.abc import Iterable, Iterator
from dataclasses import fields
from pathlib import Path
from typing import Annotated, Any, Final

import typer
from rich.console import Console

from api.checkpoints import checkpoints
from api.client import DEFAULT_URL, Client, ServerError, ServerUnavailable
from api.console import matches_table, placements_table, stdout_console, streams_table
from processor.offline import CheckpointError, Config, ConfigError, environment_variable_of, flag_of
from producer.events import ContractError, ObjectKey

PUBLISH_BATCHES: Final = 64
"""Batches handed to a sink at a time."""
MAX_PORT: Final = 65535
DELIVERY_TIMEOUT: Final = 30.0
"""Seconds that `emit` waits for the last record to be taken."""
OF_SYNTHETIC: Final = (
    "instance_id", "incarnation", "chunks", "chunk_size", "world_size", "model_name", "seed"
)  # fmt: skip
"""Options of `emit` that a trace file leaves nothing to do."""
OF_KAFKA: Final = ("kafka_topic", "kafka_config", "spool", "wire")
"""Options of `emit` that mean nothing by HTTP."""

app = typer.Typer(
    name="blendstream",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
app.add_typer(checkpoints, name="checkpoint")
out = stdout_console()
err = Console(stderr=True, highlight=False)

Url = Annotated[
    str,
    typer.Option(
        "--url", envvar="BLENDSTREAM_URL", help="The server's address; unix:/path for a Unix socket."
    ),
]
InstanceId = Annotated[str, typer.Argument(help="The emitter's instance_id.")]


class UserError(Exception):
    """Something the user asked for cannot be done; the message says what to do about it."""


def main() -> None:
    """Run the command; the entry point of the distribution."""
    try:
        app()
    except _user_errors() as error:
        err.print(f"[red]blendstream:[/red] {_first_line(error)}", soft_wrap=True)
        sys.exit(1)


def _user_errors() -> tuple[type[Exception], ...]:
    known: list[type[Exception]] = [
        UserError,
        CheckpointError,
        ConfigError,
        ContractError,
        ServerError,
        ServerUnavailable,
    ]
    for module, name in (
        ("api.server", "AddressError"),
        ("deploy.broker", "BrokerError"),
        ("producer.sinks.trace", "TraceError"),
        ("producer.sinks.protocol", "PublishError"),
        ("producer.spool.log", "SpoolError"),
    ):
        # A module that was never imported cannot have raised anything.
        error = getattr(sys.modules.get(module), name, None)
        if error is not None:
            known.append(error)
    return tuple(known)


def _first_line(error: Exception) -> str:
    from rich.markup import escape

    return escape(str(error))


def _print_version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version

        out.print(f"blendstream {version('blendstream')}", highlight=False)
        raise typer.Exit


@app.callback()
def _common(
    _: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Show the version.")
    ] = False,
) -> None:
    """A Kafka-backed map of an LLM KV-cache fleet."""


def _serve(**settings: Any) -> None:
    """Run a processor: read the fleet's cache events and answer lookups."""
    config = Config(**settings)
    logging.basicConfig(
        level=config.log_level.upper(), format="%(asctime)s %(levelname)s %(name)s: %(message)s"
    )
    from api.server import serve

    serve(config, lambda address: err.print(f"serving on {address}", soft_wrap=True))
    # Threads still at work on a request nobody waits for any more would hold the process up.
    logging.shutdown()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)


def _options() -> inspect.Signature:
    """The fields of `Config` as the options of a command."""
    return inspect.Signature(
        [
            inspect.Parameter(
                item.name,
                inspect.Parameter.KEYWORD_ONLY,
                default=typer.Option(
                    item.default,
                    flag_of(item.name),
                    envvar=environment_variable_of(item.name),
                    help=item.metadata["help"],
                ),
                annotation=type(item.default),
            )
            for item in fields(Config)
        ]
    )


_serve.__signature__ = _options()  # type: ignore[attr-defined]
_serve.__annotations__ = {item.name: type(item.default) for item in fields(Config)}
app.command("serve")(_serve)


@app.command()
def emit(
    context: typer.Context,
    trace: Annotated[Path | None, typer.Argument(help="A trace file: one batch a line.")] = None,
    synthetic: Annotated[int, typer.Option(help="Make up this many batches instead.", min=0)] = 0,
    url: Annotated[str, typer.Option(help="Post to this server.")] = "",
    kafka_bootstrap_servers: Annotated[
        str, typer.Option(envvar="BLENDSTREAM_KAFKA_BOOTSTRAP_SERVERS", help="Produce to these brokers.")
    ] = "",
    kafka_topic: Annotated[str, typer.Option(envvar="BLENDSTREAM_KAFKA_TOPIC")] = "lmcache-cache-events",
    kafka_config: Annotated[
        Path | None, typer.Option(envvar="BLENDSTREAM_KAFKA_CONFIG", help="Properties file for librdkafka.")
    ] = None,
    spool: Annotated[
        Path | None, typer.Option(help="Folder where batches wait while the brokers are away.")
    ] = None,
    wire: Annotated[str, typer.Option(help="rows or columns; rows while LMCache reads too.")] = "columns",
    rate: Annotated[float, typer.Option(help="Batches a second; 0 for as fast as possible.")] = 0.0,
    instance_id: Annotated[str, typer.Option(help="Of synthetic batches.")] = "synthetic-1",
    incarnation: Annotated[int, typer.Option(help="Of synthetic batches; 0 takes the clock.")] = 0,
    chunks: Annotated[int, typer.Option(help="Chunks of a synthetic batch.", min=1)] = 16,
    chunk_size: Annotated[int, typer.Option(help="Tokens of a synthetic chunk.", min=1)] = 256,
    world_size: Annotated[int, typer.Option(help="Workers of a synthetic instance.")] = 1,
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
    events = read_trace(trace) if trace is not None else made.events(now)
    try:
        sent, entries = _publish(sink, events, rate)
        if not sink.flush(DELIVERY_TIMEOUT):
            raise UserError("not every batch was taken in time; is the broker there?" + _left_in(spool, sink))
    except PublishError as error:
        raise UserError(str(error) + _left_in(spool, sink)) from None
    finally:
        sink.close()
    out.print(f"sent {sent} batches with {entries} entries")


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
    from producer.sinks.kafka import KafkaSink, read_properties
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


@app.command()
def lookup(
    tokens: Annotated[Path | None, typer.Argument(help="File of token ids, - for stdin.")] = None,
    key: Annotated[list[str] | None, typer.Option(help="A chunk hash in hex; may be repeated.")] = None,
    model_name: Annotated[str, typer.Option(help="The model that the KV belongs to.")] = "",
    world_size: Annotated[int, typer.Option(help="Workers that share the model.")] = 1,
    kv_rank: Annotated[int | None, typer.Option(help="Of the keys; of worker 0 if left out.")] = None,
    object_group_id: Annotated[int, typer.Option(help="Of the keys.")] = 0,
    cache_salt: Annotated[str, typer.Option(help="The tenant's salt.")] = "",
    blend: Annotated[bool, typer.Option("--blend", help="Find the tokens' chunks at any offset.")] = False,
    url: Url = DEFAULT_URL,
) -> None:
    """Ask a server where keys, or the chunks of a token sequence, are held."""
    from producer.events import make_kv_rank

    if bool(tokens) == bool(key):
        raise UserError("give either a file of token ids or --key HASH")
    if not model_name:
        raise UserError("--model-name must be given")
    with Client(url) as client:
        if key:
            rank = make_kv_rank(world_size, 0, world_size, 0) if kv_rank is None else kv_rank
            keys = [_object_key(text, model_name, rank, object_group_id, cache_salt) for text in key]
            out.print(placements_table(client.lookup(keys)))
            return
        assert tokens is not None
        ids = _read_tokens(tokens)
        if blend:
            found = client.blend_lookup(ids, model_name, world_size=world_size, cache_salt=cache_salt)
            out.print(matches_table(found, len(ids)))
            return
        answer = client.lookup_tokens(ids, model_name, world_size=world_size, cache_salt=cache_salt)
        if not answer.chunks:
            raise UserError(f"{len(ids)} tokens do not fill a chunk")
        out.print(placements_table(answer.results))


def _object_key(text: str, model_name: str, kv_rank: int, group: int, cache_salt: str) -> ObjectKey:
    try:
        chunk_hash = bytes.fromhex(text)
    except ValueError:
        raise UserError(f"--key is not hexadecimal: {text!r}") from None
    return ObjectKey(chunk_hash, model_name, kv_rank, group, cache_salt)


def _read_tokens(path: Path) -> list[int]:
    """Token ids in decimal, separated by whatever is no digit: a JSON list will do."""
    import re

    try:
        text = sys.stdin.read() if str(path) == "-" else path.read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"cannot read {path}: {error}") from None
    words = [word for word in re.split(r"[\s,\[\]]+", text) if word]
    bad = next((word for word in words if not word.isdecimal() or int(word[:12]) >= 2**32), None)
    if bad is not None:
        raise UserError(f"{path} holds something that is no token id: {bad[:40]!r}")
    if not words:
        raise UserError(f"{path} holds no token ids")
    return [int(word) for word in words]


@app.command()
def streams(
    gap: Annotated[bool, typer.Option("--gap", help="Only streams that lack batches.")] = False,
    url: Url = DEFAULT_URL,
) -> None:
    """Show every emitter's stream: how far it has come and what it lacks."""
    with Client(url) as client:
        found = client.streams(gap=True if gap else None)
    if found:
        out.print(streams_table(found))
    else:
        out.print("no stream lacks batches" if gap else "no emitter is known: none has sent an event yet")


@app.command()
def replay(
    instance_id: InstanceId,
    incarnation: Annotated[int | None, typer.Option(help="Only of this incarnation.")] = None,
    first: Annotated[int | None, typer.Option(help="From this sequence number.")] = None,
    last: Annotated[int | None, typer.Option(help="Up to this sequence number.")] = None,
    url: Url = DEFAULT_URL,
) -> None:
    """Search the log for an emitter's missing batches: for all that may still come, or for those named."""
    with Client(url) as client:
        stream = client.replay(instance_id, incarnation=incarnation, first=first, last=last)
        out.print(streams_table([stream]))


@app.command("accept-loss")
def accept_loss(
    instance_id: InstanceId,
    incarnation: Annotated[int | None, typer.Option(help="Only of this incarnation.")] = None,
    first: Annotated[int | None, typer.Option(help="From this sequence number.")] = None,
    last: Annotated[int | None, typer.Option(help="Up to this sequence number.")] = None,
    url: Url = DEFAULT_URL,
) -> None:
    """Give up on an emitter's missing batches, by default on all of them."""
    with Client(url) as client:
        stream = client.accept_loss(instance_id, incarnation=incarnation, first=first, last=last)
        out.print(streams_table([stream]))


@app.command()
def reset(instance_id: InstanceId, url: Url = DEFAULT_URL) -> None:
    """Forget an emitter's cursor and its memory, and let any incarnation go on: the end of a conflict."""
    with Client(url) as client:
        client.reset(instance_id)
    out.print(f"{instance_id} starts afresh with its next batch")


@app.command()
def broker(
    kind: Annotated[str, typer.Option(help="embedded, kafka or docker.")] = "embedded",
    port: Annotated[
        int, typer.Option(help="Port to listen on; 0 takes a free one.", min=0, max=MAX_PORT)
    ] = 9092,
    data_dir: Annotated[
        Path | None,
        typer.Option(help="Folder that keeps the data of the kind kafka; without it, none is kept."),
    ] = None,
) -> None:
    """Run a local Kafka broker until stopped."""
    from deploy.broker import BrokerKind, serve_broker

    if kind not in tuple(BrokerKind):
        raise UserError(f"--kind must be one of {', '.join(BrokerKind)}, got {kind!r}")
    serve_broker(kind, port, data_dir, lambda line: err.print(line, soft_wrap=True))


@app.command()
def demo(
    broker: Annotated[str, typer.Option(help="embedded, kafka or docker.")] = "embedded",
    trace: Annotated[Path | None, typer.Option(help="Replay this block trace in place of documents.")] = None,
    requests: Annotated[int | None, typer.Option(help="Prompts to serve.", min=1)] = None,
    seconds: Annotated[float | None, typer.Option(help="Stop serving prompts after this long.")] = None,
    plain: Annotated[bool, typer.Option("--plain", help="Lines of text in place of the live view.")] = False,
) -> None:
    """Watch a fleet's cache events flow through a broker into answers, each checked by brute force."""
    if trace is not None and not trace.is_file():
        raise UserError(f"no such trace file: {trace}")
    from api.demo import run

    chosen: dict[str, Any] = {"requests": requests, "seconds": seconds}
    given = {name: value for name, value in chosen.items() if value is not None}
    raise typer.Exit(run(broker, trace, plain=plain, **given))
