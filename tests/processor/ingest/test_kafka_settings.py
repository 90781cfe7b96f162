"""Settings of the consumers: what may be chosen, what may not, and what librdkafka says of the rest."""

from __future__ import annotations

import pytest
from confluent_kafka import KafkaError, KafkaException

from processor.ingest import kafka_settings
from processor.ingest.kafka_settings import KafkaSettings, reason_of
from tests.waiting import wait_for


@pytest.fixture
def given(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, object]]:
    """The settings that consumers were made with."""
    seen: list[dict[str, object]] = []
    monkeypatch.setattr(kafka_settings, "Consumer", lambda settings, logger: seen.append(settings))
    return seen


def test_properties_pass_through_and_stand_above_our_defaults(given: list[dict[str, object]]) -> None:
    properties = {"ssl.ca.location": "/ca.pem", "fetch.queue.backoff.ms": "50"}
    KafkaSettings("here:1", "events", "lag-tool", properties).new_consumer(lambda error: None)
    (made,) = given
    assert (made["ssl.ca.location"], made["fetch.queue.backoff.ms"]) == ("/ca.pem", "50")
    assert (made["bootstrap.servers"], made["group.id"]) == ("here:1", "lag-tool")
    assert made["client.id"] == "blendstream"


def test_what_one_consumer_needs_stands_above_the_properties(given: list[dict[str, object]]) -> None:
    settings = KafkaSettings("here:1", "events", properties={"client.id": "mine"})
    settings.new_consumer(lambda error: None, {"client.id": "blendstream-replay"})
    assert given[0]["client.id"] == "blendstream-replay"


@pytest.mark.parametrize(
    ("name", "value", "other"),
    [
        ("auto.offset.reset", "error", "earliest"),
        ("enable.auto.commit", "false", "true"),
        ("enable.auto.offset.store", "false", "true"),
        ("enable.partition.eof", "true", "false"),
    ],
)
def test_what_reading_rests_on_may_be_said_and_not_changed(
    given: list[dict[str, object]], name: str, value: str, other: str
) -> None:
    for properties in ({}, {name: value}):
        KafkaSettings("here:1", "events", properties=properties).new_consumer(lambda error: None)
        assert given.pop()[name] == value
    with pytest.raises(ValueError, match=f"{name} must be {value}, got '{other}'"):
        KafkaSettings("here:1", "events", properties={name: other}).new_consumer(lambda error: None)
    assert given == []


@pytest.mark.parametrize(("name", "value"), [("group.id", "blendstream"), ("bootstrap.servers", "here:1")])
def test_what_has_a_flag_of_its_own_is_not_taken_from_properties(
    given: list[dict[str, object]], name: str, value: str
) -> None:
    KafkaSettings("here:1", "events", properties={name: "other"}).new_consumer(lambda error: None)
    assert given[0][name] == value


def test_a_setting_that_does_not_exist_is_refused_by_name() -> None:
    settings = KafkaSettings("here:1", "events", properties={"no.such.setting": "1"})
    with pytest.raises(KafkaException) as caught:
        settings.new_consumer(lambda error: None)
    assert "no.such.setting" in reason_of(caught.value)


def test_the_reason_of_an_error_is_what_the_client_says() -> None:
    assert (
        reason_of(KafkaException(KafkaError(KafkaError._TIMED_OUT, "it took too long"))) == "it took too long"
    )


def test_a_broker_that_is_away_is_not_told_of_again_and_again(caplog: pytest.LogCaptureFixture) -> None:
    said: list[KafkaError] = []
    properties = {"reconnect.backoff.ms": "1", "reconnect.backoff.max.ms": "1"}
    consumer = KafkaSettings("127.0.0.1:9", "events", properties=properties).new_consumer(said.append)
    before = len(caplog.records)
    try:
        wait_for(lambda: consumer.poll(0.05) or len(said) >= 10, 20, "ten failures")
    finally:
        consumer.close()
    assert len([r for r in caplog.records[before:] if "FAIL" in r.getMessage()]) <= 1
