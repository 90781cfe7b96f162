"""The life of each kind of broker, seen by a client."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient

from deploy.broker import (
    Broker,
    BrokerDied,
    BrokerError,
    BrokerKind,
    BrokerNotReady,
    EmbeddedBroker,
    FolderInUse,
    KafkaBroker,
    PortTaken,
    create_topic,
    free_port,
    launch,
    make_broker,
)
from tests.waiting import wait_for


def client(broker: Broker) -> AdminClient:
    return AdminClient({"bootstrap.servers": broker.bootstrap, "log_level": 0})


def answers(admin: AdminClient) -> bool:
    try:
        return bool(admin.list_topics(timeout=1).brokers)
    except KafkaException:
        return False


def write(broker: Broker, topic: str, value: bytes) -> None:
    producer = Producer({"bootstrap.servers": broker.bootstrap, "acks": "all", "log_level": 0})
    producer.produce(topic, value)
    assert producer.flush(20) == 0


def read(broker: Broker, topic: str, count: int) -> list[bytes | None]:
    consumer = Consumer({"bootstrap.servers": broker.bootstrap, "group.id": "reader", "log_level": 0})
    consumer.assign([TopicPartition(topic, 0, 0)])
    values: list[bytes | None] = []

    def enough() -> bool:
        values.extend(message.value() for message in consumer.consume(count, timeout=0.2))
        return len(values) >= count

    wait_for(enough, timeout=20, what=f"{count} records")
    consumer.close()
    return values


@pytest.fixture(
    params=[
        pytest.param(BrokerKind.EMBEDDED, marks=pytest.mark.needs("embedded")),
        pytest.param(BrokerKind.KAFKA, marks=pytest.mark.needs("java")),
        pytest.param(BrokerKind.DOCKER, marks=pytest.mark.needs("docker")),
    ]
)
def broker(request: pytest.FixtureRequest) -> Iterator[Broker]:
    with make_broker(request.param) as broker:
        yield broker


def test_a_broker_comes_back_on_its_port_after_a_stop_and_after_a_crash(broker: Broker) -> None:
    admin = client(broker)
    assert answers(admin)
    if broker.durable:
        create_topic(broker.bootstrap, "kept")
        write(broker, "kept", b"before the stop")

    address = broker.bootstrap
    broker.stop()
    assert not broker.alive()
    assert not answers(admin)
    broker.start()
    assert broker.bootstrap == address
    assert answers(client(broker))
    if broker.durable:
        write(broker, "kept", b"before the crash")

    broker.kill()
    assert not broker.alive()
    broker.start()
    if broker.durable:
        assert read(broker, "kept", 2) == [b"before the stop", b"before the crash"]
    else:
        assert "kept" not in client(broker).list_topics(timeout=5).topics


@pytest.mark.needs("embedded")
def test_a_frozen_broker_answers_nothing_until_it_is_let_go_on() -> None:
    with EmbeddedBroker() as broker:
        admin = client(broker)
        assert answers(admin)
        broker.pause()
        assert broker.alive()
        assert not answers(admin)
        broker.resume()
        wait_for(lambda: answers(admin), what="an answer")


@pytest.mark.needs("embedded")
def test_a_frozen_broker_can_be_closed() -> None:
    with EmbeddedBroker() as broker:
        broker.pause()
    assert not broker.alive()


@pytest.mark.needs("java")
def test_apache_kafka_keeps_its_cluster_id_in_the_data_folder(tmp_path: Path) -> None:
    cluster_ids: set[str | None] = set()
    for _ in range(2):
        with KafkaBroker(folder=tmp_path) as broker:
            cluster_ids.add(client(broker).list_topics(timeout=5).cluster_id)
    assert len(cluster_ids) == 1
    assert (tmp_path / "broker.log").exists()


@pytest.mark.needs("embedded")
def test_a_folder_serves_one_broker_at_a_time(tmp_path: Path) -> None:
    with EmbeddedBroker(folder=tmp_path) as first:
        with pytest.raises(FolderInUse, match=str(tmp_path)):
            EmbeddedBroker(folder=tmp_path).start()
        first.kill()
        with EmbeddedBroker(folder=tmp_path) as second:
            assert answers(client(second))


@pytest.mark.needs("java")
def test_apache_kafka_that_refuses_a_setting_says_which() -> None:
    with pytest.raises(BrokerError, match=r"log\.retention\.ms"):
        KafkaBroker(settings={"log.retention.ms": "soon"}).start()


@pytest.mark.needs("embedded")
def test_a_temporary_folder_goes_with_its_broker() -> None:
    with EmbeddedBroker() as broker:
        assert broker.log.exists()
    assert not broker.folder.exists()


@pytest.mark.needs("embedded")
def test_a_folder_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    in_the_way = tmp_path / "file"
    in_the_way.touch()
    with pytest.raises(BrokerError, match=f"no data folder can be made at {in_the_way}"):
        EmbeddedBroker(folder=in_the_way).start()


@pytest.mark.needs("embedded")
def test_a_taken_port_is_named() -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", free_port()))
        other.listen()
        port = other.getsockname()[1]
        with pytest.raises(PortTaken, match=f"port {port} is taken"):
            launch("embedded", port)


@pytest.mark.needs("embedded")
def test_a_broker_that_ends_while_it_starts_shows_what_it_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(EmbeddedBroker, "_command", lambda self: ["sh", "-c", "echo out of luck; exit 3"])
    with pytest.raises(BrokerDied, match="out of luck"):
        launch("embedded")


@pytest.mark.needs("embedded")
def test_a_broker_that_never_answers_is_given_up_and_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(EmbeddedBroker, "_command", lambda self: ["sleep", "60"])
    broker = EmbeddedBroker()
    with pytest.raises(BrokerNotReady, match=r"answered no client within 0\.3 s"):
        broker.start(timeout=0.3)
    assert not broker.alive()
    broker.close()
