"""Where records were skipped: whose they may have been, also after a restart."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from processor.ingest import skipped
from processor.ingest.ranges import LossReason
from processor.ingest.skipped import SkippedRecords
from tests.brokers import RunningBroker
from tests.processor.ingest.reading import Reader, records, send
from tests.waiting import wait_for


@pytest.fixture
def places() -> SkippedRecords:
    return SkippedRecords()


def test_a_record_may_have_been_of_the_emitter_its_key_names_on_its_partition(places: SkippedRecords) -> None:
    places.add("ü".encode(), 2)
    assert places.may_hide("ü", 2)
    assert not places.may_hide("ü", 1)
    assert not places.may_hide("server-2", 2)


def test_a_record_without_a_key_may_have_been_anyones(places: SkippedRecords) -> None:
    places.add(None, 2)
    assert places.may_hide("server-2", 2)
    assert not places.may_hide("server-2", 1)


def test_past_so_many_places_nothing_is_ruled_out(
    places: SkippedRecords, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(skipped, "MAX_PLACES", 2)
    places.add(b"a", 0)
    assert not places.may_hide("c", 5)
    places.add(b"b", 0)
    places.add(b"d", 0)
    assert places.may_hide("c", 5)
    assert len(places.capture()) == 2


def test_they_ride_in_a_checkpoint_whatever_their_keys(places: SkippedRecords) -> None:
    places.add(b"\xff\x00", 0)
    places.add(b"a", 1)
    places.add(None, 2)
    again = SkippedRecords()
    again.restore(json.loads(json.dumps(places.capture())))
    assert sorted(again.capture(), key=repr) == sorted(places.capture(), key=repr)
    assert again.may_hide("a", 1)
    assert again.may_hide("b", 2)


@pytest.mark.parametrize("data", [5, [5], [["!", 0]], [["AA=="]], [[None, "x"]]])
def test_what_is_no_capture_is_refused_and_changes_nothing(places: SkippedRecords, data: Any) -> None:
    places.add(b"a", 1)
    with pytest.raises((TypeError, ValueError)):
        places.restore(data)
    assert places.may_hide("a", 1)


def test_after_a_restart_a_batch_that_a_skipped_record_may_have_held_is_still_undecodable(
    kafka_broker: RunningBroker, topic: str, read: Callable[..., Reader]
) -> None:
    send(kafka_broker, topic, [b"{"])
    send(kafka_broker, topic, records([1], "server-2"), b"server-2")
    first = read(kafka_broker.bootstrap, topic)
    first.wait_for_end(2)
    first.source.stop()
    send(kafka_broker, topic, records([2]))
    second = read(kafka_broker.bootstrap, topic, restored=first)
    wait_for(lambda: second.gate.stream("server-1") and not second.stream().missing, 20, "the verdict")
    assert [(held.first, held.reason) for held in second.stream().lost] == [(1, LossReason.UNDECODABLE)]
