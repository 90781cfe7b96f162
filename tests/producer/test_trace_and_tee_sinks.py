"""A trace can be read back, whatever cut it short; a tee serves every sink whatever befalls one of them."""

from __future__ import annotations

import resource
import signal
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from producer.emitter import CacheEventEmitter
from producer.events import CacheEventBatch, CacheEventEntry, EventType, ObjectKey, Tier
from producer.sinks.protocol import PublishError
from producer.sinks.tee import TeeSink
from producer.sinks.trace import TraceError, TraceSink, read_trace
from producer.wire import Wire
from tests.producer.memory_sink import MemorySink
from tests.producer.strategies import batches


def batch(seq: int) -> CacheEventBatch:
    entry = CacheEventEntry(ObjectKey(b"\1", "llama", 1), 10, [1, 2], 0)
    return CacheEventBatch("server-1", 7, seq, EventType.STORE, Tier.L1, "dram", [entry])


def record(path: Path, *sent: CacheEventBatch, wire: Wire = Wire.COLUMNS) -> None:
    sink = TraceSink(path, wire)
    sink.publish(sent)
    sink.close()


@pytest.mark.parametrize("wire", Wire)
@given(sent=st.lists(batches(), max_size=4))
def test_a_trace_reads_back_as_it_was_written(
    tmp_path_factory: pytest.TempPathFactory, wire: Wire, sent: list[CacheEventBatch]
) -> None:
    path = tmp_path_factory.mktemp("trace") / "trace.jsonl"
    record(path, *sent, wire=wire)
    assert list(read_trace(path)) == sent
    assert path.read_bytes().count(b"\n") == len(sent)


def test_a_trace_goes_on_where_it_ended_and_may_mix_forms(tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    record(path, batch(1), wire=Wire.ROWS)
    record(path, batch(2))
    assert list(read_trace(path)) == [batch(1), batch(2)]


def test_a_line_cut_short_is_left_out_and_removed_before_going_on(tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    record(path, batch(1), batch(2))
    path.write_bytes(path.read_bytes()[:-10])
    assert list(read_trace(path)) == [batch(1)]
    record(path, batch(3))
    assert list(read_trace(path)) == [batch(1), batch(3)]


def test_a_line_cut_short_is_removed_whatever_its_length(tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    record(path, batch(1))
    whole = path.read_bytes()
    for torn in (whole + b"x" * 200_000, b"x" * 200_000, whole):
        path.write_bytes(torn)
        record(path, batch(2))
        assert list(read_trace(path)) == ([batch(1), batch(2)] if torn.startswith(whole) else [batch(2)])


def test_a_line_that_is_no_batch_is_refused_by_file_and_line(tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    record(path, batch(1))
    with path.open("ab") as file:
        file.write(b'{"instance_id": ""}\n')
    trace = read_trace(path)
    assert next(trace) == batch(1)
    with pytest.raises(TraceError, match=r"trace.jsonl, line 2: "):
        next(trace)


def test_a_file_that_takes_nothing_more_drops_the_batches() -> None:
    sink = TraceSink(Path("/dev/full"))
    with pytest.raises(PublishError, match="cannot write to /dev/full") as caught:
        sink.publish([batch(1), batch(2)])
    assert caught.value.dropped == 2
    assert not sink.flush(1.0)
    with pytest.raises(OSError):
        sink.close()


def test_a_lot_that_fits_only_in_part_is_left_out_of_the_file(tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    record(path, batch(1))
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    ignored = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    sink = TraceSink(path)
    resource.setrlimit(resource.RLIMIT_FSIZE, (path.stat().st_size + 100, hard))
    try:
        with pytest.raises(PublishError):
            sink.publish([batch(2), batch(3)])
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        signal.signal(signal.SIGXFSZ, ignored)
    sink.publish([batch(4)])
    sink.close()
    assert list(read_trace(path)) == [batch(1), batch(4)]


def test_an_emitters_stream_can_be_traced(tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    with CacheEventEmitter(TraceSink(path), "server-1", 1) as emitter:
        emitter.on_store(Tier.L1, "dram", [ObjectKey(b"\1", "llama", 1)], [5])
    assert [(one.seq, one.entries[0].size_bytes) for one in read_trace(path)] == [(1, 5)]


def test_a_tee_hands_every_batch_to_every_sink() -> None:
    one, other = MemorySink([Wire.ROWS]), MemorySink([Wire.COLUMNS])
    tee = TeeSink(one, other)
    tee.publish([batch(1)])
    assert one.batches == other.batches == [batch(1)]
    assert tee.wires == set(Wire)
    assert tee.flush(1.0)
    assert (one.flushes, other.flushes) == (1, 1)
    tee.close()
    assert one.closed
    assert other.closed


def test_a_sink_that_fails_costs_the_others_nothing_and_all_failures_are_told() -> None:
    first, second, third = MemorySink(), MemorySink(), MemorySink()
    first.fail_with = first.refusal(1)
    second.fail_with = RuntimeError("a bug")
    with pytest.raises(PublishError, match=r"2 of 3 sinks failed: .*the disk is full.*; .*a bug") as caught:
        TeeSink(first, second, third).publish([batch(1), batch(2)])
    assert caught.value.dropped == 2
    assert third.batches == [batch(1), batch(2)]


def test_a_tee_needs_a_sink() -> None:
    with pytest.raises(ValueError, match="at least one"):
        TeeSink()
