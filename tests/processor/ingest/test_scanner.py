"""Stretches of the log read a second time: whose records are offered, what ends a scan, what stays hidden."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from confluent_kafka import KafkaException

from processor.batch import EventBatch
from processor.ingest import scanner
from processor.ingest.decode import Decoder
from processor.ingest.kafka_settings import KafkaSettings
from processor.ingest.kafka_topic import TopicInspector
from processor.ingest.ranges import LossReason
from processor.ingest.records import RecordReader
from processor.ingest.scanner import Scanner
from processor.ingest.search import END, START, Hidden, Place, Scan, Search
from processor.ingest.source import Position
from tests.brokers import RunningBroker
from tests.processor.ingest.reading import drop_records, records, send
from tests.waiting import wait_for

BEFORE, UNDECODABLE = LossReason.BEFORE_LOG, LossReason.UNDECODABLE


class Scanning:
    """A scanner with what it offered."""

    def __init__(self, bootstrap: str, topic: str) -> None:
        settings = KafkaSettings(bootstrap, topic)
        self.offered: list[tuple[str, int, Position]] = []
        self.inspector = TopicInspector(settings)
        self.scanner = Scanner(settings, self.inspector, RecordReader(Decoder(256)), self._offer)

    def _offer(self, batch: EventBatch, position: Position) -> None:
        self.offered.append((batch.instance_id, batch.seq, position))

    def close(self) -> None:
        self.scanner.close()
        self.inspector.close()

    def scan(self, *scans: Scan) -> list[Scan]:
        """Have scans done; in the order in which they end."""
        self.scanner.add(scans)
        finished: list[Scan] = []

        def done() -> bool:
            finished.extend(self.scanner.step())
            return not self.scanner.busy

        wait_for(done, 20, "the scans to end")
        return finished

    @property
    def seqs(self) -> list[int]:
        return [seq for _, seq, _ in self.offered]


Begin = Callable[[RunningBroker, str], Scanning]


@pytest.fixture
def begin() -> Iterator[Begin]:
    begun: list[Scanning] = []

    def start(broker: RunningBroker, topic: str) -> Scanning:
        begun.append(Scanning(broker.bootstrap, topic))
        return begun[-1]

    yield start
    for scanning in begun:
        scanning.close()


def scan_of(
    until: int, *names: str, start: int | None = None, partition: int = 0, heard: bool = True
) -> Scan:
    names = names or ("server-1",)
    searches = [Search(name, partition, start, until, heard) for name in names]
    return Scan(partition, start, until, searches)


def test_what_lies_between_start_and_end_is_offered_with_its_place(
    kafka_broker: RunningBroker, topic: str, begin: Begin
) -> None:
    send(kafka_broker, topic, records(range(1, 9)))
    scanning = begin(kafka_broker, topic)
    scan = scan_of(6, start=2)
    assert scanning.scan(scan) == [scan]
    assert scanning.offered == [("server-1", offset + 1, Position(0, offset)) for offset in (2, 3, 4, 5)]
    assert scan.searches[0].hidden() == []


def test_records_of_other_emitters_are_skipped_and_those_without_a_key_are_not(
    kafka_broker: RunningBroker, topic: str, begin: Begin
) -> None:
    send(kafka_broker, topic, records([1]))
    send(kafka_broker, topic, [b"never decoded"], b"server-3")
    send(kafka_broker, topic, records([1], "server-2"), b"server-2")
    send(kafka_broker, topic, records([2]), None)
    send(kafka_broker, topic, records([2], "server-3"), None)
    scanning = begin(kafka_broker, topic)
    scanning.scan(scan_of(5, "server-1", "server-2"))
    assert [(name, seq) for name, seq, _ in scanning.offered] == [
        ("server-1", 1),
        ("server-2", 1),
        ("server-1", 2),
    ]
    counters = scanning.scanner.counters
    assert (counters.scans, counters.offered, counters.skipped, counters.undecodable) == (1, 3, 2, 0)


def test_what_cannot_be_decoded_stays_hidden_from_its_emitter_or_without_a_key_from_all(
    kafka_broker: RunningBroker, topic: str, begin: Begin
) -> None:
    send(kafka_broker, topic, [*records([1]), b"{", *records([3])])
    send(kafka_broker, topic, [b"{"], None)
    scanning = begin(kafka_broker, topic)
    scan = scan_of(4, "server-1", "server-2")
    scanning.scan(scan)
    first, second = (search.hidden() for search in scan.searches)
    assert first == [
        Hidden(Place(1, 1), Place(1, 3), UNDECODABLE),
        Hidden(Place(1, 3), END, UNDECODABLE),
    ]
    assert second == [Hidden(START, END, UNDECODABLE)]
    assert scanning.scanner.counters.undecodable == 2


@pytest.mark.broker("kafka")
def test_a_log_that_begins_behind_the_start_is_told_of_and_read_from_where_it_begins(
    kafka_broker: RunningBroker, topic: str, begin: Begin
) -> None:
    send(kafka_broker, topic, records(range(1, 9)))
    drop_records(kafka_broker, topic, before=4)
    scanning = begin(kafka_broker, topic)
    scan = scan_of(7, start=1)
    scanning.scan(scan)
    assert scanning.seqs == [5, 6, 7]
    assert scan.searches[0].hidden() == [Hidden(START, Place(1, 5), BEFORE)]


@pytest.mark.broker("kafka")
def test_a_stretch_that_the_log_has_dropped_ends_without_being_read(
    kafka_broker: RunningBroker, topic: str, begin: Begin
) -> None:
    send(kafka_broker, topic, records(range(1, 9)))
    drop_records(kafka_broker, topic, before=6)
    scanning = begin(kafka_broker, topic)
    scan = scan_of(4)
    assert scanning.scan(scan) == [scan]
    assert scanning.offered == []
    assert scan.searches[0].hidden() == [Hidden(START, END, BEFORE)]


def test_a_log_that_is_shorter_than_it_was_ends_the_scan(
    kafka_broker: RunningBroker, topic: str, begin: Begin
) -> None:
    send(kafka_broker, topic, records([1, 2]))
    scanning = begin(kafka_broker, topic)
    scan = scan_of(100)
    assert scanning.scan(scan) == [scan]
    assert scanning.seqs == [1, 2]


@pytest.mark.parametrize("topic", [3], indirect=True)
def test_only_so_many_partitions_are_read_at_once_and_all_get_their_turn(
    kafka_broker: RunningBroker, topic: str, begin: Begin, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scanner, "MAX_SCANS", 2)
    for partition in range(3):
        send(kafka_broker, topic, records([partition + 1]), partition=partition)
    scanning = begin(kafka_broker, topic)
    scans = [scan_of(1, partition=partition) for partition in range(3)]
    scanning.scanner.add(scans)
    finished = scanning.scanner.step()
    under_way = [scan for scan in scans if scanning.scanner.position(scan.searches[0]) is not None]
    assert len(under_way) + len(finished) <= 2
    assert scanning.scanner.position(scans[2].searches[0]) is None
    finished += scanning.scan()
    assert sorted(scan.partition for scan in finished) == [0, 1, 2]
    assert sorted(scanning.seqs) == [1, 2, 3]


def test_a_search_notes_and_takes_nothing_from_before_its_own_start(
    kafka_broker: RunningBroker, topic: str, begin: Begin
) -> None:
    send(kafka_broker, topic, records([1]))
    send(kafka_broker, topic, [b"{"], None)
    send(kafka_broker, topic, records([2]))
    send(kafka_broker, topic, records([1], "server-2"), b"server-2")
    scanning = begin(kafka_broker, topic)
    late, whole = Search("server-1", 0, 2, 4), Search("server-2", 0, None, 4)
    scanning.scan(Scan(0, None, 4, [late, whole]))
    assert [(name, seq) for name, seq, _ in scanning.offered] == [("server-1", 2), ("server-2", 1)]
    assert late.hidden() == []
    assert [hidden.reason for hidden in whole.hidden()] == [UNDECODABLE]


@pytest.mark.parametrize("topic", [2], indirect=True)
def test_a_scan_that_had_nothing_to_read_is_counted_as_one_whether_another_is_under_way_or_not(
    kafka_broker: RunningBroker, topic: str, begin: Begin
) -> None:
    send(kafka_broker, topic, records([1, 2]))
    scanning = begin(kafka_broker, topic)
    nothing = scan_of(0, start=0, partition=1)
    scanning.scan(nothing)
    assert scanning.scanner.counters.scans == 1
    scanning.scan(scan_of(2), nothing)
    assert scanning.scanner.counters.scans == 3


def test_two_stretches_of_one_partition_are_read_one_after_the_other(
    kafka_broker: RunningBroker, topic: str, begin: Begin
) -> None:
    send(kafka_broker, topic, records(range(1, 9)))
    scanning = begin(kafka_broker, topic)
    early, late = scan_of(2, start=0), scan_of(8, start=6)
    assert scanning.scan(early, late) == [early, late]
    assert scanning.seqs == [1, 2, 7, 8]


def test_a_stream_that_is_dropped_is_offered_nothing_more_and_scans_for_it_alone_end(
    kafka_broker: RunningBroker, topic: str, begin: Begin
) -> None:
    send(kafka_broker, topic, records([1]))
    send(kafka_broker, topic, records([1], "server-2"), b"server-2")
    scanning = begin(kafka_broker, topic)
    both, waiting = scan_of(2, "server-1", "server-2"), scan_of(2, "server-1")
    scanning.scanner.add([both, waiting])
    scanning.scanner.drop("server-1")
    assert scanning.scan() == [both]
    assert [name for name, _, _ in scanning.offered] == ["server-2"]
    scanning.scanner.add([scan_of(2, "server-2")])
    scanning.scanner.drop("server-2")
    assert not scanning.scanner.busy


def test_scans_that_fail_are_counted_and_given_up_and_later_ones_go_on(
    kafka_broker: RunningBroker, topic: str, begin: Begin
) -> None:
    send(kafka_broker, topic, records([1]))
    scanning = begin(kafka_broker, topic)
    scanning.scanner.add([scan_of(1), scan_of(1)])
    scanning.scanner.fail()
    assert (scanning.scanner.busy, scanning.scanner.counters.failures) == (False, 2)
    scanning.scan(scan_of(1))
    assert scanning.seqs == [1]


def test_where_no_broker_answers_a_step_raises(begin: Begin, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scanner, "REQUEST_TIMEOUT", 0.1)
    scanning = begin(RunningBroker("127.0.0.1:9", "none"), "events")
    scanning.scanner.add([scan_of(1)])
    with pytest.raises(KafkaException):
        scanning.scanner.step()
