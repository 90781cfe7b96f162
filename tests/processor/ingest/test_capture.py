"""What a checkpoint keeps of gate and offsets: captured as plain data, and gone on from after a restore."""

from __future__ import annotations

import json
import threading
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from processor.ingest.broadcaster import Broadcaster
from processor.ingest.gate import EventGate
from processor.ingest.offsets import MAX_POINTS, OffsetIndex
from processor.ingest.outcomes import IngestResult
from processor.ingest.ranges import LossReason
from processor.ingest.source import Position
from tests.processor.ingest.recorder import Recorder, batch
from tests.waiting import wait_for


class Log:
    """A log of which ten records of partition 0 were read."""

    def positions(self) -> dict[int, int]:
        return {0: 10}

    def behind(self, partition: int) -> bool:
        return False

    def replay_status(self, instance_id: str) -> None:
        return None


def restored(data: dict[str, Any]) -> tuple[EventGate, Recorder]:
    recorder = Recorder()
    gate = EventGate(Broadcaster([recorder]))
    gate.restore(json.loads(json.dumps(data)))
    return gate, recorder


@given(
    st.lists(
        st.tuples(st.integers(1, 3), st.integers(1, 12), st.sampled_from(["a", "b"])), min_size=1, max_size=40
    ),
    st.data(),
)
def test_a_restored_gate_goes_on_as_the_captured_one(
    stream: list[tuple[int, int, str]], data: st.DataObject
) -> None:
    gate = EventGate(Broadcaster([Recorder()]))
    gate.follow(Log())
    split = data.draw(st.integers(0, len(stream)))

    def offer(to: EventGate, part: list[tuple[int, int, str]]) -> list[IngestResult]:
        return [
            to.offer(batch(seq, incarnation, name), Position(0, 10 + seq)) for incarnation, seq, name in part
        ]

    offer(gate, stream[:split])
    again, _ = restored(gate.capture())
    again.follow(Log())
    assert again.capture() == gate.capture()
    assert again.streams() == gate.streams()
    assert offer(again, stream[split:]) == offer(gate, stream[split:])
    assert [s.missing for s in again.streams()] == [s.missing for s in gate.streams()]
    assert [s.epoch for s in again.streams()] == [s.epoch for s in gate.streams()]


def test_a_range_keeps_how_far_the_log_was_read_when_it_showed() -> None:
    gate = EventGate(Broadcaster([]))
    gate.follow(Log())
    gate.offer(batch(3), Position(0, 10))
    (stream,) = gate.capture()["streams"]
    assert [(held["first"], held["last"], held["read"]) for held in stream["ranges"]] == [(1, 2, {"0": 10})]
    assert restored(gate.capture())[0].capture() == gate.capture()


def test_marks_of_departures_and_epochs_of_the_forgotten_ride_along() -> None:
    gate = EventGate(Broadcaster([]))
    gate.offer(batch(1), Position(0, 0))
    gate.drop_instance("server-1", {0: 5})
    again, _ = restored(gate.capture())
    assert again.offer(batch(2), Position(0, 4)) is IngestResult.STALE
    assert again.offer(batch(1), Position(0, 5)) is IngestResult.ADMITTED
    stream = again.stream("server-1")
    assert stream is not None and stream.epoch == 2


def test_lost_ranges_keep_their_reason_and_tombstones_go_on_waiting_for_them() -> None:
    gate = EventGate(Broadcaster([]), seekable=False)
    gate.offer(batch(1))
    gate.offer(batch(3))
    again, recorder = restored(gate.capture())
    stream = again.stream("server-1")
    assert stream is not None
    assert [(lost.first, lost.last, lost.reason) for lost in stream.lost] == [(2, 2, LossReason.NO_LOG)]
    assert again.counters().gaps == 1
    again.tick(0.0, watermark=10_000.0, clock_skew=60.0)
    assert ("expire", 9_940.0) not in recorder.calls
    assert again.offer(batch(2)) is IngestResult.REPAIRED
    assert recorder.calls == [("consume", 2), ("settle", "server-1")]
    again.tick(0.0, watermark=10_000.0, clock_skew=60.0)
    assert ("expire", 9_940.0) in recorder.calls


def test_a_batch_that_a_consumer_is_owed_is_missing_after_a_restore() -> None:
    recorder = Recorder()
    recorder.refuses = lambda admission: admission.batch.seq == 2
    gate = EventGate(Broadcaster([recorder]))
    for seq in (1, 2, 3):
        gate.offer(batch(seq), Position(0, seq))
    again, found = restored(gate.capture())
    stream = again.stream("server-1")
    assert stream is not None and stream.missing == [(2, 2)]
    assert again.offer(batch(2), Position(0, 2)) is IngestResult.REPAIRED
    assert found.seqs == [2]


def test_what_is_missing_when_no_log_is_read_any_more_is_lost_at_once() -> None:
    gate = EventGate(Broadcaster([]))
    gate.offer(batch(3), Position(0, 0))
    pushed = EventGate(Broadcaster([]), seekable=False)
    pushed.restore(json.loads(json.dumps(gate.capture())))
    stream = pushed.stream("server-1")
    assert stream is not None and stream.missing == []
    assert [(lost.first, lost.last, lost.reason) for lost in stream.lost] == [(1, 2, LossReason.NO_LOG)]


def test_a_capture_of_the_first_versions_is_restored() -> None:
    gate = EventGate(Broadcaster([]))
    gate.offer(batch(1))
    gate.drop_instance("server-1")
    data = gate.capture()
    del data["epoch_floor"]
    again, _ = restored(data)
    again.offer(batch(1))
    assert [stream.epoch for stream in again.streams()] == [2]


def test_while_quiesced_no_batch_passes_and_the_holder_may_capture() -> None:
    gate = EventGate(Broadcaster([]))
    gate.offer(batch(1))
    offering = threading.Event()

    def offer() -> None:
        offering.set()
        gate.offer(batch(2))

    thread = threading.Thread(target=offer)
    with gate.quiesced():
        thread.start()
        assert offering.wait(10)
        captured = gate.capture()
        assert captured["streams"][0]["last_seq"] == 1
        assert thread.is_alive()
    thread.join(10)
    wait_for(lambda: gate.capture()["streams"][0]["last_seq"] == 2)


def test_what_is_no_capture_is_refused_and_changes_nothing() -> None:
    gate = EventGate(Broadcaster([]))
    gate.offer(batch(1))
    before = gate.capture()
    for damaged in ({}, {**before, "marks": {"a": {"x": 1}}}, {**before, "streams": [{"instance_id": "a"}]}):
        with pytest.raises((KeyError, TypeError, ValueError)):
            gate.restore(damaged)
    assert gate.capture() == before


@given(st.lists(st.tuples(st.integers(1, 2), st.integers(1, 9)), max_size=40))
def test_a_restored_offset_index_answers_as_the_captured_one(read: list[tuple[int, int]]) -> None:
    index, again = OffsetIndex(), OffsetIndex()
    for offset, (incarnation, seq) in enumerate(read):
        index.note("server-1", incarnation, seq, Position(offset % 2, offset))
    again.restore(json.loads(json.dumps(index.capture())))
    for partition in (0, 1):
        assert again.first("server-1", partition) == index.first("server-1", partition)
        for seq in range(1, 10):
            assert again.before("server-1", 2, seq, partition) == index.before("server-1", 2, seq, partition)


def test_a_restored_offset_index_stays_as_small() -> None:
    index, again = OffsetIndex(), OffsetIndex()
    for seq in range(1, 5 * MAX_POINTS):
        index.note("server-1", 1, seq, Position(0, seq))
    again.restore(index.capture())
    for seq in range(5 * MAX_POINTS, 6 * MAX_POINTS):
        for either in (index, again):
            either.note("server-1", 1, seq, Position(0, seq))
    assert again.before("server-1", 1, 6 * MAX_POINTS, 0) == index.before("server-1", 1, 6 * MAX_POINTS, 0)
    (points,) = again.capture()
    assert points["stride"] == index.capture()[0]["stride"]
