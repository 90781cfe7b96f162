from __future__ import annotations

from producer import throttle
from producer.throttle import Throttle


class Clock:
    now = 5.0

    def __call__(self) -> float:
        return self.now


def test_what_was_due_is_due_again_after_the_interval_and_not_before() -> None:
    clock = Clock()
    once_a_minute = Throttle(60.0, clock)
    assert once_a_minute.due("disk")
    assert not once_a_minute.due("disk")
    clock.now += 59.0
    assert not once_a_minute.due("disk"), "asking in between puts nothing off"
    clock.now += 1.0
    assert once_a_minute.due("disk")
    assert not once_a_minute.due("disk")


def test_one_trouble_does_not_hide_another() -> None:
    once_a_minute = Throttle(60.0, Clock())
    assert once_a_minute.due("disk")
    assert once_a_minute.due("sink")
    assert once_a_minute.due()


def test_what_is_remembered_is_bounded() -> None:
    once_a_minute = Throttle(60.0, Clock())
    for key in range(throttle.MAX_KEYS):
        assert once_a_minute.due(key)
    assert not once_a_minute.due(0)
    assert once_a_minute.due("one more")
    assert once_a_minute.due(0)
