"""Incarnations that lie on several partitions: in whatever order these are read, the state is the same.

Each partition is read in its order, and any may lag behind the others by as much as it likes. What an older
incarnation said in memory that outlived it counts, also when a newer one was heard first.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Sequence
from dataclasses import dataclass, replace
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from processor.ingest.broadcaster import Broadcaster
from processor.ingest.gate import EventGate
from processor.ingest.outcomes import IngestResult
from processor.ingest.source import Position
from processor.state.directory import KeyDirectory
from producer.events import CacheEventBatch, CacheEventEntry, EventType, ObjectKey, Tier
from tests.model.convert import event_batch
from tests.model.directory import Directory
from tests.model.fleets import CHUNK_SIZE, RANKS, Telling, histories
from tests.model.gate import Gate

PARTITIONS = (0, 1, 2)


@dataclass
class Written:
    """A batch where the log holds it, and where every partition ended when it was written."""

    batch: CacheEventBatch
    position: Position
    ends: dict[int, int]


class Reading:
    """A log being read live, partition by partition."""

    def __init__(self) -> None:
        self.read = dict.fromkeys(PARTITIONS, 0)
        self.ends = dict.fromkeys(PARTITIONS, 0)

    def positions(self) -> dict[int, int]:
        return dict(self.read)

    def behind(self, partition: int) -> bool:
        return any(self.read[p] < end for p, end in self.ends.items() if p != partition)

    def replay_status(self, instance_id: str) -> None:
        return None


class ModelProcessor:
    """The model's gate before the model's directory."""

    def __init__(self, log: Reading) -> None:
        self.directory = Directory(CHUNK_SIZE)
        self.gate = Gate(self.directory)
        self.gate.log = log

    def offer(self, written: Written) -> str:
        return self.gate.offer(written.batch, written.position)

    def read_again(self, written: Written) -> None:
        batch = written.batch
        self.gate.read_again(batch, written.position, event_time=batch.ts, generation=0, now=0.0)

    def note_ends(self, ends: dict[int, int]) -> None:
        self.gate.note_ends(ends, 0.0)

    def read_on(self, positions: dict[int, int]) -> None:
        self.gate.read_on(positions)

    def die_and_return(self) -> None:
        self.gate.die_and_return(0.0)

    def replay(self, again: Sequence[Written]) -> None:
        for written in again:
            self.read_again(written)
        for instance_id in [name for name, stream in self.gate.streams.items() if stream.reapply]:
            self.gate.finish(instance_id)

    def troubled(self) -> list[str]:
        streams = self.gate.streams.items()
        return [name for name, s in streams if s.lacking or s.conflict or s.waits or s.unread]

    def placements(self, keys: list[ObjectKey]) -> dict[ObjectKey, object]:
        live = self.directory.live_keys()
        return {key: sorted(map(repr, self.directory.placements(key))) for key in keys if key in live}

    def tokens(self, keys: list[ObjectKey]) -> dict[ObjectKey, list[int]]:
        live = self.directory.live_keys()
        return {key: list(ids) for key in keys if key in live and (ids := self.directory.token_ids(key))}


class EngineProcessor:
    """The engine's gate before the engine's directory."""

    def __init__(self, log: Reading) -> None:
        self.log = log
        self.directory = KeyDirectory(chunk_size=CHUNK_SIZE, max_chunks=64, enable_blend=True)
        self.gate = self.new_gate()

    def new_gate(self) -> EventGate:
        gate = EventGate(Broadcaster([self.directory]), clock=lambda: 0.0)
        gate.follow(self.log)
        return gate

    def offer(self, written: Written) -> str:
        return self.gate.offer(event_batch(written.batch), written.position)

    def note_ends(self, ends: dict[int, int]) -> None:
        self.gate.repairs.note_ends(ends, 0.0)

    def read_on(self, positions: dict[int, int]) -> None:
        self.gate.repairs.read_on(positions)

    def die_and_return(self) -> None:
        kept = json.loads(json.dumps(self.gate.capture()))
        self.gate = self.new_gate()
        self.gate.restore(kept)

    def replay(self, again: Sequence[Written]) -> None:
        gaps = [gap for gap in self.gate.repairs.gaps() if gap.reapply is not None]
        for written in again:
            self.gate.repairs.offer(event_batch(written.batch), written.position)
        for gap in gaps:
            assert gap.reapply is not None
            self.gate.repairs.finish(gap.instance_id, gap.reapply)

    def troubled(self) -> list[str]:
        shown = [s.instance_id for s in self.gate.streams() if s.gap_detected or s.conflict or s.lost]
        return shown + [gap.instance_id for gap in self.gate.repairs.gaps()]

    def placements(self, keys: list[ObjectKey]) -> dict[ObjectKey, object]:
        found = {info.key: sorted(map(repr, info.placements)) for info in self.directory.lookup(keys)}
        return {key: placements for key, placements in found.items() if placements}

    def tokens(self, keys: list[ObjectKey]) -> dict[ObjectKey, list[int]]:
        found = {info.key: info.token_ids.tolist() for info in self.directory.lookup(keys)}
        return {key: ids for key, ids in found.items() if ids}


Processor = ModelProcessor | EngineProcessor


@st.composite
def partitioned(draw: st.DrawFn) -> list[Written]:
    """A history as a log: an incarnation mostly lies on one partition, and emitters restart often."""
    history = draw(histories(Telling(always=False)))
    restarts: dict[str, tuple[int, int]] = {}
    homes: dict[tuple[str, int], int] = {}
    ends, log = dict.fromkeys(PARTITIONS, 0), []
    for batch in history:
        incarnation, seq = restarts.get(batch.instance_id, (1, 0))
        if seq and draw(st.integers(0, 2)) == 0:
            incarnation, seq = incarnation + draw(st.integers(1, 3)), 0
        restarts[batch.instance_id] = incarnation, seq + 1
        home = homes.setdefault((batch.instance_id, incarnation), draw(st.sampled_from(PARTITIONS)))
        partition = draw(st.sampled_from((home,) * 6 + PARTITIONS))
        said = replace(batch, incarnation=incarnation, seq=seq + 1)
        log.append(Written(said, Position(partition, ends[partition]), dict(ends)))
        ends[partition] += 1
    return log


def read(processor: Processor, reading: Reading, log: Sequence[Written], turns: Random) -> None:
    """Read every partition in its order, taking turns; then what replay does is done."""
    left = {p: [written for written in log if written.position.partition == p] for p in PARTITIONS}
    done: list[Written] = []
    while any(left.values()):
        partition = turns.choice([p for p, rest in left.items() if rest])
        for written in [left[partition].pop(0) for _ in range(turns.randint(1, len(left[partition])))]:
            # As late as can be heard of: what was written before this batch, and nothing after it.
            reading.ends = {p: max(end, reading.ends[p]) for p, end in written.ends.items()}
            processor.offer(written)
            reading.read[partition] += 1
            if turns.random() < 0.3:
                processor.note_ends(dict(reading.ends))
            if turns.random() < 0.3:
                processor.read_on(reading.positions())
            if turns.random() < 0.1:
                processor.die_and_return()
            done.append(written)
            if turns.random() < 0.1:
                processor.replay(turns.sample(done, len(done)))
    processor.note_ends(dict(reading.ends))
    processor.read_on(reading.positions())
    processor.replay(turns.sample(log, len(log)))


@pytest.fixture(autouse=True)
def _gaps_are_no_news(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.CRITICAL, "processor.ingest.gate")


@pytest.mark.parametrize("kind", [ModelProcessor, EngineProcessor])
@given(log=partitioned(), seed=st.integers(0, 2**32 - 1))
def test_partitions_read_at_different_speeds_end_in_the_placements_of_the_history(
    kind: type[Processor], log: list[Written], seed: int
) -> None:
    keys = list({entry.key: None for written in log for entry in written.batch.entries})
    reading = Reading()
    expected, processor = kind(Reading()), kind(reading)
    for written in log:
        assert expected.offer(written) == IngestResult.ADMITTED
    read(processor, reading, log, Random(seed))
    assert processor.troubled() == []
    assert processor.placements(keys) == expected.placements(keys)
    assert expected.tokens(keys).items() <= processor.tokens(keys).items()


KEY = ObjectKey(b"c", "m", RANKS[0])


def said(incarnation: int, seq: int, kind: EventType, partition: int, offset: int) -> Written:
    """One batch of L2 of the emitter `a`."""
    entries = [CacheEventEntry(KEY)]
    batch = CacheEventBatch("a", incarnation, seq, kind, Tier.L2, "x", entries, ts=1000.0 * incarnation + seq)
    return Written(batch, Position(partition, offset), {})


@pytest.mark.parametrize("kind", [ModelProcessor, EngineProcessor])
def test_what_an_older_incarnation_stored_does_not_undo_a_delete_that_was_read_before(
    kind: type[Processor],
) -> None:
    reading = Reading()
    processor = kind(reading)
    reading.ends = {0: 1, 1: 0, 2: 0}
    stored = said(1, 1, EventType.STORE, 0, 0)
    deleted = [said(2, 1, EventType.ACCESS, 1, 0), said(2, 2, EventType.DELETE, 1, 1)]
    for written in [*deleted, stored]:
        processor.offer(written)
    processor.note_ends({0: 1, 1: 2, 2: 0})
    processor.read_on({0: 1, 1: 2, 2: 0})
    processor.replay([stored, *deleted])
    assert processor.placements([KEY]) == {}
    assert processor.troubled() == []
