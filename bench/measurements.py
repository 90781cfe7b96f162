"""The catalogue: every measurement by name, what it shows, and how its figures become rows.

In-process ones run a worker of `bench.ours` and one of `bench.peer` in turns. Those over HTTP run the two
servers side by side and ask them in turns. Targets stand beside the figures that have one.
"""

from __future__ import annotations

import base64
import statistics
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from urllib.parse import urlencode

import orjson

from bench import workload
from bench.harness import alone, alternate, peer_python
from bench.http_load import (
    Connection,
    Server,
    Stream,
    latencies,
    latencies_during,
    our_server,
    peer_server,
    percentile,
    post,
)
from bench.ours.wire import column_record
from bench.report import Better, Row

Rows = list[Row]


@dataclass(frozen=True, slots=True)
class Sizes:
    """How much work is done; the smaller set is for a look, the larger one is what the page of results
    quotes.
    """

    rounds: int
    entries: int
    chunks: int
    memory_chunks: int
    peer_memory_chunks: int
    served_chunks: int
    queries: int
    records: int


FULL = Sizes(
    rounds=5,
    entries=51_200,
    chunks=500_000,
    memory_chunks=1_000_000,
    peer_memory_chunks=200_000,
    served_chunks=51_200,
    queries=200,
    records=1_000_000,
)
QUICK = Sizes(
    rounds=3,
    entries=6_400,
    chunks=25_600,
    memory_chunks=102_400,
    peer_memory_chunks=25_600,
    served_chunks=6_400,
    queries=50,
    records=20_000,
)

QUERY_TOKENS = 32_768
LONG_QUERY_TOKENS = 131_072
HITS = 32


@dataclass(frozen=True, slots=True)
class Measurement:
    """A named measurement."""

    name: str
    about: str
    run: Callable[[Sizes], Rows]


def ingest(sizes: Sizes) -> Rows:
    """Decode, gate, directory and blend index in one process."""
    parameters = {"entries": sizes.entries}
    ours, peer = alternate("ingest", parameters, sizes.rounds, parameters)
    rows = peer.get("rows_per_s")
    return [
        Row("ingest", "row wire", "entries/s", ours["rows_per_s"], rows, target_ratio=8),
        Row("ingest", "column wire (peer: rows)", "entries/s", ours["columns_per_s"], rows, target_ratio=25),
    ]


def decode(sizes: Sizes) -> Rows:
    """Records to batches, alone."""
    parameters = {"entries": sizes.entries}
    ours, peer = alternate("ingest", parameters, sizes.rounds, parameters)
    rows = peer.get("rows_decode_per_s")
    return [
        Row("decode", "row wire", "entries/s", ours["rows_decode_per_s"], rows),
        Row("decode", "column wire (peer: rows)", "entries/s", ours["columns_decode_per_s"], rows),
    ]


def store(sizes: Sizes) -> Rows:
    """Gate, directory and blend index alone, into a loaded directory."""
    parameters = {"entries": sizes.entries, "chunks": sizes.chunks}
    ours, peer = alternate("store", parameters, sizes.rounds, parameters)
    figure = f"an entry, {sizes.chunks:,} chunks held"
    return [Row("store", figure, "us", ours["store_us"], peer.get("store_us"), Better.LOWER)]


def match(sizes: Sizes) -> Rows:
    """The match alone, in a loaded index."""
    rows = []
    for tokens, target in ((QUERY_TOKENS, 5.0), (LONG_QUERY_TOKENS, None)):
        parameters = {"chunks": sizes.chunks, "tokens": tokens, "hits": HITS, "queries": 32}
        ours, peer = alternate("match", parameters, sizes.rounds, parameters)
        figure = f"{tokens:,} tokens, {HITS} hits, {sizes.chunks:,} chunks"
        rows.append(Row("match", figure, "us", ours["match_us"], peer.get("match_us"), Better.LOWER, target))
    return rows


def replay(sizes: Sizes) -> Rows:
    """A missing batch in the middle of a log of sixteen emitters on eight partitions."""
    ours = alone("replay", {"records": sizes.records}, min(sizes.rounds, 3))
    log = f"a log of {sizes.records:,}"
    # Half of the one partition that it lies on.
    bound = sizes.records / 8 / 2 + 32
    return [
        Row("replay", f"by itself, {log}", "records", ours["by_itself"], better=Better.LOWER, bound=bound),
        Row("replay", f"by hand, {log}", "records", ours["by_hand"], better=Better.LOWER, bound=bound),
        Row("replay", f"by hand, {log}", "s", ours["seconds"], better=Better.LOWER),
    ]


def memory(sizes: Sizes) -> Rows:
    """Resident memory that a stored entry adds."""
    ours, peer = alternate("memory", {"chunks": sizes.memory_chunks}, 1, {"chunks": sizes.peer_memory_chunks})
    figure = f"an entry of {workload.CHUNK_SIZE} tokens, {sizes.memory_chunks:,} held"
    held = ours["bytes_per_entry"]
    return [Row("memory", figure, "bytes", held, peer.get("bytes_per_entry"), Better.LOWER, bound=1_500)]


def checkpoint(sizes: Sizes) -> Rows:
    """How long a checkpoint holds the stream back, what it costs ingest, and how fast one is restored."""
    ours = alone("checkpoint", {"chunks": sizes.memory_chunks}, sizes.rounds)
    keys = f"{sizes.memory_chunks:,}"
    rows = [
        (f"pause, {keys} keys changed", "ms", "changed_pause_ms", Better.LOWER, 50.0),
        ("pause, 256 keys changed", "ms", "little_pause_ms", Better.LOWER, 5.0),
        ("longest pause during ingest", "ms", "worst_pause_ms", Better.LOWER, 50.0),
        ("ingest beside one after the other", "% of alone", "ingest_percent", Better.HIGHER, 80.0),
        ("the same in processor time", "% of alone", "work_percent", Better.HIGHER, 80.0),
        (f"restore, {keys} keys of 256 tokens", "s", "restore_s", Better.LOWER, 1.0),
    ]
    return [
        Row("checkpoint", figure, unit, ours[name], better=better, bound=bound)
        for figure, unit, name, better, bound in rows
    ]


def http(sizes: Sizes) -> Rows:
    """Blend lookups over HTTP, one client."""
    as_json, as_bytes = _lookups(sizes.queries, sizes.served_chunks)
    json_ms: list[float] = []
    raw_ms: list[float] = []
    peer_ms: list[float] = []
    with ExitStack() as stack:
        us, them = _servers(stack)
        for server in filter(None, (us, them)):
            server.load(sizes.served_chunks)
        ours = stack.enter_context(Connection(us.port))
        theirs = stack.enter_context(Connection(them.port)) if them else None
        for connection in filter(None, (ours, theirs)):
            _check_hits(connection.send(as_json[0]))
        _check_hits(ours.send(as_bytes[0]))
        for _ in range(sizes.rounds):
            json_ms += latencies(ours, as_json)
            raw_ms += latencies(ours, as_bytes)
            if theirs:
                peer_ms += latencies(theirs, as_json)
    rows = []
    for percent in (50, 99):
        peer = percentile(peer_ms, percent) if peer_ms else None
        for figure, taken in ((f"JSON, p{percent}", json_ms), (f"raw, p{percent} (peer: JSON)", raw_ms)):
            rows.append(Row("http", figure, "ms", percentile(taken, percent), peer, Better.LOWER))
    return rows


def events(sizes: Sizes) -> Rows:
    """`POST /events`, one client, one batch a request."""
    batches = sizes.entries // workload.BATCH_ENTRIES
    rates: dict[str, list[float]] = {"rows": [], "columns": [], "peer": []}
    with ExitStack() as stack:
        sides: list[tuple[str, Server]] = [
            ("rows", stack.enter_context(our_server(workload.row_record))),
            ("columns", stack.enter_context(our_server(column_record))),
        ]
        if python := peer_python():
            sides.append(("peer", stack.enter_context(peer_server(python))))
        for number in range(sizes.rounds):
            for side, server in sides:
                requests = [
                    post("/events", server.record(batch))
                    for batch in range(number * batches, (number + 1) * batches)
                ]
                rates[side].append(batches * workload.BATCH_ENTRIES / _stream_seconds(server.port, requests))
    peer = statistics.median(rates["peer"]) if rates["peer"] else None
    return [
        Row("events", "row wire", "entries/s", statistics.median(rates["rows"]), peer),
        Row("events", "column wire (peer: rows)", "entries/s", statistics.median(rates["columns"]), peer),
    ]


def parallel(sizes: Sizes) -> Rows:
    """Lookups while a fleet stores, and stores while a client looks up, over HTTP."""
    lookups, _ = _lookups(min(sizes.queries, 50), sizes.served_chunks)
    batches = sizes.entries // workload.BATCH_ENTRIES
    alone: dict[Server, list[float]] = {}
    during: dict[Server, list[float]] = {}
    rates: dict[Server, list[float]] = {}
    with ExitStack() as stack:
        us, them = _servers(stack)
        sides = [side for side in (us, them) if side]
        next_batch = {server: server.load(sizes.served_chunks) for server in sides}
        for _ in range(sizes.rounds):
            for server in sides:
                first = next_batch[server]
                next_batch[server] = first + batches
                requests = [post("/events", server.record(first + batch)) for batch in range(batches)]
                with Connection(server.port) as connection:
                    alone.setdefault(server, []).extend(latencies(connection, lookups))
                    stream = Stream(server.port, requests)
                    stream.start()
                    taken = latencies_during(connection, lookups, stream.is_alive)
                    during.setdefault(server, []).extend(taken)
                rate = batches * workload.BATCH_ENTRIES / stream.seconds
                rates.setdefault(server, []).append(rate)
    rows = []
    for figure, by_server in (("lookup alone", alone), ("lookup during ingest", during)):
        for percent in (50, 99):
            peer = percentile(by_server[them], percent) if them else None
            ours = percentile(by_server[us], percent)
            rows.append(Row("parallel", f"{figure}, p{percent}", "ms", ours, peer, Better.LOWER))
    peer_rate = statistics.median(rates[them]) if them else None
    ours_rate = statistics.median(rates[us])
    return [*rows, Row("parallel", "ingest during lookups", "entries/s", ours_rate, peer_rate)]


def _servers(stack: ExitStack) -> tuple[Server, Server | None]:
    us = stack.enter_context(our_server())
    python = peer_python()
    return us, stack.enter_context(peer_server(python)) if python else None


def _lookups(count: int, stored_chunks: int) -> tuple[list[bytes], list[bytes]]:
    """Blend lookups of `count` prompts as requests: JSON, and with the tokens raw."""
    asked = {"model_name": workload.MODEL, "world_size": 1, "cache_salt": ""}
    path = "/directory/blend-lookup"
    as_json, as_bytes = [], []
    for tokens in workload.queries(count, QUERY_TOKENS, HITS, stored_chunks):
        raw = tokens.astype("<u4").tobytes()
        body = {"tokens_b64": base64.b64encode(raw).decode(), **asked}
        as_json.append(post(path, orjson.dumps(body)))
        as_bytes.append(post(f"{path}?{urlencode(asked)}", raw, "application/octet-stream"))
    return as_json, as_bytes


def _stream_seconds(port: int, requests: list[bytes]) -> float:
    stream = Stream(port, requests)
    stream.run()
    return stream.seconds


def _check_hits(answer: bytes) -> None:
    found = len(orjson.loads(answer)["matches"])
    if found != HITS:
        raise RuntimeError(f"{found} matches where the prompt holds {HITS}")


MEASUREMENTS = {
    measurement.name: measurement
    for measurement in (
        Measurement("ingest", "decode + gate + directory + blend in process, rows and columns", ingest),
        Measurement("decode", "decoding alone, rows and columns", decode),
        Measurement("store", "the store path alone, into a loaded directory", store),
        Measurement("match", "blend match of a 32,768- and a 131,072-token prompt in a loaded index", match),
        Measurement("memory", "resident memory a stored entry adds", memory),
        Measurement("checkpoint", "pauses of the stream, ingest beside checkpoints, restoring", checkpoint),
        Measurement("http", "POST /directory/blend-lookup, JSON and raw, p50 and p99", http),
        Measurement("events", "POST /events, entries a second", events),
        Measurement("replay", "records read, and time, to find one missing batch in a log on Kafka", replay),
        Measurement("parallel", "lookups during ingest and ingest during lookups, over HTTP", parallel),
    )
}
