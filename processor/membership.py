"""Who belongs to the fleet: servers register, show that they live, and depart or are given up.

A departure does the same whoever finds it out, the server itself or the health check: the server is struck
off, its memory is fenced, its stream and what it declared are forgotten. With Kafka the departure overtakes
records that are still in the log, so it leaves a mark: the end of every partition at that moment. What the
log holds of the server before it no longer counts, until the server registers again. While the broker is
away nobody can tell that end: the mark is then made of what was heard of it last, and completed once the
broker is back.

Every change is made with the gate held, so that no batch and no checkpoint falls between a server's entry
and its mark. Heartbeats change nothing there and do not wait for it.

Only who registered can time out: an emitter that never did sends no heartbeats to miss. The time begins
when the service is ready first, since until then nobody could be sure to be heard.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from typing import Any, Protocol

from processor.ingest.gate import EventGate
from processor.ingest.source import LogEnds, Mark
from processor.rounds import Rounds
from processor.state.capacity import CapacityRegistry
from processor.state.registry import Instance, Registry

logger = logging.getLogger(__name__)


class DepartureLog(Protocol):
    """A source whose records a departure can overtake."""

    def end_offsets(self) -> LogEnds:
        """The end of every partition at this moment, or as last heard of if a broker does not answer."""


class Membership:
    """The servers of the fleet; all methods may be called from any thread.

    Args:
        log: where the events come from, None if they do not come from a log.
        timeout: seconds without a heartbeat after which a server is given up.
        interval: seconds from one health check to the next; 0 for none.
        ready: whether the service is; asked until it is for the first time.
        clock: monotonic seconds.

    Attributes:
        registry: who is registered.
        timeouts: how many servers were given up.
    """

    def __init__(
        self,
        gate: EventGate,
        capacities: CapacityRegistry,
        log: DepartureLog | None,
        *,
        timeout: float,
        interval: float,
        ready: Callable[[], bool],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.registry = Registry(clock)
        self.timeouts = 0
        self._gate = gate
        self._capacities = capacities
        self._log = log
        self._timeout = timeout
        self._ready = ready
        self._clock = clock
        self._unmarked: set[str] = set()
        self._began: float | None = None
        self._checks = Rounds("health checks", interval, self.check)

    def start(self) -> None:
        """Begin with the health checks."""
        self._checks.start()

    def stop(self) -> None:
        """End them. May be called twice, and without a start."""
        self._checks.stop()

    def register(self, instance: Instance) -> bool:
        """A server joins, or says again that it is there; return whether it was registered already."""
        with self._gate.quiesced():
            again = self.registry.register(instance)
            self._gate.register_instance(instance.instance_id)
            self._unmarked.discard(instance.instance_id)
        logger.info("instance %s registered at %s:%d", instance.instance_id, instance.ip, instance.http_port)
        return again

    def depart(self, instance_id: str) -> None:
        """A server left; nothing happens if it was never heard of."""
        mark, exact = self._mark()
        with self._gate.quiesced():
            known = self._drop(instance_id, mark, exact)
        if known:
            logger.info("instance %s departed", instance_id)

    def check(self) -> list[str]:
        """Give up the servers that were not heard from for too long; return their ids."""
        if self._began is None:
            if not self._ready():
                return []
            self._began = self._clock()
        if not self.registry.silent(self._timeout, self._began):
            return []
        mark, exact = self._mark()
        with self._gate.quiesced():
            # Asked anew: the broker took its time to tell the mark, and who was heard meanwhile stays.
            silent = self.registry.silent(self._timeout, self._began)
            for instance_id in silent:
                self._drop(instance_id, mark, exact)
        self.timeouts += len(silent)
        for instance_id in silent:
            logger.warning("instance %s was not heard from for %g s: given up", instance_id, self._timeout)
        return silent

    def complete_marks(self) -> None:
        """Mark anew who departed while nobody could tell where the log ends, now that somebody can."""
        if not self._unmarked:
            return
        mark, exact = self._mark()
        if not exact:
            return
        with self._gate.quiesced():
            # What the log held beyond the first mark may have been read meanwhile, so it goes again.
            for instance_id in self._unmarked:
                self._drop(instance_id, mark, exact)
            self._unmarked.clear()

    def capture(self) -> dict[str, Any]:
        """Who belongs to the fleet, as plain data that JSON holds.

        To be called while the gate is held for its own capture, so that the two agree.
        """
        return {"instances": self.registry.capture(), "unmarked": sorted(self._unmarked)}

    def restore(self, data: Mapping[str, Any]) -> None:
        """Go on from what `capture` gave; to be called before `start`.

        Raises:
            KeyError, TypeError: it is no such capture.
        """
        self.registry.restore(data["instances"])
        self._unmarked = set(data["unmarked"])

    def _drop(self, instance_id: str, mark: Mark | None, exact: bool) -> bool:
        if not exact:
            self._unmarked.add(instance_id)
        registered = self.registry.deregister(instance_id)
        self._capacities.forget(instance_id)
        return self._gate.drop_instance(instance_id, mark) or registered

    def _mark(self) -> tuple[Mark | None, bool]:
        """The ends of the log, and whether they are those of this moment."""
        return (None, True) if self._log is None else self._log.end_offsets()
