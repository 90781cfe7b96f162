"""The emitter keeps order, numbers without holes, shows every loss, and never holds up the serving path."""

from __future__ import annotations

import itertools
import logging
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from producer.emitter import CacheEventEmitter, Capacity
from producer.events import CacheEventBatch, EventType, ObjectKey, Tier, make_kv_rank
from producer.wire import Wire, encode_batch, envelope
from tests.producer.memory_sink import MemorySink
from tests.waiting import wait_for

NEVER = 3_600.0
Change = tuple[EventType, Tier, str, bool, int]


def key(chunk: int, rank: int = 0) -> ObjectKey:
    return ObjectKey(chunk.to_bytes(32, "big"), "llama", make_kv_rank(8, rank, 8, rank))


@contextmanager
def emitting(sink: MemorySink, **settings: Any) -> Iterator[CacheEventEmitter]:
    with CacheEventEmitter(
        sink, "server-1", 1_700_000_000, **{"flush_interval": NEVER, "idle_interval": NEVER, **settings}
    ) as emitter:
        yield emitter


def apply(emitter: CacheEventEmitter, change: Change) -> None:
    event_type, tier, backend, shared, chunk = change
    match event_type:
        case EventType.STORE:
            emitter.on_store(tier, backend, [key(chunk)], [chunk], shared=shared)
        case EventType.DELETE:
            emitter.on_delete(tier, backend, [key(chunk)], shared=shared)
        case EventType.ACCESS:
            emitter.on_access(tier, [key(chunk)], backend=backend, shared=shared)


def changes_of(batches: Sequence[CacheEventBatch]) -> list[Change]:
    return [
        (
            batch.event_type,
            batch.tier,
            batch.backend,
            batch.shared,
            int.from_bytes(entry.key.chunk_hash, "big"),
        )
        for batch in batches
        for entry in batch.entries
    ]


def kind_of(batch: CacheEventBatch) -> tuple[EventType, Tier, str, bool]:
    return batch.event_type, batch.tier, batch.backend, batch.shared


any_change = st.tuples(
    st.sampled_from([EventType.STORE, EventType.DELETE, EventType.ACCESS]),
    st.sampled_from(Tier),
    st.sampled_from(["dram", "s3"]),
    st.booleans(),
    st.integers(0, 5),
)


@settings(max_examples=50, deadline=None)
@given(st.lists(st.lists(any_change, max_size=20), max_size=4))
def test_changes_come_out_in_order_numbered_without_holes_and_coalesced(flushes: list[list[Change]]) -> None:
    sink = MemorySink()
    with emitting(sink) as emitter:
        for changes in flushes:
            for change in changes:
                apply(emitter, change)
            before = len(sink.batches)
            assert emitter.flush()
            flushed = sink.batches[before:]
            assert all(kind_of(a) != kind_of(b) for a, b in itertools.pairwise(flushed))
    assert changes_of(sink.batches) == [change for changes in flushes for change in changes]
    assert [batch.seq for batch in sink.batches] == list(range(1, len(sink.batches) + 1))
    times = [batch.ts for batch in sink.batches]
    assert times == sorted(times)


@settings(max_examples=30, deadline=None)
@given(
    st.lists(st.integers(1, 300), min_size=1, max_size=30),
    st.sampled_from([[w] for w in Wire] + [list(Wire)]),
)
def test_records_stay_within_the_limit_and_each_piece_has_its_own_number(
    token_counts: list[int], wires: list[Wire]
) -> None:
    sink = MemorySink(wires)
    with emitting(sink, record_limit=5_000) as emitter:
        for chunk, count in enumerate(token_counts):
            emitter.on_tokens([key(chunk).chunk_hash], [range(2**31, 2**31 + count)], [0])
            emitter.on_store(Tier.L1, "dram", [key(chunk)], [1])
    for batch in sink.batches:
        for wire in wires:
            assert len(envelope((encode_batch(batch, wire),))) <= 5_000
    assert [len(entry.token_ids) for batch in sink.batches for entry in batch.entries] == token_counts
    assert [batch.seq for batch in sink.batches] == list(range(1, len(sink.batches) + 1))


def test_hashes_of_two_lengths_go_into_batches_of_their_own_in_columns() -> None:
    sink = MemorySink()
    with emitting(sink) as emitter:
        emitter.on_delete(Tier.L1, "dram", [ObjectKey(b"a" * n, "llama", 0) for n in (8, 8, 32)])
    assert [(batch.seq, len(batch.entries)) for batch in sink.batches] == [(1, 2), (2, 1)]


def test_a_store_takes_along_the_tokens_bound_before_it_once_for_every_rank() -> None:
    sink = MemorySink()
    with emitting(sink) as emitter:
        emitter.on_tokens([key(7).chunk_hash], [np.arange(256)], [512])
        emitter.on_store(Tier.L1, "dram", [key(7, rank) for rank in range(8)], [10] * 8)
        emitter.on_store(Tier.L2, "s3", [key(7)], [10], shared=True)
        emitter.flush()
        assert emitter.counters().unbound == 0
    for entry in (entry for batch in sink.batches for entry in batch.entries):
        assert entry.token_ids.tolist() == list(range(256))
        assert (entry.token_offset, entry.size_bytes) == (512, 10)


def test_a_store_whose_tokens_are_gone_goes_without_them() -> None:
    sink = MemorySink()
    with emitting(sink, max_bindings=2) as emitter:
        emitter.on_tokens([key(i).chunk_hash for i in range(3)], [[i] for i in range(3)], [0, 1, 2])
        emitter.on_store(Tier.L1, "dram", [key(0), key(2)], [1, 1])
        emitter.flush()
        assert (emitter.counters().unbound, emitter.counters().evicted) == (1, 2)
    gone, known = sink.batches[0].entries
    assert (len(gone.token_ids), gone.token_offset) == (0, -1)
    assert (known.token_ids.tolist(), known.token_offset) == ([2], 2)


def test_tokens_that_break_the_contract_cost_the_store_its_tokens_alone() -> None:
    sink = MemorySink()
    with emitting(sink) as emitter:
        emitter.on_tokens([key(1).chunk_hash], [[-1]], [0])
        emitter.on_tokens([key(1).chunk_hash], [[1]], [-5])
        emitter.on_tokens([key(1).chunk_hash], [[1], [2]], [0])
        emitter.on_tokens(None, None, None)  # type: ignore[arg-type]
        emitter.on_store(Tier.L1, "dram", [key(1)], [1])
    assert [len(entry.token_ids) for entry in sink.batches[0].entries] == [0]
    assert sink.batches[0].seq == 1


def test_time_never_falls_within_an_incarnation() -> None:
    times = iter([100.0, 90.0, 110.0, 50.0, 60.0])
    sink = MemorySink()
    with emitting(sink, clock=lambda: next(times, 55.0)) as emitter:
        for chunk in range(2):
            emitter.on_delete(Tier.L1, "dram", [key(chunk)])
            emitter.on_access(Tier.L1, [key(chunk)])
    assert [batch.ts for batch in sink.batches] == [100.0, 100.0, 110.0, 110.0]


def test_a_declaration_spans_a_batch_a_compartment_under_one_revision() -> None:
    sink = MemorySink()
    with emitting(sink) as emitter:
        emitter.on_capacity([Capacity(Tier.L1, "dram", 1)])
        emitter.on_capacity([Capacity(Tier.L1, "dram", 100), Capacity(Tier.L2, "s3", 0, shared=True)])
        emitter.flush()
        emitter.on_capacity([Capacity(Tier.L1, "dram", 200)])
    assert [(*kind_of(b)[1:], b.capacity_bytes, b.capacity_revision) for b in sink.batches] == [
        (Tier.L1, "dram", False, 100, 1),
        (Tier.L2, "s3", True, 0, 1),
        (Tier.L1, "dram", False, 200, 2),
    ]


def test_time_does_not_fall_where_a_declaration_joins_changes() -> None:
    ticks = iter(range(1, 100))
    sink = MemorySink()
    with emitting(sink, clock=lambda: float(next(ticks))) as emitter:
        emitter.on_delete(Tier.L1, "dram", [key(0)])
        emitter.on_capacity([Capacity(Tier.L1, "dram", 1)])
        emitter.flush()
        emitter.on_delete(Tier.L1, "dram", [key(0)])
    assert [batch.ts for batch in sink.batches] == sorted(batch.ts for batch in sink.batches)


def test_what_a_sink_refuses_is_counted_and_leaves_a_hole(caplog: pytest.LogCaptureFixture) -> None:
    sink = MemorySink()
    with emitting(sink) as emitter, caplog.at_level(logging.WARNING):
        for failure in (None, sink.refusal(1), RuntimeError("a bug"), None):
            sink.fail_with = failure
            emitter.on_delete(Tier.L1, "dram", [key(0)])
            emitter.flush()
        counters = emitter.counters()
    assert [batch.seq for batch in sink.batches] == [1, 4]
    assert (counters.last_seq, counters.published, counters.dropped) == (4, 2, 2)
    assert [record.message for record in caplog.records] == [
        "emitter of 'server-1': batches are lost and leave a gap: the disk is full"
    ]


def test_a_declaration_that_was_refused_is_made_again() -> None:
    sink = MemorySink()
    with emitting(sink) as emitter:
        sink.fail_with = sink.refusal(1)
        emitter.on_capacity([Capacity(Tier.L1, "dram", 100)])
        emitter.flush()
        sink.fail_with = None
        emitter.flush()
        emitter.flush()
    assert [(b.seq, b.capacity_bytes, b.capacity_revision) for b in sink.batches] == [(2, 100, 2)]


def test_a_newer_declaration_takes_the_place_of_one_refused() -> None:
    sink = MemorySink()
    with emitting(sink) as emitter:
        sink.open_gate.clear()
        sink.fail_with = sink.refusal(1)
        emitter.on_capacity([Capacity(Tier.L1, "dram", 100)])
        flusher = threading.Thread(target=emitter.flush)
        flusher.start()
        assert sink.entered.wait(10)
        emitter.on_capacity([Capacity(Tier.L1, "dram", 200)])
        sink.open_gate.set()
        flusher.join()
        sink.fail_with = None
    assert [batch.capacity_bytes for batch in sink.batches] == [200]


@pytest.mark.parametrize(
    "call",
    [
        lambda emitter: emitter.on_store(Tier.L1, "", [key(1)], [1]),
        lambda emitter: emitter.on_store("l3", "dram", [key(1)], [1]),
        lambda emitter: emitter.on_store(Tier.L1, "dram", [key(1)], [1, 2]),
        lambda emitter: emitter.on_store(Tier.L1, "dram", [key(1)], [-1]),
        lambda emitter: emitter.on_store(Tier.L1, "dram", [key(1)], None),
        lambda emitter: emitter.on_delete(Tier.L1, "dram", ["key"]),
        lambda emitter: emitter.on_delete(Tier.L1, "dram", [key(1)], shared=1),
        lambda emitter: emitter.on_delete(Tier.L1, "dram", 5),
        lambda emitter: emitter.on_access(Tier.L1, [None]),
    ],
)
def test_a_call_that_breaks_the_contract_raises_nothing_and_leaves_a_hole(call: Any) -> None:
    sink = MemorySink()
    with emitting(sink) as emitter:
        call(emitter)
        emitter.on_access(Tier.L1, [key(2)])
        emitter.flush()
        counters = emitter.counters()
    assert [batch.seq for batch in sink.batches] == [2]
    assert (counters.refused, counters.dropped) == (1, 1)


def test_a_misfit_among_good_keys_costs_the_good_ones_nothing() -> None:
    sink = MemorySink()
    with emitting(sink) as emitter:
        emitter.on_store(Tier.L1, "dram", [key(1), key(2), key(3)], [1, -1, 3])
    assert [entry.size_bytes for entry in sink.batches[0].entries] == [1, 3]
    assert sink.batches[0].seq == 2


def test_a_declaration_that_breaks_the_contract_raises_nothing() -> None:
    sink = MemorySink()
    with emitting(sink) as emitter:
        emitter.on_capacity([("l1", "dram", 1)])  # type: ignore[list-item]
        emitter.on_capacity(None)  # type: ignore[arg-type]
    assert sink.batches == []
    with pytest.raises(ValueError, match="capacity_bytes"):
        Capacity(Tier.L1, "dram", -1)


def test_a_slow_sink_holds_up_nobody_and_what_finds_no_room_leaves_a_hole() -> None:
    sink = MemorySink()
    sink.open_gate.clear()
    with emitting(sink, flush_entries=1, max_waiting=3) as emitter:
        emitter.on_delete(Tier.L1, "dram", [key(0)])
        assert sink.entered.wait(10)
        for chunk in range(1, 6):
            emitter.on_delete(Tier.L1, "dram", [key(chunk)])
        assert emitter.counters().waiting == 3
        sink.open_gate.set()
        emitter.flush()
        emitter.on_delete(Tier.L1, "dram", [key(9)])
        emitter.flush()
        assert emitter.counters().refused == 2
    assert [change[-1] for change in changes_of(sink.batches)] == [0, 1, 2, 3, 9]
    assert [batch.seq for batch in sink.batches] == [1, 2, 4]


def test_changes_go_out_by_themselves_within_the_interval() -> None:
    sink = MemorySink()
    with emitting(sink, flush_interval=0.01) as emitter:
        emitter.on_delete(Tier.L1, "dram", [key(0)])
        wait_for(lambda: sink.batches, what="a flush by interval")


def test_many_changes_bring_the_flush_forward() -> None:
    sink = MemorySink()
    with emitting(sink, flush_entries=100) as emitter:
        emitter.on_delete(Tier.L1, "dram", [key(i) for i in range(99)])
        assert sink.batches == []
        emitter.on_delete(Tier.L1, "dram", [key(99)])
        wait_for(lambda: sink.batches, what="a flush by size")


def test_an_idle_emitter_sends_an_empty_access_batch_now_and_again() -> None:
    sink = MemorySink()
    with emitting(sink, flush_interval=0.01, idle_interval=0.05):
        wait_for(lambda: len(sink.batches) >= 2, what="idle batches")
    assert {(kind_of(batch), batch.entries) for batch in sink.batches} == {
        ((EventType.ACCESS, Tier.L1, "", False), ())
    }
    assert all(batch.ts > 0 for batch in sink.batches)
    assert [batch.seq for batch in sink.batches] == list(range(1, len(sink.batches) + 1))


def test_threads_that_emit_at_once_lose_nothing() -> None:
    sink = MemorySink()
    with emitting(sink, flush_interval=0.001, flush_entries=50) as emitter:

        def serve(first: int) -> None:
            for chunk in range(first, first + 500):
                emitter.on_tokens([key(chunk).chunk_hash], [[chunk]], [0])
                emitter.on_store(Tier.L1, "dram", [key(chunk)], [1])
                emitter.on_delete(Tier.L1, "dram", [key(chunk)])

        threads = [threading.Thread(target=serve, args=(first,)) for first in range(0, 2_000, 500)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert [batch.seq for batch in sink.batches] == list(range(1, len(sink.batches) + 1))
    for first in range(0, 2_000, 500):
        mine = [change for change in changes_of(sink.batches) if first <= change[-1] < first + 500]
        assert [(change[0], change[-1]) for change in mine] == [
            (event_type, chunk)
            for chunk in range(first, first + 500)
            for event_type in (EventType.STORE, EventType.DELETE)
        ]


def test_closing_hands_over_the_rest_leaves_waiting_to_the_sink_and_takes_nothing_more() -> None:
    sink = MemorySink()
    emitter = CacheEventEmitter(sink, "server-1", 1, flush_interval=NEVER)
    emitter.on_delete(Tier.L1, "dram", [key(0)])
    emitter.close()
    emitter.close()
    emitter.on_delete(Tier.L1, "dram", [key(1)])
    assert [change[-1] for change in changes_of(sink.batches)] == [0]
    assert sink.closed
    assert sink.flushes == 0
    assert emitter.counters().refused == 1


@pytest.mark.parametrize(("instance_id", "incarnation"), [("", 1), ("a", -1), ("a", 1.5), (None, 1)])
def test_an_emitter_without_a_proper_name_is_not_made(instance_id: Any, incarnation: Any) -> None:
    with pytest.raises(ValueError, match=r"must be"):
        CacheEventEmitter(MemorySink(), instance_id, incarnation)
