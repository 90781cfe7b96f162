"""What is owed to consumers: kept within bounds, given out in order, and forgotten with its instance."""

from __future__ import annotations

import pytest

from processor.ingest import failures
from processor.ingest.failures import MAX_REOFFERS, Failures
from tests.processor.ingest.recorder import Recorder, batch

DIRECTORY, CAPACITY = Recorder("directory"), Recorder("capacity")


def test_a_batch_is_owed_to_those_that_did_not_take_it_until_it_is_taken() -> None:
    owed = Failures()
    assert owed.hold(batch(5), [CAPACITY], None)
    assert [each.seq for each in owed.due()] == [5]
    found = owed.take(batch(5))
    assert found is not None
    assert (list(found.consumers), found.reoffers) == ([CAPACITY], 0)
    assert owed.take(batch(5)) is None
    assert (len(owed), owed.due()) == (0, [])


def test_batches_come_up_again_in_the_order_in_which_they_failed() -> None:
    owed = Failures()
    for seq in (9, 2, 5):
        owed.hold(batch(seq), [CAPACITY], None)
    assert [each.seq for each in owed.due()] == [9, 2, 5]


@pytest.mark.parametrize("other", [batch(6), batch(5, incarnation=2), batch(5, instance_id="server-2")])
def test_another_batch_is_not_taken_for_it(other: object) -> None:
    owed = Failures()
    owed.hold(batch(5), [CAPACITY], None)
    assert owed.take(other) is None  # type: ignore[arg-type]


def test_a_batch_that_fails_again_and_again_is_given_up_but_not_who_lacks_it() -> None:
    owed = Failures()
    before = None
    kept = []
    for _ in range(MAX_REOFFERS + 1):
        kept.append(owed.hold(batch(5), [CAPACITY], before))
        assert len(owed.due()) == kept[-1]
        before = owed.take(batch(5))
    assert kept == [True] * MAX_REOFFERS + [False]
    assert before is not None and before.batch is None
    assert list(before.consumers) == [CAPACITY]


def test_only_so_many_batches_are_held_and_room_that_is_left_is_used(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(failures, "MAX_BATCHES", 2)
    owed = Failures()
    assert [owed.hold(batch(seq), [CAPACITY], None) for seq in (1, 2, 3)] == [True, True, False]
    assert len(owed) == 3, "that the third is lacking is still known"
    assert owed.take(batch(3)) is not None
    assert not owed.hold(batch(4), [CAPACITY], None), "a batch that was not held leaves no room"
    assert owed.take(batch(1)) is not None
    assert owed.hold(batch(5), [CAPACITY], None)


def test_of_only_so_many_batches_is_it_known_who_lacks_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(failures, "MAX_KNOWN", 2)
    owed = Failures()
    assert [owed.hold(batch(seq), [CAPACITY], None) for seq in (1, 2, 3)] == [True, True, False]
    assert owed.take(batch(3)) is None
    assert [each.seq for each in owed.due()] == [1, 2]


def test_an_instance_is_forgotten_with_all_it_is_owed_and_its_room_is_free(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(failures, "MAX_BATCHES", 2)
    owed = Failures()
    for name in ("server-1", "server-2"):
        owed.hold(batch(1, instance_id=name), [DIRECTORY], None)
    owed.forget("server-1")
    assert [each.instance_id for each in owed.due()] == ["server-2"]
    assert owed.hold(batch(2, instance_id="server-2"), [DIRECTORY], None)
