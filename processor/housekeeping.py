"""What a service does by the clock: the gate and the departures go on, and what wants attention is logged."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Final

from processor.ingest.gate import EventGate
from processor.ingest.source import EventSource
from processor.membership import Membership
from processor.rounds import Rounds
from producer.throttle import Throttle

logger = logging.getLogger(__name__)

INTERVAL: Final = 1.0
"""Seconds from one round to the next."""


class Housekeeper(Rounds):
    """Keeps house from `start` to `stop`.

    Args:
        not_ready: why the service is not ready now. That it is, and is not any more, is logged.
        warnings: what wants attention now; a warning is logged when it is first there, and when it is back.
        clock: seconds since the epoch.
        clock_skew: seconds by which the clocks of emitters may lie apart.
    """

    def __init__(
        self,
        gate: EventGate,
        membership: Membership,
        sources: Sequence[EventSource],
        not_ready: Callable[[], list[str]],
        warnings: Callable[[], list[str]],
        *,
        clock: Callable[[], float],
        clock_skew: float,
    ) -> None:
        self._gate = gate
        self._membership = membership
        self._sources = sources
        self._not_ready = not_ready
        self._was_ready = False
        self._unready_pace = Throttle()
        self._warnings = warnings
        self._clock = clock
        self._clock_skew = clock_skew
        self._warned: list[str] = []
        super().__init__("housekeeping", INTERVAL, self._keep_house)

    def _keep_house(self) -> None:
        watermark = min((source.watermark() for source in self._sources), default=0.0)
        self._gate.tick(self._clock(), watermark, self._clock_skew)
        self._membership.complete_marks()
        self._tell_readiness(self._not_ready())
        warnings = self._warnings()
        for warning in warnings:
            if warning not in self._warned:
                logger.warning(warning)
        self._warned = warnings

    def _tell_readiness(self, reasons: list[str]) -> None:
        """Log a change; one that goes to and fro within a minute was told of."""
        if self._was_ready == (not reasons) or (reasons and not self._unready_pace.due()):
            return
        self._was_ready = not reasons
        if reasons:
            logger.warning("not ready any more: %s", "; ".join(reasons))
        else:
            logger.info("ready: the answers have all that the streams have said")
