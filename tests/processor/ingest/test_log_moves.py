"""The log moves under its reader: cut, made anew, of another cluster; offsets mean something in one alone."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path

import pytest

from deploy.broker import create_topic, delete_topic, make_broker
from processor.ingest import log_reader
from processor.ingest.ranges import LossReason
from processor.ingest.stream import LostRange
from tests.brokers import RunningBroker
from tests.processor.ingest.reading import Reader, drop_records, records, send
from tests.waiting import wait_for

Read = Callable[..., Reader]
BEFORE = LossReason.BEFORE_LOG


def make_anew(broker: RunningBroker, topic: str) -> None:
    delete_topic(broker.bootstrap, topic)

    def made() -> bool:
        try:
            create_topic(broker.bootstrap, topic)
        except Exception:
            return False  # the deletion is still under way
        return True

    wait_for(made, 30, "the topic made anew")


def outline(lost: list[LostRange]) -> list[tuple[int, int | None, LossReason | None]]:
    return [(held.first, held.last, held.reason) for held in lost]


@pytest.mark.broker("kafka")
def test_what_was_dropped_unread_is_lost_to_those_whom_it_hit_and_leaves_no_trace_with_others(
    kafka_broker: RunningBroker, topic: str, read: Read
) -> None:
    for name in ("server-1", "server-2"):
        send(kafka_broker, topic, records([1, 2], name), name.encode())
    first = read(kafka_broker.bootstrap, topic)
    first.wait_for_end(4)
    first.source.stop()
    send(kafka_broker, topic, records([3, 4, 5]))
    drop_records(kafka_broker, topic, before=6)
    second = read(kafka_broker.bootstrap, topic, restored=first)
    wait_for(lambda: second.stream().last_seq == 5, 20, "what is left")
    assert outline(second.stream().lost) == [(3, 4, BEFORE)]
    assert outline(second.stream("server-2").lost) == [(3, None, BEFORE)]
    send(kafka_broker, topic, records([3], "server-2"), b"server-2")
    wait_for(lambda: second.stream("server-2").last_seq == 3, 20, "the next batch")
    assert not second.stream("server-2").gap_detected
    assert second.source.freeze()()["began"] == {"0": 6}


@pytest.mark.broker("kafka")
def test_a_topic_made_anew_while_nobody_read_is_told_by_its_id_though_the_position_exists(
    kafka_broker: RunningBroker, topic: str, read: Read, caplog: pytest.LogCaptureFixture
) -> None:
    send(kafka_broker, topic, records(range(1, 4)))
    first = read(kafka_broker.bootstrap, topic)
    first.wait_for_end(3)
    first.source.stop()
    make_anew(kafka_broker, topic)
    send(kafka_broker, topic, records(range(6, 12)))
    second = read(kafka_broker.bootstrap, topic, restored=first)
    wait_for(lambda: second.stream().last_seq == 11, 20, "the new log")
    assert second.recorder.seqs == list(range(6, 12))
    assert outline(second.stream().lost) == [(4, 5, BEFORE)]
    assert second.source.positions() == {0: 6}
    assert second.source.knowledge().before("server-1", 1, 8, 0) == 1
    assert "is not the log that was read before" in caplog.text


@pytest.mark.broker("kafka")
def test_a_topic_made_anew_under_a_reader_is_read_from_its_start(
    kafka_broker: RunningBroker, topic: str, read: Read, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_reader, "REFRESH_INTERVAL", 0.2)
    send(kafka_broker, topic, records([1, 2]))
    reader = read(kafka_broker.bootstrap, topic)
    reader.wait_for_end(2)
    make_anew(kafka_broker, topic)
    send(kafka_broker, topic, records([3, 4, 7, 8]))
    # Until the new id is noticed, its records may be read from where the old log stood.
    wait_for(lambda: sorted(reader.recorder.seqs) == [1, 2, 3, 4, 7, 8], 60, "the new log's records")
    stream = reader.stream()
    assert [*stream.missing, *((lost.first, lost.last) for lost in stream.lost)] == [(5, 6)]


@pytest.mark.broker("kafka")
def test_a_departure_s_mark_means_nothing_in_another_log(
    kafka_broker: RunningBroker, topic: str, read: Read
) -> None:
    send(kafka_broker, topic, records(range(1, 6)))
    send(kafka_broker, topic, records([1], "server-2"), b"server-2")
    first = read(kafka_broker.bootstrap, topic)
    first.wait_for_end(6)
    first.gate.drop_instance("server-1", first.source.end_offsets().offsets)
    first.source.stop()
    make_anew(kafka_broker, topic)
    send(kafka_broker, topic, records([1], incarnation=2))
    second = read(kafka_broker.bootstrap, topic, restored=first)
    wait_for(lambda: second.recorder.seqs == [1], 20, "the record that lies where old ones did")
    assert second.stream().incarnation == 2


@pytest.mark.broker("kafka")
def test_a_departure_s_mark_goes_once_the_log_was_cut_behind_it(
    kafka_broker: RunningBroker, topic: str, read: Read, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_reader, "REFRESH_INTERVAL", 0.1)
    monkeypatch.setattr(log_reader, "MARKS_INTERVAL", 0.0)
    send(kafka_broker, topic, records(range(1, 6)))
    reader = read(kafka_broker.bootstrap, topic)
    reader.wait_for_end(5)
    reader.gate.drop_instance("server-1", reader.source.end_offsets().offsets)
    drop_records(kafka_broker, topic, before=4)
    send(kafka_broker, topic, records([1], "server-2"), b"server-2")
    reader.wait_for_end(6)
    assert reader.gate.marked
    drop_records(kafka_broker, topic, before=5)
    wait_for(lambda: not reader.gate.marked, 20, "the mark to go")


@pytest.mark.needs("java")
def test_another_cluster_under_the_same_address_is_read_from_its_start(
    tmp_path: Path, read: Read, caplog: pytest.LogCaptureFixture
) -> None:
    with make_broker("kafka", data_dir=tmp_path / "old") as broker:
        old = RunningBroker(broker.bootstrap, "kafka")
        create_topic(old.bootstrap, "events")
        send(old, "events", records([1, 2, 3, 5]))
        first = read(old.bootstrap, "events")
        first.wait_for_end(4)
        first.source.stop()
        port = int(old.bootstrap.rsplit(":", 1)[1])
    with make_broker("kafka", data_dir=tmp_path / "new", port=port) as broker:
        new = RunningBroker(broker.bootstrap, "kafka")
        create_topic(new.bootstrap, "events")
        send(new, "events", records([6, 9, 10, 11, 12]))
        with caplog.at_level(logging.WARNING, "processor.ingest.log_reader"):
            second = read(new.bootstrap, "events", restored=first)
            wait_for(lambda: second.stream().last_seq == 12, 30, "the other cluster's records")
        assert second.recorder.seqs == [6, 9, 10, 11, 12]
        assert "is not the log that was read before" in caplog.text
        wait_for(lambda: not second.stream().missing, 20, "the verdict")
        # What went missing in the old log cannot be found in the new one.
        (before, *_) = outline(second.stream().lost)
        assert before[:2] == (4, 4)


@pytest.mark.broker("kafka")
def test_a_missing_range_whose_log_is_cut_before_it_was_found_is_lost_as_before_the_log(
    kafka_broker: RunningBroker, topic: str, read: Read
) -> None:
    send(kafka_broker, topic, records(range(1, 11)))
    drop_records(kafka_broker, topic, before=7)
    reader = read(kafka_broker.bootstrap, topic, positions={0: 9})
    wait_for(lambda: reader.gate.streams(gap=True) and not reader.stream().missing, 20, "the verdict")
    assert outline(reader.stream().lost) == [(1, 7, BEFORE)]
    assert sorted(reader.recorder.seqs) == [8, 9, 10]
