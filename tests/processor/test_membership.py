from __future__ import annotations

import json
import threading

import pytest

from processor.batch import EventBatch
from processor.ingest.broadcaster import Broadcaster
from processor.ingest.gate import EventGate
from processor.ingest.outcomes import IngestResult
from processor.ingest.source import LogEnds, Mark, Position
from processor.membership import Membership
from processor.state.capacity import CapacityRegistry
from processor.state.registry import Instance
from producer.events import EventType, Tier
from tests.clock import Clock

TIMEOUT = 30.0


class Fleet:
    """A membership on a gate of its own, with a clock, a log and a readiness that the test commands."""

    def __init__(self, ends: Mark | None = None, *, ready: bool = True) -> None:
        self.clock = Clock()
        self.ends = ends
        self.ready = ready
        self.trouble: str | None = None
        self.capacities = CapacityRegistry()
        self.gate = EventGate(Broadcaster([self.capacities]))
        self.membership = Membership(
            self.gate,
            self.capacities,
            None if ends is None else self,
            timeout=TIMEOUT,
            interval=0.0,
            ready=lambda: self.ready,
            clock=self.clock,
        )

    def end_offsets(self) -> LogEnds:
        assert self.ends is not None
        return LogEnds(self.ends, exact=self.trouble is None)

    def join(self, instance_id: str = "a") -> bool:
        return self.membership.register(Instance(instance_id, "h", 1, 0.0))

    def beat(self, instance_id: str = "a") -> bool:
        return self.membership.registry.heard(instance_id)

    def emit(self, seq: int, offset: int | None = None, *, instance_id: str = "a") -> IngestResult:
        batch = EventBatch(instance_id, 1, seq, EventType.CONFIG, Tier.L1, "dram", capacity_revision=seq)
        return self.gate.offer(batch, None if offset is None else Position(0, offset))

    def members(self) -> list[str]:
        return [instance.instance_id for instance in self.membership.registry.instances()]


def test_a_departure_takes_the_entry_the_stream_and_the_declaration() -> None:
    fleet = Fleet()
    fleet.join()
    fleet.emit(1)
    fleet.membership.depart("a")
    assert fleet.members() == []
    assert fleet.gate.streams() == []
    assert fleet.capacities.get_all() == {}


def test_a_departure_of_nobody_is_no_error() -> None:
    Fleet().membership.depart("nobody")


@pytest.mark.parametrize("timed_out", [False, True])
def test_however_it_left_what_the_log_holds_of_a_server_before_that_no_longer_counts(timed_out: bool) -> None:
    fleet = Fleet({0: 10})
    fleet.join()
    fleet.emit(1, offset=0)
    if timed_out:
        fleet.membership.check()
        fleet.clock.now += TIMEOUT + 1
        assert fleet.membership.check() == ["a"]
    else:
        fleet.membership.depart("a")
    assert fleet.emit(2, offset=9) is IngestResult.STALE
    assert fleet.emit(3, offset=10) is IngestResult.ADMITTED


def test_a_server_that_registers_again_is_believed_again() -> None:
    fleet = Fleet({0: 10})
    fleet.membership.depart("a")
    assert fleet.emit(1, offset=3) is IngestResult.STALE
    assert not fleet.join()
    assert fleet.emit(1, offset=3) is IngestResult.ADMITTED


def test_only_who_is_silent_is_given_up_and_what_others_declared_stays() -> None:
    fleet = Fleet()
    for name in ("silent", "beating"):
        fleet.join(name)
        fleet.emit(1, instance_id=name)
    fleet.membership.check()
    fleet.clock.now += TIMEOUT
    assert fleet.beat("beating")
    fleet.clock.now += 1
    assert fleet.membership.check() == ["silent"]
    assert fleet.members() == ["beating"]
    assert list(fleet.capacities.get_all()) == ["beating"]
    assert fleet.membership.timeouts == 1


def test_an_emitter_that_never_registered_does_not_time_out() -> None:
    fleet = Fleet()
    fleet.emit(1)
    fleet.membership.check()
    fleet.clock.now += 10 * TIMEOUT
    assert fleet.membership.check() == []
    assert len(fleet.gate.streams()) == 1


def test_an_event_is_no_heartbeat() -> None:
    fleet = Fleet()
    fleet.join()
    fleet.membership.check()
    fleet.clock.now += TIMEOUT + 1
    fleet.emit(1)
    assert fleet.membership.check() == ["a"]


def test_the_time_begins_when_the_service_is_ready_first() -> None:
    fleet = Fleet(ready=False)
    fleet.join()
    fleet.clock.now += 10 * TIMEOUT
    assert fleet.membership.check() == []
    fleet.ready = True
    assert fleet.membership.check() == []
    fleet.clock.now += TIMEOUT
    assert fleet.membership.check() == []
    fleet.ready = False
    fleet.clock.now += 1
    assert fleet.membership.check() == ["a"]


def test_who_was_heard_while_the_broker_told_the_ends_stays() -> None:
    fleet = Fleet({0: 10})

    class Slow:
        def end_offsets(self) -> LogEnds:
            assert fleet.beat()
            return LogEnds({0: 10}, exact=True)

    fleet.membership = Membership(
        fleet.gate,
        fleet.capacities,
        Slow(),
        timeout=TIMEOUT,
        interval=0.0,
        ready=lambda: True,
        clock=fleet.clock,
    )
    fleet.join()
    fleet.membership.check()
    fleet.clock.now += TIMEOUT + 1
    assert fleet.membership.check() == []
    assert fleet.members() == ["a"]
    assert fleet.emit(1, offset=3) is IngestResult.ADMITTED


def test_a_server_that_died_while_the_processor_was_down_times_out_after_its_restart() -> None:
    before = Fleet({0: 10})
    for name in ("died", "lives"):
        before.join(name)
        before.emit(1, offset=1, instance_id=name)
    with before.gate.quiesced():
        kept = json.loads(json.dumps([before.gate.capture(), before.membership.capture()]))
    after = Fleet({0: 20}, ready=False)
    after.gate.restore(kept[0])
    after.membership.restore(kept[1])
    after.clock.now += 100
    after.ready = True
    assert after.membership.check() == []
    assert after.beat("lives")
    after.clock.now += TIMEOUT
    assert after.beat("lives")
    after.clock.now += 1
    assert after.membership.check() == ["died"]
    assert [stream.instance_id for stream in after.gate.streams()] == ["lives"]
    assert after.emit(2, offset=19, instance_id="died") is IngestResult.STALE


def test_no_capture_sees_a_member_whose_mark_was_not_lifted_yet() -> None:
    fleet = Fleet({0: 10})
    fleet.membership.depart("a")
    joining = threading.Thread(target=fleet.join)
    with fleet.gate.quiesced():
        joining.start()
        joining.join(0.05)
        assert joining.is_alive()
        assert (fleet.members(), list(fleet.gate.capture()["marks"])) == ([], ["a"])
    joining.join()
    assert (fleet.members(), list(fleet.gate.capture()["marks"])) == (["a"], [])


def test_a_mark_taken_while_the_broker_is_away_is_completed_when_it_is_back() -> None:
    fleet = Fleet({0: 10})
    fleet.trouble = "no broker"
    fleet.join()
    fleet.membership.depart("a")
    fleet.membership.complete_marks()
    fleet.trouble, fleet.ends = None, {0: 20}
    # Unknown when it departed, and read before anybody could say so.
    assert fleet.emit(1, offset=15) is IngestResult.ADMITTED
    fleet.membership.complete_marks()
    assert fleet.gate.streams() == []
    assert fleet.emit(2, offset=19) is IngestResult.STALE
    assert fleet.emit(3, offset=20) is IngestResult.ADMITTED
    fleet.membership.complete_marks()
    assert len(fleet.gate.streams()) == 1


def test_who_registers_again_before_its_mark_is_complete_keeps_none() -> None:
    fleet = Fleet({0: 10})
    fleet.trouble = "no broker"
    fleet.membership.depart("a")
    fleet.join()
    fleet.trouble = None
    fleet.membership.complete_marks()
    assert fleet.members() == ["a"]
    assert fleet.emit(1, offset=3) is IngestResult.ADMITTED


def test_an_incomplete_mark_is_still_to_be_completed_after_a_restart() -> None:
    before = Fleet({0: 10})
    before.trouble = "no broker"
    before.membership.depart("a")
    kept = json.loads(json.dumps([before.gate.capture(), before.membership.capture()]))
    after = Fleet({0: 20})
    after.gate.restore(kept[0])
    after.membership.restore(kept[1])
    after.membership.complete_marks()
    assert after.emit(1, offset=19) is IngestResult.STALE
