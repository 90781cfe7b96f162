"""Through a spool every batch reaches the carrier in order, and stays until acknowledged, come what may."""

from __future__ import annotations

import logging
import random
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from producer.emitter import CacheEventEmitter
from producer.events import CacheEventBatch, CacheEventEntry, EventType, ObjectKey, Tier
from producer.sinks.protocol import Answer, PublishError
from producer.sinks.spool import SpoolSink
from producer.spool.log import SpoolInUse
from producer.wire import Wire, decode, encode_batch, envelope
from tests.producer.disk import after_crash, descriptor_name, files_limited_to, segments
from tests.waiting import wait_for

Number = tuple[int, int]
"""Incarnation and seq of a batch."""


class MemoryCarrier:
    """A broker in memory, which can be away, turn records down, and forget to answer for what it took."""

    wire = Wire.COLUMNS

    def __init__(self) -> None:
        self.log: list[Number] = []
        self.there = threading.Event()
        self.there.set()
        self.room = 100
        self.judge: Callable[[Number], Answer] = lambda number: Answer.TAKEN
        self.keep_answer_back: Callable[[], bool] = lambda: False
        self.largest_request = 1_000
        self.closed = False
        self._queue: list[tuple[Number, Callable[[Answer], None]]] = []
        self._failed = False

    def encode(self, batch: CacheEventBatch) -> bytes:
        return envelope((encode_batch(batch, self.wire),))

    def send(self, key: bytes, value: bytes, on_answer: Callable[[Answer], None]) -> bool:
        if self._failed or len(self._queue) >= self.room:
            return False
        (batch,) = decode(value)
        assert batch.instance_id.encode() == key
        self._queue.append(((batch.incarnation, batch.seq), on_answer))
        return True

    def serve(self, timeout: float) -> bool:
        if self._failed or not self.there.wait(timeout):
            return not self._failed
        taken, self._queue = self._queue, []
        too_large = len(taken) > self.largest_request
        for number, on_answer in taken:
            answer = Answer.FAILED if self._failed else Answer.REFUSED if too_large else self.judge(number)
            if answer is Answer.TAKEN:
                self.log.append(number)
                if self.keep_answer_back():
                    answer = Answer.FAILED
            self._failed |= answer is not Answer.TAKEN
            on_answer(answer)
        return not self._failed

    def reset(self) -> None:
        self._give_up()
        self._failed = False

    def close(self) -> None:
        self._give_up()
        self.closed = True

    def _give_up(self) -> None:
        queue, self._queue = self._queue, []
        for _, on_answer in queue:
            on_answer(Answer.FAILED)


def batch(seq: int, incarnation: int = 1, tokens: int = 4) -> CacheEventBatch:
    entry = CacheEventEntry(ObjectKey(seq.to_bytes(32, "big"), "llama", 1), 10, range(tokens), 0)
    return CacheEventBatch("server-1", incarnation, seq, EventType.STORE, Tier.L1, "dram", [entry])


def numbers(count: int, incarnation: int = 1) -> list[Number]:
    return [(incarnation, seq) for seq in range(1, count + 1)]


def publish(sink: SpoolSink, count: int, incarnation: int = 1) -> None:
    sink.publish([batch(seq, incarnation) for _, seq in numbers(count)])


@contextmanager
def spooling(folder: Path, carrier: MemoryCarrier, **settings: Any) -> Iterator[SpoolSink]:
    sink = SpoolSink(folder, carrier, **settings)
    try:
        yield sink
    finally:
        sink.close()


@pytest.fixture
def carrier() -> MemoryCarrier:
    return MemoryCarrier()


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("producer.sinks.spool.RETRY_FIRST", 0.001)
    monkeypatch.setattr("producer.sinks.spool.RETRY_LONGEST", 0.001)
    monkeypatch.setattr("producer.sinks.spool.CLOSE_TIMEOUT", 0.01)


def test_batches_arrive_in_order_and_leave_the_spool(tmp_path: Path, carrier: MemoryCarrier) -> None:
    with spooling(tmp_path, carrier) as sink:
        publish(sink, 500)
        assert sink.flush(10)
        assert carrier.log == numbers(500)
        counters = sink.counters()
        assert (counters.waiting, counters.delivered, counters.retries) == (0, 500, 0)
    assert carrier.closed
    assert segments(tmp_path) == []


def test_what_the_broker_has_not_acknowledged_stays_and_nothing_overtakes_it(
    tmp_path: Path, carrier: MemoryCarrier
) -> None:
    carrier.there.clear()
    with spooling(tmp_path, carrier) as sink:
        publish(sink, 300)
        assert not sink.flush(0.1)
        assert (sink.counters().waiting, sink.counters().delivered) == (300, 0)
        carrier.there.set()
        sink.publish([batch(301)])
        assert sink.flush(10)
    assert carrier.log == numbers(301)


@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.integers(0, 2**32), st.integers(1, 60), st.integers(1, 20))
def test_whatever_fails_the_first_arrivals_are_in_order_and_none_is_missing(
    tmp_path: Path, seed: int, count: int, room: int
) -> None:
    chance = random.Random(seed)
    carrier = MemoryCarrier()
    carrier.room = room
    carrier.judge = lambda number: Answer.FAILED if chance.random() < 0.2 else Answer.TAKEN
    carrier.keep_answer_back = lambda: chance.random() < 0.1
    with spooling(Path(tempfile.mkdtemp(dir=tmp_path)), carrier) as sink:
        for seq in range(1, count + 1):
            sink.publish([batch(seq)])
        assert sink.flush(20)
        assert sink.counters().damaged == sink.counters().rejected == 0
    assert list(dict.fromkeys(carrier.log)) == numbers(count)


def test_what_was_left_goes_first_under_its_own_incarnation(tmp_path: Path, carrier: MemoryCarrier) -> None:
    carrier.there.clear()
    for incarnation in (1, 2):
        with spooling(tmp_path, carrier) as sink:
            publish(sink, 20, incarnation)
    carrier.there.set()
    with spooling(tmp_path, carrier) as sink:
        publish(sink, 5, 3)
        assert sink.flush(10)
        assert sink.counters().inherited == 40
    assert carrier.log == numbers(20, 1) + numbers(20, 2) + numbers(5, 3)


def test_a_killed_process_loses_nothing_that_it_published(tmp_path: Path, carrier: MemoryCarrier) -> None:
    carrier.there.clear()
    with spooling(tmp_path / "spool", carrier) as sink:
        publish(sink, 50)
        left = after_crash(tmp_path / "spool")
    carrier.there.set()
    with spooling(left, carrier) as sink:
        publish(sink, 5, 2)
        assert sink.flush(10)
    assert carrier.log == numbers(50) + numbers(5, 2)


def test_at_the_bound_the_newest_are_refused_and_the_hole_shows(
    tmp_path: Path, carrier: MemoryCarrier
) -> None:
    carrier.there.clear()
    with spooling(tmp_path, carrier, max_bytes=20_000) as sink:
        with pytest.raises(
            PublishError, match=r"did not take \d+ of 100 batches: .* bound of 20000"
        ) as caught:
            publish(sink, 100)
        refused = caught.value.dropped
        assert sink.counters().refused == refused > 0
        assert sink.counters().bytes <= 20_000
        carrier.there.set()
        assert sink.flush(10)
        sink.publish([batch(101)])
        assert sink.flush(10)
    assert carrier.log == [*numbers(100 - refused), (1, 101)]


def test_an_emitter_counts_what_its_spool_refuses_and_numbers_on(
    tmp_path: Path, carrier: MemoryCarrier
) -> None:
    carrier.there.clear()
    sink = SpoolSink(tmp_path, carrier, max_bytes=5_000)
    with CacheEventEmitter(sink, "server-1", 1, flush_interval=3_600) as emitter:
        for chunk in range(30):
            emitter.on_store(Tier.L1, f"disk-{chunk}", [ObjectKey(bytes(32), "llama", 1)], [1])
        emitter.flush(0)
        refused = emitter.counters().dropped
        assert 0 < refused < 30
        carrier.there.set()
        assert sink.flush(10)
        emitter.on_store(Tier.L1, "dram", [ObjectKey(bytes(32), "llama", 1)], [1])
        assert emitter.flush()
    assert carrier.log == [*numbers(30 - refused), (1, 31)]


def test_with_the_disk_full_batches_go_by_memory_in_their_place(
    tmp_path: Path, carrier: MemoryCarrier
) -> None:
    carrier.there.clear()
    with spooling(tmp_path, carrier) as sink:
        publish(sink, 10)
        with files_limited_to(0):
            sink.publish([batch(seq) for seq in range(11, 21)])
        assert sink.counters().disk_errors == 10
        sink.publish([batch(seq) for seq in range(21, 31)])
        carrier.there.set()
        assert sink.flush(10)
        assert sink.counters().refused == 0
    assert carrier.log == numbers(30)


def test_with_the_disk_full_and_no_room_in_memory_batches_are_refused_and_the_stream_goes_on(
    tmp_path: Path, carrier: MemoryCarrier, caplog: pytest.LogCaptureFixture
) -> None:
    carrier.there.clear()
    with spooling(tmp_path, carrier, memory_bytes=2_000) as sink:
        with files_limited_to(0), pytest.raises(PublishError, match="File too large") as caught:
            publish(sink, 10)
        held = 10 - caught.value.dropped
        assert 0 < held < 10
        assert (sink.counters().disk_errors, sink.counters().refused) == (10, 10 - held)
        carrier.there.set()
        sink.publish([batch(11)])
        assert sink.flush(10)
    assert carrier.log == [*numbers(held), (1, 11)]
    assert [record.message for record in caplog.records if "disk" in record.message] == [
        "the disk of the spool fails: [Errno 27] File too large"
    ]


def test_what_is_in_memory_alone_when_it_closes_is_told_as_lost(
    tmp_path: Path, carrier: MemoryCarrier, caplog: pytest.LogCaptureFixture
) -> None:
    carrier.there.clear()
    with caplog.at_level(logging.INFO), spooling(tmp_path, carrier) as sink:
        publish(sink, 3)
        with files_limited_to(0):
            sink.publish([batch(seq) for seq in range(4, 9)])
        assert (sink.counters().waiting, sink.counters().in_memory) == (8, 5)
        sink.close()
    assert f"3 batches wait in {tmp_path} for the next start" in caplog.messages
    assert f"5 batches are lost and leave a gap: the disk of {tmp_path} took none" in caplog.messages


def test_a_record_that_will_never_be_taken_is_left_out_and_no_other(
    tmp_path: Path, carrier: MemoryCarrier, caplog: pytest.LogCaptureFixture
) -> None:
    carrier.judge = lambda number: Answer.REFUSED if number in ((1, 7), (1, 20)) else Answer.TAKEN
    with spooling(tmp_path, carrier) as sink:
        with caplog.at_level(logging.WARNING):
            publish(sink, 20)
            assert sink.flush(10)
        assert (sink.counters().rejected, sink.counters().waiting) == (2, 0)
    assert carrier.log == [number for number in numbers(20) if number[1] not in (7, 20)]
    assert "batch 6 of" in caplog.text and "the broker will never take it" in caplog.text


def test_a_refusal_that_was_for_a_neighbour_costs_nothing(tmp_path: Path, carrier: MemoryCarrier) -> None:
    """A broker refuses a whole request where the records in it are too large together."""
    carrier.largest_request = 3
    carrier.there.clear()
    with spooling(tmp_path, carrier) as sink:
        publish(sink, 40)
        carrier.there.set()
        assert sink.flush(10)
        assert sink.counters().rejected == 0 < sink.counters().retries
    assert carrier.log == numbers(40)


def test_damage_on_disk_is_counted_and_what_follows_still_goes_out(
    tmp_path: Path, carrier: MemoryCarrier
) -> None:
    carrier.there.clear()
    with spooling(tmp_path, carrier, max_bytes=40_000) as sink:
        publish(sink, 60)
    path = segments(tmp_path)[1]
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)
    carrier.there.set()
    with spooling(tmp_path, carrier, max_bytes=40_000) as sink:
        assert sink.flush(10)
        damaged = sink.counters().damaged
    assert 0 < damaged < 20
    missing = sorted(set(numbers(60)) - set(carrier.log))
    assert len(missing) == damaged
    assert missing == numbers(60)[missing[0][1] - 1 : missing[-1][1]]
    assert carrier.log == [number for number in numbers(60) if number not in missing]


def test_a_torn_tail_is_discarded_and_counted(tmp_path: Path, carrier: MemoryCarrier) -> None:
    carrier.there.clear()
    with spooling(tmp_path, carrier) as sink:
        publish(sink, 10)
    path = segments(tmp_path)[-1]
    path.write_bytes(path.read_bytes()[:-3])
    carrier.there.set()
    with spooling(tmp_path, carrier) as sink:
        sink.publish([batch(1, 2)])
        assert sink.flush(10)
        assert (sink.counters().inherited, sink.counters().damaged) == (9, 1)
    assert carrier.log == [*numbers(9), (2, 1)]


def test_records_reach_the_disk_within_the_interval(
    tmp_path: Path, carrier: MemoryCarrier, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[str] = []
    monkeypatch.setattr("os.fdatasync", lambda descriptor: synced.append(descriptor_name(descriptor)))
    carrier.there.clear()
    with spooling(tmp_path, carrier, sync_interval=0.05) as sink:
        sink.publish([batch(1)])
        wait_for(lambda: any(name.endswith(".segment") for name in synced), what="the segment to be synced")


def test_a_second_emitter_on_the_folder_is_refused(tmp_path: Path, carrier: MemoryCarrier) -> None:
    with (
        spooling(tmp_path, carrier),
        pytest.raises(SpoolInUse, match=f"another emitter spools in {tmp_path}"),
    ):
        SpoolSink(tmp_path, MemoryCarrier())


def test_a_closed_spool_takes_nothing(tmp_path: Path, carrier: MemoryCarrier) -> None:
    with spooling(tmp_path, carrier) as sink:
        pass
    sink.close()
    with pytest.raises(PublishError, match="is closed"):
        sink.publish([batch(1)])
    assert segments(tmp_path) == []
