"""Where a service stands, from its making to its end.

    new -> loading kernels -> restoring -> connecting -> running -> ended

One thread starts the service and enters the phases in this order. Any thread may end it, from every one of
them: nothing follows on that, so a start under way notices at its next step. What a phase is called is what
an operator reads of it.
"""

from __future__ import annotations

import threading
from enum import Enum


class Phase(Enum):
    """A phase; its value tells an operator why routes do not answer in it."""

    NEW = "starting"
    LOADING = "starting: loading kernels"
    RESTORING = "starting: restoring a checkpoint"
    CONNECTING = "starting: beginning to read events"
    RUNNING = "running"
    ENDED = "ended"


_FOLLOWS = {
    Phase.NEW: Phase.LOADING,
    Phase.LOADING: Phase.RESTORING,
    Phase.RESTORING: Phase.CONNECTING,
    Phase.CONNECTING: Phase.RUNNING,
}
"""What a start goes through; `ENDED` may follow on each of them, and nothing on it."""
STARTING = frozenset(_FOLLOWS)
"""Phases in which the state is being made."""


class StartAbandoned(RuntimeError):
    """The service was told to end while it started."""


class Lifecycle:
    """The phase of one service. May be asked from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._phase = Phase.NEW

    @property
    def phase(self) -> Phase:
        """Where the service stands now."""
        return self._phase

    def enter(self, phase: Phase) -> None:
        """Go on to the next phase of a start.

        Raises:
            StartAbandoned: the service was told to end.
        """
        with self._lock:
            if self._phase is Phase.ENDED:
                raise StartAbandoned("the service was told to end while it started")
            assert _FOLLOWS[self._phase] is phase, f"{phase} does not follow on {self._phase}"
            self._phase = phase

    def end(self) -> Phase:
        """Nothing is begun any more; return the phase that was the last one."""
        with self._lock:
            last, self._phase = self._phase, Phase.ENDED
        return last
