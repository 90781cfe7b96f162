"""Waiting for a condition with a deadline, in place of sleeping and hoping."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")

POLL_INTERVAL = 0.01  # seconds


def wait_for(
    predicate: Callable[[], T], timeout: float = 10.0, what: str = "", *, interval: float = POLL_INTERVAL
) -> T:
    """The first true value of `predicate`, asked until then; AssertionError once `timeout` seconds are over.

    `what` names the condition in that error; without it, the last value of `predicate` stands there. An
    `interval` of 0 is for conditions that soon pass again.
    """
    deadline = time.monotonic() + timeout
    while True:
        value = predicate()
        if value:
            return value
        if time.monotonic() > deadline:
            raise AssertionError(f"not within {timeout:g} s: {what or f'last value {value!r}'}")
        time.sleep(interval)
