"""The engine's state is a function of the log: late, doubled, killed and replayed, it ends the same."""

from __future__ import annotations

import json
from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from processor.ingest.broadcaster import Broadcaster
from processor.ingest.gate import EventGate
from processor.ingest.outcomes import IngestResult
from processor.ingest.source import Position
from processor.state.directory import KeyDirectory, Placement
from producer.events import CacheEventBatch, ObjectKey
from tests.model.convert import event_batch
from tests.model.fleets import CHUNK_SIZE, Telling, deliveries, histories

HERE = Position(0, 0)


class Processor:
    """The engine's gate in front of the engine's directory."""

    def __init__(self) -> None:
        self.directory = KeyDirectory(chunk_size=CHUNK_SIZE, max_chunks=64, enable_blend=True)
        self.gate = self.new_gate()

    def new_gate(self) -> EventGate:
        self.broadcaster = Broadcaster([self.directory])
        return EventGate(self.broadcaster)

    def offer(self, batch: CacheEventBatch) -> IngestResult:
        return self.gate.offer(event_batch(batch), HERE)

    def read_again(self, batch: CacheEventBatch) -> IngestResult:
        return self.gate.repairs.offer(event_batch(batch), HERE)

    def die_and_return(self) -> None:
        """Another gate, from what a checkpoint kept; the directory's own restore is tested elsewhere."""
        kept = json.loads(json.dumps(self.gate.capture()))
        self.gate = self.new_gate()
        self.gate.restore(kept)

    def placements(self, history: Sequence[CacheEventBatch]) -> dict[ObjectKey, list[Placement]]:
        keys = list({entry.key: None for batch in history for entry in batch.entries})
        found = self.directory.lookup(keys)
        return {info.key: sorted(info.placements, key=repr) for info in found}


def in_order(history: Sequence[CacheEventBatch]) -> Processor:
    processor = Processor()
    for batch in history:
        assert processor.offer(batch) is IngestResult.ADMITTED
    return processor


@st.composite
def read_otherwise(draw: st.DrawFn) -> tuple[list[CacheEventBatch], list[CacheEventBatch]]:
    history = draw(histories(Telling(always=False)))
    turns = draw(st.permutations([batch.instance_id for batch in history]))
    return history, draw(deliveries(history, turns))


@given(read_otherwise(), st.data())
def test_any_delivery_with_kills_in_between_ends_in_the_placements_of_the_history(
    drawn: tuple[list[CacheEventBatch], list[CacheEventBatch]], data: st.DataObject
) -> None:
    history, delivery = drawn
    kills = data.draw(st.sets(st.integers(0, len(delivery)), max_size=3))
    processor = Processor()
    for index, batch in enumerate(delivery):
        if index in kills:
            processor.die_and_return()
        processor.offer(batch)
    assert processor.placements(history) == in_order(history).placements(history)
    assert not processor.gate.streams(gap=True)
    assert not processor.broadcaster.failures


@given(read_otherwise(), st.data())
def test_what_live_reading_left_out_and_replay_found_in_any_order_makes_no_difference(
    drawn: tuple[list[CacheEventBatch], list[CacheEventBatch]], data: st.DataObject
) -> None:
    history, delivery = drawn
    latest = {(batch.instance_id, batch.incarnation): batch.seq for batch in history}
    shown = [b for b in history if b.seq < latest[b.instance_id, b.incarnation]]
    left_out = data.draw(st.lists(st.sampled_from(shown), unique_by=id)) if shown else []
    again = data.draw(st.permutations(history))
    processor = Processor()
    for batch in delivery:
        if not any(batch is each for each in left_out):
            processor.offer(batch)
    if data.draw(st.booleans()):
        processor.die_and_return()
    found = [processor.read_again(batch) for batch in again]
    assert found.count(IngestResult.REPAIRED) == len(left_out)
    assert processor.placements(history) == in_order(history).placements(history)
    assert not processor.gate.streams(gap=True)
