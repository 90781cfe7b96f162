"""What replay may do to streams: fill, re-apply, give up; and that the state comes out as in order."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from processor.batch import EventBatch
from processor.ingest.broadcaster import Broadcaster
from processor.ingest.decode import Decoder
from processor.ingest.gate import EventGate
from processor.ingest.outcomes import IngestResult, UnknownStream
from processor.ingest.ranges import LossReason
from processor.ingest.search import Verdict
from processor.ingest.source import Position
from processor.state.directory import KeyDirectory
from producer.events import CacheEventBatch, CacheEventEntry, EventType, ObjectKey, Tier
from producer.wire import encode_rows
from tests.processor.ingest.recorder import Recorder, batch

DUPLICATE, REPAIRED, STALE = IngestResult.DUPLICATE, IngestResult.REPAIRED, IngestResult.STALE
HERE = Position(0, 0)
KEYS = [ObjectKey(bytes([number]) * 32, "llama", 1) for number in range(3)]


class Log:
    def positions(self) -> dict[int, int]:
        return {0: 100}

    def behind(self, partition: int) -> bool:
        return False

    def replay_status(self, instance_id: str) -> None:
        return None


@dataclass
class Bench:
    recorder: Recorder = field(default_factory=Recorder)

    def __post_init__(self) -> None:
        self.gate = EventGate(Broadcaster([self.recorder]))
        self.gate.follow(Log())
        self.repairs = self.gate.repairs

    def offer(self, *seqs: int, incarnation: int = 1) -> None:
        for seq in seqs:
            self.gate.offer(batch(seq, incarnation), Position(0, seq))

    def lose_all(self) -> None:
        for gap in self.repairs.gaps():
            for held in gap.wanted:
                assert held.last is not None
                verdict = Verdict(held.first, held.last, LossReason.NEVER_PRODUCED)
                self.repairs.give_up(gap.instance_id, held, [verdict])

    def close_all(self) -> None:
        self.lose_all()
        self.gate.tick(1e12, 0.0, 60.0)


@pytest.fixture
def bench() -> Bench:
    return Bench()


def test_replay_fills_what_is_open_and_nothing_else(bench: Bench) -> None:
    bench.offer(1, 4)
    assert bench.repairs.offer(batch(2), HERE) is REPAIRED
    assert bench.repairs.offer(batch(1), HERE) is DUPLICATE
    assert bench.repairs.offer(batch(9), HERE) is DUPLICATE
    assert bench.repairs.offer(batch(1, 2), HERE) is DUPLICATE
    assert bench.repairs.offer(batch(1, instance_id="nobody"), HERE) is STALE
    assert bench.recorder.seqs == [1, 4, 2]
    stream = bench.gate.stream("server-1")
    assert stream is not None
    assert (stream.last_seq, stream.incarnation, stream.offset, stream.missing) == (4, 1, 4, [(3, 3)])
    assert bench.gate.counters().batches == {"admitted": 2, "repaired": 1, "duplicate": 0, "stale": 0}
    assert bench.gate.stream("nobody") is None


def test_what_live_reading_is_still_to_come_to_is_not_taken_out_of_a_lost_tail(bench: Bench) -> None:
    bench.offer(1)
    bench.gate.lose_tails(0)
    assert bench.repairs.offer(batch(3), HERE) is DUPLICATE
    bench.offer(3)
    assert bench.recorder.seqs == [1, 3]
    assert bench.repairs.offer(batch(2), HERE) is REPAIRED


def test_reading_again_proves_no_conflict(bench: Bench) -> None:
    bench.offer(1, 2)
    bench.offer(1, 3, incarnation=2)
    for _ in range(5):
        bench.repairs.offer(batch(1, ts=7.0, entries=9), HERE)
        bench.repairs.offer(batch(1, 2, ts=7.0, entries=9), HERE)
    stream = bench.gate.stream("server-1")
    assert stream is not None and not stream.conflict


def test_a_new_incarnation_narrows_a_repair_to_what_outlives_it(bench: Bench) -> None:
    bench.offer(1, 3)
    bench.offer(1, incarnation=2)
    assert bench.repairs.offer(batch(2), HERE) is REPAIRED
    admission = bench.recorder.admissions[-1]
    assert (admission.l1_void, admission.epoch) == (True, 1)


def test_a_departure_drops_what_was_searched_for(bench: Bench) -> None:
    bench.offer(1, 3)
    (gap,) = bench.repairs.gaps()
    bench.gate.drop_instance("server-1", {0: 50})
    assert not bench.repairs.lacks(gap)
    assert bench.repairs.gaps() == []
    assert bench.repairs.offer(batch(2), Position(0, 2)) is STALE
    # Back with a fresh cursor, and a gap in the same numbers: neither the old records nor the old verdict
    # concern it.
    bench.gate.offer(batch(3), Position(0, 60))
    assert bench.repairs.offer(batch(2), Position(0, 2)) is STALE
    assert bench.repairs.give_up("server-1", gap.wanted[0], [Verdict(2, 2, LossReason.NEVER_PRODUCED)]) == 0
    stream = bench.gate.stream("server-1")
    assert stream is not None and stream.missing == [(1, 2)]


def test_a_verdict_leaves_alone_what_was_repaired_or_accepted_meanwhile(bench: Bench) -> None:
    bench.offer(1, 9)
    (gap,) = bench.repairs.gaps()
    bench.offer(4)
    bench.gate.accept_loss("server-1", first=7, last=7)
    verdict = Verdict(2, 8, LossReason.UNDECODABLE)
    assert bench.repairs.give_up("server-1", gap.wanted[0], [verdict]) == 5
    stream = bench.gate.stream("server-1")
    assert stream is not None
    assert [(held.first, held.last) for held in stream.lost] == [(2, 3), (5, 6), (8, 8)]


def test_a_range_knows_how_far_the_log_was_read_and_where_it_ended_later(bench: Bench) -> None:
    bench.offer(1, 3)
    (gap,) = bench.repairs.gaps()
    horizon = gap.wanted[0].horizon
    assert horizon is not None and (horizon.read, horizon.ends) == ({0: 100}, None)
    bench.repairs.note_ends({0: 120}, asked=0.0)  # before the gap showed
    (gap,) = bench.repairs.gaps()
    assert gap.wanted[0].horizon == horizon
    bench.repairs.note_ends({0: 130}, asked=1e12)
    bench.repairs.note_ends({0: 140}, asked=1e12)
    (gap,) = bench.repairs.gaps()
    assert gap.wanted[0].horizon is not None and gap.wanted[0].horizon.ends == {0: 130}


def test_an_operator_names_what_is_searched(bench: Bench) -> None:
    bench.offer(1, 4, 8)
    bench.close_all()
    bench.offer(12)
    asked = bench.repairs.request

    def names(
        incarnation: int | None = None, first: int | None = None, last: int | None = None
    ) -> tuple[list[int], bool]:
        gap = asked("server-1", incarnation, first, last)
        return [held.first for held in gap.wanted], gap.reapply is not None

    assert names() == ([9], False)
    assert names(first=9) == ([9], False)
    assert names(incarnation=2) == ([], False)
    assert names(first=6, last=6) == ([], True)
    with pytest.raises(UnknownStream):
        asked("nobody", None, None, None)


def test_a_stream_being_re_applied_keeps_its_tombstones_until_it_is_done(bench: Bench) -> None:
    bench.offer(1, 3, 4)
    bench.close_all()
    assert bench.recorder.calls[-1] == ("expire", -60.0)
    assert ("settle", "server-1") in bench.recorder.calls
    gap = bench.repairs.request("server-1", None, 2, 2)
    assert gap.reapply is not None
    assert [gap.reapply for gap in bench.repairs.gaps()] == [gap.reapply]
    bench.offer(5)
    assert bench.recorder.admissions[-1].keep_tombstones
    # Behind the cursor of the beginning, an access, and a number before it: not applied again.
    assert bench.repairs.offer(batch(1), HERE) is DUPLICATE
    assert bench.repairs.offer(batch(3, event_type=EventType.ACCESS), HERE) is DUPLICATE
    assert bench.repairs.offer(batch(3), HERE) is DUPLICATE
    assert bench.repairs.offer(batch(2), HERE) is REPAIRED
    assert bench.recorder.seqs == [1, 3, 4, 5, 3, 2]
    calls = len(bench.recorder.calls)
    bench.repairs.finish("server-1", gap.reapply)
    assert bench.recorder.calls[calls:] == [("settle", "server-1")]
    assert bench.repairs.gaps() == []
    stream = bench.gate.stream("server-1")
    assert stream is not None and not stream.gap_detected


def test_a_second_request_that_begins_earlier_is_not_ended_by_the_first(bench: Bench) -> None:
    bench.offer(1, 3, 5)
    bench.close_all()
    late = bench.repairs.request("server-1", None, 4, 4)
    early = bench.repairs.request("server-1", None, 2, 2)
    assert late.reapply is not None and early.reapply is not None
    bench.repairs.finish("server-1", late.reapply)
    assert [gap.reapply for gap in bench.repairs.gaps()] == [early.reapply]
    assert bench.repairs.lacks(early) and not bench.repairs.lacks(late)


@dataclass
class Fleet:
    """One emitter's stream into a directory, by way of a gate."""

    directory: KeyDirectory = field(
        default_factory=lambda: KeyDirectory(chunk_size=4, max_chunks=1024, enable_blend=False)
    )

    def __post_init__(self) -> None:
        self.gate = EventGate(Broadcaster([self.directory]))

    def placements(self) -> list[list[tuple[str, int, str, str, int]]]:
        return [
            [(p.instance_id, p.incarnation, p.tier.value, p.backend, p.size_bytes) for p in info.placements]
            for info in self.directory.lookup(KEYS)
        ]


DECODER = Decoder(4)


@st.composite
def histories(draw: st.DrawFn) -> list[EventBatch]:
    """Stores and deletes of a few keys on either tier, over one or two incarnations."""
    found = []
    for incarnation in range(1, draw(st.integers(1, 2)) + 1):
        for seq in range(1, draw(st.integers(2, 8)) + 1):
            tier, backend = draw(st.sampled_from([(Tier.L1, "dram"), (Tier.L2, "fs")]))
            keys = draw(st.lists(st.sampled_from(KEYS), min_size=1, max_size=2, unique=True))
            kind = draw(st.sampled_from([EventType.STORE, EventType.DELETE]))
            entries = [CacheEventEntry(key, 10 * incarnation + seq) for key in keys]
            made = CacheEventBatch("server-1", incarnation, seq, kind, tier, backend, entries, ts=float(seq))
            found += DECODER.decode(encode_rows([made]), record_time=0.0)
    return found


@settings(deadline=None)  # the first example compiles the kernels
@given(histories(), st.data())
def test_after_re_applying_the_state_is_as_if_nothing_had_ever_been_missing(
    history: list[EventBatch], data: st.DataObject
) -> None:
    whole, holed = Fleet(), Fleet()
    last = {held.incarnation: held.seq for held in history}
    within = [b for b in history if b.seq < last[b.incarnation]]
    withheld = data.draw(st.lists(st.sampled_from(within), min_size=1, unique_by=id))
    live_from = data.draw(st.integers(0, len(history)))
    for each in history:
        whole.gate.offer(each)
    for each in history[:live_from]:
        if each not in withheld:
            holed.gate.offer(each, HERE)
    repairs = holed.gate.repairs
    for gap in repairs.gaps():
        for held in gap.wanted:
            assert held.last is not None
            repairs.give_up("server-1", held, [Verdict(held.first, held.last, LossReason.UNDECODABLE)])
    holed.gate.tick(1e12, 1e12, 0.0)
    asked = repairs.request("server-1", None, 1, None) if holed.gate.stream("server-1") else None
    # Live reading goes on; the partitions of the log are read again in any order.
    again = data.draw(st.permutations(history[:live_from]))
    live = [each for each in history[live_from:] if each not in withheld]
    steps: list[EventBatch | None] = [*again, *([None] * len(live))]
    for step in data.draw(st.permutations(steps)):
        if step is None:
            holed.gate.offer(live.pop(0), HERE)
        else:
            repairs.offer(step, HERE)
    if asked is not None and asked.reapply is not None:
        repairs.finish("server-1", asked.reapply)
    # What went missing while that was going on is still open, and found by an ordinary search.
    for each in history:
        repairs.offer(each, HERE)
    assert holed.placements() == whole.placements()
    stream = holed.gate.stream("server-1")
    assert stream is not None and not stream.gap_detected and not stream.lost
