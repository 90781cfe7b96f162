"""How often the same trouble is told of: at most once an interval, by a clock that nobody sets.

A stream that is broken is broken thousands of times a second, and the first log line says as much as the
thousandth. What happened is counted elsewhere; this only spares the log.
"""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Callable, Hashable
from typing import Final

LOG_INTERVAL: Final = 60.0
"""Seconds between two log lines on the same trouble."""
MAX_KEYS: Final = 4_096
"""Troubles remembered; with more, all are forgotten, and may be told of again."""

_CLIENT_FORMAT: Final = "%s [%s] %s"
"""How confluent-kafka hands on a line: what it is about, the client's name, the text."""
_PASSING: Final = re.compile(r"\[[^]]*#(consumer|producer)-\d+\]|\(after .*$")
"""What differs between two lines on one trouble: which of our clients, in turn, and for how long."""


class Throttle:
    """Says when something is due again. One thread at a time; a race would cost a log line too many.

    Args:
        interval: seconds.
        clock: monotonic seconds.
    """

    def __init__(self, interval: float = LOG_INTERVAL, clock: Callable[[], float] = time.monotonic) -> None:
        self._interval = interval
        self._clock = clock
        self._last: dict[Hashable, float] = {}

    def due(self, key: Hashable = None) -> bool:
        """Whether `key` was not due within the interval; if so, it begins anew."""
        now = self._clock()
        last = self._last.get(key)
        if last is not None and now - last < self._interval:
            return False
        if len(self._last) >= MAX_KEYS:
            self._last.clear()
        self._last[key] = now
        return True


class ClientThrottle(logging.Filter):
    """Lets each trouble of librdkafka's through once an interval; for the logger that is given to a client.

    A client without a broker tries to connect twenty times a second, and says so each time: since it begins
    anew with its bootstrap servers, its own back-off and its own restraint in logging never come to bear.
    """

    def __init__(self, throttle: Throttle | None = None) -> None:
        super().__init__()
        self._throttle = throttle or Throttle()

    def filter(self, record: logging.LogRecord) -> bool:
        """Whether the record is not a repetition."""
        if record.msg != _CLIENT_FORMAT:
            return True
        return self._throttle.due(_PASSING.sub("", record.getMessage()))
