"""Partitions with different leaders, of which one falls silent: two real nodes, and one of them frozen."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from deploy.broker import kafka as node
from deploy.broker.broker import HOST, free_port
from deploy.broker.kafka import KafkaBroker, new_cluster_id
from processor.ingest import progress
from tests.brokers import RunningBroker
from tests.processor.ingest.reading import Reader, records, send
from tests.waiting import wait_for


@pytest.fixture
def nodes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[KafkaBroker, KafkaBroker]]:
    """A cluster of two, the first of them its controller; topic `events` has a partition on each."""
    cluster_id, controller, ports = new_cluster_id(), free_port(), (free_port(), free_port())
    monkeypatch.setattr(node, "new_cluster_id", lambda: cluster_id)
    shared = {
        "controller.quorum.voters": f"1@{HOST}:{controller}",
        # Longer than the test: the one that is frozen stays its partition's leader.
        "broker.session.timeout.ms": "120000",
    }
    of_first = {"listeners": f"PLAINTEXT://{HOST}:{ports[0]},CONTROLLER://{HOST}:{controller}"}
    of_second = {
        "node.id": "2",
        "process.roles": "broker",
        "listeners": f"PLAINTEXT://{HOST}:{ports[1]}",
    }
    with (
        KafkaBroker(ports[0], tmp_path / "1", {**shared, **of_first}) as first,
        KafkaBroker(ports[1], tmp_path / "2", {**shared, **of_second}) as second,
    ):
        admin = AdminClient({"bootstrap.servers": first.bootstrap})
        wait_for(lambda: len(admin.list_topics(timeout=10).brokers) == 2, 30, "both nodes")
        admin.create_topics([NewTopic("events", 2, replica_assignment=[[1], [2]])])["events"].result(20)
        yield first, second
        second.resume()


@pytest.mark.needs("java")
def test_a_silent_leader_leaves_the_lag_unknown_while_the_other_partition_is_read(
    nodes: tuple[KafkaBroker, KafkaBroker], read: Callable[..., Reader], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(progress, "END_KNOWN_FOR", 6.0)
    first, second = nodes
    where = RunningBroker(first.bootstrap, "kafka")
    for partition in (0, 1):
        name = f"server-{partition}"
        send(where, "events", records([1], name), name.encode(), partition)
    reader = read(first.bootstrap, "events")
    reader.wait_for_end(2)
    second.pause()
    seq = 1

    def unknown_while_reading_goes_on() -> bool:
        nonlocal seq
        seq += 1
        send(where, "events", records([seq], "server-0"), b"server-0")
        wait_for(lambda: reader.stream("server-0").last_seq == seq, 5, "the other partition's record")
        status = reader.source.status()
        return status.error is None and status.lag_seconds is None and not status.caught_up

    wait_for(unknown_while_reading_goes_on, 30, "the silence to show")
    watermark = reader.source.watermark()
    assert unknown_while_reading_goes_on()
    assert reader.source.watermark() == watermark
    assert not reader.source.end_offsets().exact
    second.resume()
    wait_for(lambda: reader.source.status().lag_seconds == 0.0, 30, "the leader to be heard again")
    assert reader.source.watermark() > watermark
    assert reader.source.end_offsets() == ({0: seq, 1: 1}, True)
