"""What is known of one log: it rides in the checkpoint whole, and goes whole with the log."""

from __future__ import annotations

import json

import pytest

from processor.ingest.kafka_topic import LogId
from processor.ingest.log_memory import LogMemory
from processor.ingest.source import Position


@pytest.fixture
def memory() -> LogMemory:
    """Of a log of two partitions, one of them read from its start."""
    known = LogMemory({1: 50})
    known.log_id = LogId("cluster", "topic")
    known.progress.begin(0, 7, 20, now=0.0)
    known.progress.begin(1, 0, 60, now=0.0)
    known.offsets.note("server-1", 1, 5, Position(0, 9))
    known.skipped.add(b"server-2", 1)
    return known


def test_a_restored_memory_knows_the_same(memory: LogMemory) -> None:
    again = LogMemory()
    again.restore(json.loads(json.dumps(memory.freeze()())))
    assert again.freeze()() == memory.freeze()()
    assert again.log_id == LogId("cluster", "topic")
    assert again.progress.positions() == {0: 7, 1: 50}
    knowledge = again.knowledge()
    assert knowledge.began == {0: 7}
    assert knowledge.before("server-1", 1, 6, 0) == 9
    assert knowledge.hides("server-2", 1)


def test_positions_are_of_the_moment_of_the_freeze(memory: LogMemory) -> None:
    gather = memory.freeze()
    memory.progress.partitions[0].position = 12
    memory.progress.jump(1, 40, 60, now=0.0)
    captured = gather()
    assert (captured["positions"], captured["began"]) == ({"0": 7, "1": 50}, {"0": 7})


def test_a_capture_under_way_stays_one_of_the_log_it_began_with(memory: LogMemory) -> None:
    whole, gather = memory.freeze()(), memory.freeze()
    memory.begin_anew(LogId("cluster", "another"))
    memory.progress.begin(0, 0, 4, now=0.0)
    memory.offsets.note("server-3", 1, 1, Position(0, 0))
    memory.skipped.add(b"server-3", 0)
    assert gather() == whole


def test_a_capture_of_the_first_versions_is_restored(memory: LogMemory) -> None:
    data = memory.freeze()()
    del data["skipped"]
    memory.restore(data)
    assert not memory.knowledge().hides("server-2", 1)
    assert memory.knowledge().first("server-1", 0) == (1, 5)


def test_what_is_no_capture_is_refused_and_moves_nothing(memory: LogMemory) -> None:
    before = memory.freeze()()
    for name in ("cluster_id", "positions", "began", "offsets"):
        with pytest.raises((KeyError, TypeError, ValueError)):
            memory.restore({key: value for key, value in before.items() if key != name})
        assert memory.progress.positions() == {0: 7, 1: 50}


def test_of_another_log_nothing_is_known(memory: LogMemory) -> None:
    memory.begin_anew(LogId("cluster", "another"))
    knowledge = memory.knowledge()
    assert memory.log_id == LogId("cluster", "another")
    assert (memory.progress.positions(), knowledge.began) == ({}, {})
    assert knowledge.first("server-1", 0) is None
    assert not knowledge.hides("server-2", 1)
