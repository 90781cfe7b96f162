"""Emitters to Kafka to a processor to answers, each in a process of its own."""

from __future__ import annotations

import signal
import socket
from pathlib import Path

import pytest

from api.client import Client, ServerUnavailable
from api.synthetic import Synthetic
from deploy.broker import create_topic, make_broker
from producer.sinks.kafka import KafkaSink
from tests.brokers import RunningBroker
from tests.e2e.asking import kafka, metric, reading, ready
from tests.e2e.processes import blendstream, serve_to_its_end, server
from tests.waiting import wait_for

NOTICED = 7.0
"""Seconds within which a broker that hangs must show: about five, on a machine that does nothing else."""
MADE = Synthetic("synthetic-1", 1, batches=8, chunks=4, chunk_size=256, world_size=2)
EMIT = [
    *("--synthetic", str(MADE.batches), "--chunks", str(MADE.chunks), "--chunk-size", str(MADE.chunk_size)),
    *("--world-size", str(MADE.world_size), "--incarnation", str(MADE.incarnation)),
]


def check_answers(client: Client) -> None:
    """Every synthetic sequence is found by its tokens and by its content."""
    for index in range(MADE.batches):
        sequence = MADE.sequence(index)
        found = client.lookup_tokens(sequence, MADE.model_name, world_size=2)
        assert [len(result.placements) for result in found.results] == [1] * 8
        matches = client.blend_lookup([7, *sequence], MADE.model_name, world_size=2)
        assert [(match.old_st, match.cur_st) for match in matches] == [
            (n * 256, n * 256 + 1) for n in range(4)
        ]


@pytest.mark.parametrize("wire", ["rows", "columns"])
def test_what_is_emitted_to_kafka_is_answered_and_a_stop_is_clean(
    kafka_broker: RunningBroker, topic: str, wire: str
) -> None:
    with server(*reading(kafka_broker.bootstrap, topic)) as (process, client):
        sent = blendstream("emit", *EMIT, "--wire", wire, *kafka(kafka_broker.bootstrap, topic))
        assert "sent 8 batches with 64 entries" in sent.stdout
        wait_for(lambda: client.stats().num_keys == 64, what="all keys arrive")
        wait_for(lambda: ready(client), what="the server is ready")
        check_answers(client)
        assert metric(client, "blendstream_gap_detected", instance_id="synthetic-1") == 0
        assert metric(client, "blendstream_ingest_batches_total", result="admitted") == 8
        assert metric(client, "blendstream_consumer_lag", partition="0") == 0
        (stream,) = client.streams()
        assert (stream.last_seq, stream.partition) == (8, 0)
        assert process.terminate() == 0
    with pytest.raises(ServerUnavailable):
        Client(client.url).stats()


def test_a_server_that_starts_later_is_ready_once_it_has_read_the_log_from_its_beginning(
    kafka_broker: RunningBroker, topic: str
) -> None:
    blendstream("emit", *EMIT, *kafka(kafka_broker.bootstrap, topic))
    with server(*reading(kafka_broker.bootstrap, topic), "--max-lag", "0") as (_, client):
        wait_for(lambda: ready(client), 30, "the server is ready")
        check_answers(client)


def test_a_batch_that_comes_late_raises_the_flag_and_clears_it(
    kafka_broker: RunningBroker, topic: str
) -> None:
    first, withheld, *rest = MADE.events(1_700_000_000.0)
    sink = KafkaSink(kafka_broker.bootstrap, topic)
    try:
        with server(*reading(kafka_broker.bootstrap, topic)) as (_, client):
            sink.publish([first, *rest])
            wait_for(lambda: metric(client, "blendstream_gap_detected", instance_id="synthetic-1") == 1)
            lacking = ("blendstream_missing_batches", "blendstream_lost_batches")
            assert sum(metric(client, name, instance_id="synthetic-1") or 0 for name in lacking) == 1
            shown = blendstream("streams", "--gap", "--url", client.url).stdout
            assert "synthetic-1" in shown
            assert "yes" in shown
            sink.publish([withheld])
            wait_for(lambda: metric(client, "blendstream_gap_detected", instance_id="synthetic-1") == 0)
            assert "synthetic-1" not in blendstream("streams", "--gap", "--url", client.url).stdout
            check_answers(client)
    finally:
        sink.close()


def test_what_a_reset_forgot_is_read_again_from_the_log(kafka_broker: RunningBroker, topic: str) -> None:
    *events, last = MADE.events(1_700_000_000.0)
    sink = KafkaSink(kafka_broker.bootstrap, topic)
    try:
        with server(*reading(kafka_broker.bootstrap, topic)) as (_, client):
            sink.publish(events)
            wait_for(lambda: client.stats().num_keys == 8 * len(events), 60, "the first batches")
            client.reset("synthetic-1")
            assert client.stats().num_keys == 0
            sink.publish([last])
            wait_for(lambda: client.stats().num_keys == 8 * MADE.batches, 60, "the repair")
            check_answers(client)
            wait_for(lambda: metric(client, "blendstream_replay_scans_total") == 1, what="the scan's end")
            assert metric(client, "blendstream_replay_records_total", outcome="offered") == len(events)
            assert metric(client, "blendstream_replay_streams", state="scanning") == 0
    finally:
        sink.close()


def test_an_operator_asks_for_a_replay(kafka_broker: RunningBroker, topic: str) -> None:
    first, withheld, *rest = MADE.events(1_700_000_000.0)
    sink = KafkaSink(kafka_broker.bootstrap, topic)
    try:
        with server(*reading(kafka_broker.bootstrap, topic)) as (_, client):
            sink.publish([first, *rest])
            wait_for(lambda: metric(client, "blendstream_lost_batches", instance_id="synthetic-1") == 1, 20)
            scans = metric(client, "blendstream_replay_scans_total")
            asked = blendstream("replay", "synthetic-1", "--last", "2", "--url", client.url)
            assert "2 (never_produced)" in asked.stdout
            wait_for(lambda: metric(client, "blendstream_replay_scans_total") != scans, 20, "another scan")
            sink.publish([withheld])
            wait_for(lambda: metric(client, "blendstream_gap_detected", instance_id="synthetic-1") == 0)
    finally:
        sink.close()


def test_records_from_before_a_departure_no_longer_count(kafka_broker: RunningBroker, topic: str) -> None:
    first, *rest = MADE.events(1_700_000_000.0)
    sink = KafkaSink(kafka_broker.bootstrap, topic)
    try:
        sink.publish([first])
        assert sink.flush(30)
        with server(*reading(kafka_broker.bootstrap, topic)) as (_, client):
            wait_for(lambda: client.stats().num_keys == 8)
            client.depart("synthetic-1")
            assert client.stats().num_keys == 0
            sink.publish(rest[:1])
            wait_for(lambda: client.stats().num_keys == 8)
            assert client.stream("synthetic-1").epoch == 2
    finally:
        sink.close()


def test_a_server_that_falls_silent_is_given_up_and_one_that_comes_back_is_believed(
    kafka_broker: RunningBroker, topic: str
) -> None:
    first, *rest = MADE.events(1_700_000_000.0)
    sink = KafkaSink(kafka_broker.bootstrap, topic)
    timing = ["--instance-timeout", "3", "--health-check-interval", "0.1"]
    try:
        with server(*reading(kafka_broker.bootstrap, topic), *timing) as (_, client):
            sink.publish([first])
            wait_for(lambda: client.stats().num_keys == 8)
            client.register("10.0.0.1", 8000, instance_id="synthetic-1")
            wait_for(lambda: client.stats().num_keys == 0, what="the silent server is given up")
            assert client.instances() == []
            assert not client.heartbeat("synthetic-1")
            assert client.register("10.0.0.1", 8000, instance_id="synthetic-1").re_registered is False
            sink.publish(rest[:1])

            def back() -> bool:
                assert client.heartbeat("synthetic-1")
                return client.stats().num_keys == 8

            wait_for(back, what="its next batch is taken")
            assert client.stream("synthetic-1").epoch == 2
    finally:
        sink.close()


def test_events_pushed_over_http_are_answered_too() -> None:
    with server("--enable-blend-lookup") as (process, client):
        blendstream("emit", *EMIT, "--url", client.url)
        check_answers(client)
        hashes = [
            result.key.chunk_hash_hex
            for result in client.lookup_tokens(MADE.sequence(0), "synthetic").results
        ]
        table = blendstream(
            "lookup",
            "--key",
            hashes[0],
            "--model-name",
            "synthetic",
            "--world-size",
            "2",
            "--url",
            client.url,
        )
        assert "synthetic-1" in table.stdout
        assert process.terminate() == 0


def test_a_trace_is_emitted_as_it_was_recorded(tmp_path: Path) -> None:
    from producer.sinks.trace import TraceSink

    recording = TraceSink(tmp_path / "trace.jsonl")
    recording.publish(list(MADE.events(1_700_000_000.0)))
    recording.close()
    with server("--enable-blend-lookup") as (_, client):
        blendstream("emit", str(tmp_path / "trace.jsonl"), "--url", client.url)
        check_answers(client)
        tokens = tmp_path / "tokens.json"
        tokens.write_text(str(MADE.sequence(3).tolist()))
        shown = blendstream(
            *("lookup", str(tokens), "--blend", "--model-name", "synthetic", "--world-size", "2"),
            *("--url", client.url),
        )
        assert "4 chunks found in 1,024 tokens" in shown.stdout


def test_a_server_listens_on_a_unix_socket_and_takes_over_a_stale_one(tmp_path: Path) -> None:
    path = tmp_path / "server.sock"
    for _ in range(2):
        with server("--uds", str(path)) as (process, client):
            assert client.url == f"unix:{path}"
            assert client.stats().num_keys == 0
            # Killed rather than stopped, so that its socket stays behind for the next one.
            process.kill()
        assert path.exists()


def test_a_server_that_ends_leaves_the_socket_of_the_one_that_took_over(tmp_path: Path) -> None:
    path = tmp_path / "server.sock"
    with server("--uds", str(path)) as (first, _), socket.socket(socket.AF_UNIX) as waiting:
        # A request under way keeps the first one for some seconds.
        waiting.connect(str(path))
        waiting.sendall(b"POST /events HTTP/1.1\r\nhost: x\r\ncontent-length: 100\r\n\r\n{")
        first.signal(signal.SIGTERM)
        wait_for(lambda: "Shutting down" in "".join(first.lines), 10, "the first one ends")
        with server("--uds", str(path)) as (second, client):
            assert first.wait() == 0
            assert client.stats().num_keys == 0
            assert second.terminate() == 0
        assert not path.exists()


def test_an_address_that_is_taken_is_told_in_one_line(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        refused = serve_to_its_end("--host", "127.0.0.1", "--port", port)
    assert refused.returncode == 1
    assert f"cannot listen on 127.0.0.1:{port}: Address already in use" in refused.stderr
    file = tmp_path / "file"
    file.write_text("mine")
    refused = serve_to_its_end("--uds", str(file))
    assert refused.returncode == 1
    assert "exists and is not a socket" in refused.stderr
    assert file.read_text() == "mine"


def test_a_setting_that_librdkafka_refuses_is_told_in_one_line(tmp_path: Path) -> None:
    file = tmp_path / "client.properties"
    file.write_text("no.such.setting=1\n")
    refused = serve_to_its_end(
        *("--port", "0", "--event-transport", "kafka", "--kafka-bootstrap-servers", "127.0.0.1:1"),
        *("--kafka-config", str(file)),
    )
    assert refused.returncode == 1
    assert "no.such.setting" in refused.stderr
    assert "Traceback" not in refused.stderr


def test_a_wrong_chunk_size_is_noticed_from_the_data() -> None:
    with server("--chunk-size", "64") as (process, client):
        blendstream("emit", *EMIT, "--url", client.url)
        wait_for(lambda: "--chunk-size is 64" in "".join(process.lines), what="the log says so")


def test_a_server_without_its_broker_starts_says_so_and_stops_within_seconds() -> None:
    with server("--event-transport", "kafka", "--kafka-bootstrap-servers", "127.0.0.1:1") as (
        process,
        client,
    ):
        wait_for(lambda: any("127.0.0.1:1" in reason for reason in client.not_ready()))
        assert client.stats().num_keys == 0
        assert process.terminate() == 0


def test_a_broker_that_hangs_is_noticed_within_seconds_and_holds_up_no_stop() -> None:
    with (
        make_broker("embedded") as broker,
        server("--event-transport", "kafka", "--kafka-bootstrap-servers", broker.bootstrap) as (
            process,
            client,
        ),
    ):
        create_topic(broker.bootstrap, "lmcache-cache-events")
        client.wait_until_ready(30)
        broker.pause()
        wait_for(lambda: any(broker.bootstrap in reason for reason in client.not_ready()), NOTICED)
        broker.resume()
        client.wait_until_ready(30)
        broker.pause()
        assert process.terminate() == 0
