"""A thread that does something again and again, by the clock, until it is stopped."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

logger = logging.getLogger(__name__)


class Rounds:
    """What is done in rounds, from `start` to `stop`.

    Args:
        name: of the thread, and in the log.
        interval: seconds from the end of one round to the next, and to the first; 0 for none at all.
        go: a round. One that fails is logged, and does not end the later ones.
    """

    def __init__(self, name: str, interval: float, go: Callable[[], object]) -> None:
        self._name = name
        self._interval = interval
        self._go = go
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        """Begin; the first round comes an interval later."""
        if self._interval > 0:
            self._thread.start()

    def stop(self) -> None:
        """End once the round under way is through. May be called twice, and without a start."""
        self._ending.set()
        if self._thread.is_alive():
            self._thread.join()

    def _run(self) -> None:
        while not self._ending.wait(self._interval):
            try:
                self._go()
            except Exception:
                logger.exception("a round of %s failed", self._name)
