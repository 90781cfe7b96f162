"""Replay: finds in the log what a stream lacks, by itself when a gap shows, and when an operator asks.

A gap waits until every partition was read past the end that it had when the gap showed, since live reading
may still fill it: after a restart, or where a stream was split over partitions. Then its partitions are
scanned (`scanner`), once for all gaps on them, as `search` plans it; what turns up goes to the gate's
repairs, and what does not is lost for the reason that the search gives. Live reading never waits for any of
this.

    waiting --caught_up--> queued --started--> scanning --searched--> done
                           ^  |  ^                |   |
                           |  |  +----widened-----+   |
                           |  +--failed--+   +-failed-+
                           |             v   v
                           +----due---- backing_off

What an operator asks for is looked for where the stream was heard, and if that does not help everywhere.
`GONE` ends a replay in any state: the gap was filled live, its loss was accepted, or its emitter departed.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Protocol

from confluent_kafka import KafkaException

from processor.ingest.kafka_settings import reason_of
from processor.ingest.kafka_topic import TopicError
from processor.ingest.ranges import LossReason, SeqRange
from processor.ingest.repairs import Gap, Repairs
from processor.ingest.scanner import ScanCounters, Scanner
from processor.ingest.search import Hidden, Knowledge, Scan, Search, plan, searches_for, verdicts
from processor.ingest.source import Mark, ReplayTotals
from processor.ingest.stream import ReplayStatus
from producer.throttle import Throttle
from producer.transitions import next_state

logger = logging.getLogger(__name__)

LOOK_INTERVAL = 0.25
"""Seconds from one look at the gaps to the next."""
FIRST_BACKOFF = 1.0
"""Seconds from a scan that failed to the next attempt; doubled each time."""
MAX_BACKOFF = 30.0
"""The most that grows to."""


class ReplayState(StrEnum):
    """Where the replay of one stream is."""

    WAITING = "waiting"
    QUEUED = "queued"
    SCANNING = "scanning"
    BACKING_OFF = "backing_off"
    DONE = "done"


class ReplayEvent(StrEnum):
    """What happens to the replay of one stream."""

    CAUGHT_UP = "caught_up"
    STARTED = "started"
    SEARCHED = "searched"
    WIDENED = "widened"
    FAILED = "failed"
    DUE = "due"
    GONE = "gone"


TRANSITIONS: Mapping[tuple[ReplayState, ReplayEvent], ReplayState] = {
    (ReplayState.WAITING, ReplayEvent.CAUGHT_UP): ReplayState.QUEUED,
    (ReplayState.QUEUED, ReplayEvent.STARTED): ReplayState.SCANNING,
    (ReplayState.QUEUED, ReplayEvent.FAILED): ReplayState.BACKING_OFF,
    (ReplayState.SCANNING, ReplayEvent.SEARCHED): ReplayState.DONE,
    (ReplayState.SCANNING, ReplayEvent.WIDENED): ReplayState.QUEUED,
    (ReplayState.SCANNING, ReplayEvent.FAILED): ReplayState.BACKING_OFF,
    (ReplayState.BACKING_OFF, ReplayEvent.DUE): ReplayState.QUEUED,
    **{(state, ReplayEvent.GONE): ReplayState.DONE for state in ReplayState if state is not ReplayState.DONE},
}


class LiveReading(Protocol):
    """What replay asks of the source that reads the log."""

    def positions(self) -> dict[int, int]:
        """The next offset to read of every partition."""

    def ask_ends(self) -> dict[int, int]:
        """Where every partition of the topic ends; KafkaException or TopicError if that cannot be told."""

    def knowledge(self) -> Knowledge:
        """What is known of where batches stand."""


@dataclass(slots=True)
class Replay:
    """The replay of one stream.

    Attributes:
        by_hand: an operator asked for it, so nothing is waited for; what live reading may still fill is not
            given up all the same.
        everywhere: also partitions are searched that nothing is known to be on.
        searches: those not done yet.
        hidden: what the others could not see.
        ripe: the ranges that live reading could no longer fill when the searches were planned.
        attempts: how often it failed.
        due: when to try again, by the monotonic clock.
    """

    gap: Gap
    by_hand: bool = False
    everywhere: bool = False
    state: ReplayState = ReplayState.WAITING
    searches: list[Search] = field(default_factory=list)
    hidden: list[Hidden] = field(default_factory=list)
    ripe: tuple[SeqRange, ...] = ()
    attempts: int = 0
    due: float = 0.0

    def look_up(self, positions: Mark, known: Knowledge) -> tuple[list[Search], list[Hidden]]:
        """The searches that it needs, and what is hidden from any."""
        gap = self.gap
        self.ripe = tuple(held for held in gap.wanted if is_ripe(held, positions))
        again = [] if gap.reapply is None else [gap.reapply.as_range()]

        def read(held: SeqRange) -> Mark:
            return positions if self.by_hand or held.horizon is None else held.horizon.read

        return searches_for(
            gap.instance_id, [(held, read(held)) for held in [*gap.wanted, *again]], gap.heard, known,
            mark=gap.mark, thorough=self.by_hand or bool(again), everywhere=self.everywhere,
        )  # fmt: skip

    def happen(self, event: ReplayEvent) -> None:
        """Move on as the table says."""
        self.state = next_state(TRANSITIONS, self.state, event)


class Replayer:
    """Runs the replays of all streams on a thread of its own.

    Args:
        monotonic: seconds, for the pace of things.
        clock: seconds since the epoch, as the gate's.
    """

    def __init__(
        self,
        repairs: Repairs,
        live: LiveReading,
        *,
        clock: Callable[[], float] = time.time,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._repairs = repairs
        self._live = live
        self._clock = clock
        self._monotonic = monotonic
        self._scanner: Scanner | None = None
        self._replays: dict[str, Replay] = {}
        self._asked: deque[Replay] = deque()
        self._shown: dict[str, ReplayStatus] = {}
        self._ends: dict[int, int] = {}
        self._throttle = Throttle(clock=monotonic)
        self._wake = threading.Event()
        self._ending = False
        self._thread = threading.Thread(target=self._run, name="replay", daemon=True)

    @property
    def started(self) -> bool:
        """Whether gaps are being looked for."""
        return self._scanner is not None

    def start(self, scanner: Scanner) -> None:
        """Begin to look for gaps."""
        if not self._ending:
            self._scanner = scanner
            self._thread.start()

    def stop(self) -> None:
        """Give up what is under way; when this returns, nothing more is offered to the gate."""
        self._ending = True
        self._wake.set()
        if self._thread.is_alive():
            self._thread.join()

    def request(self, instance_id: str, incarnation: int | None, first: int | None, last: int | None) -> None:
        """Search for what an operator names, without waiting for anything.

        Raises:
            UnknownStream: nothing is known of the instance.
        """
        gap = self._repairs.request(instance_id, incarnation, first, last)
        if gap.wanted or gap.reapply:
            self._asked.append(Replay(gap, by_hand=True, state=ReplayState.QUEUED))
            self._wake.set()

    def status(self, instance_id: str) -> ReplayStatus | None:
        """What is done about a stream, None if nothing. Waits for nobody."""
        asked = any(asked.gap.instance_id == instance_id for asked in list(self._asked))
        return self._shown.get(instance_id) or (ReplayStatus(ReplayState.QUEUED.value) if asked else None)

    def totals(self) -> ReplayTotals:
        """How many replays are in each state but the last, and what they have read."""
        states = {state.value: 0 for state in ReplayState if state is not ReplayState.DONE}
        for shown in self._shown.copy().values():
            states[shown.state] += 1
        read = ScanCounters() if self._scanner is None else self._scanner.counters
        records = {"offered": read.offered, "skipped": read.skipped, "undecodable": read.undecodable}
        return ReplayTotals(states, read.scans, read.failures, records)

    def _run(self) -> None:
        assert self._scanner is not None
        looked = float("-inf")
        while not self._ending:
            now = self._monotonic()
            try:
                if now - looked >= LOOK_INTERVAL or self._asked:
                    looked = now
                    self._look(self._scanner)
                    self._show(self._scanner)
                for scan in self._scanner.step():
                    self._scanned(scan)
            except KafkaException as error:
                self._failed(self._scanner, reason_of(error))
            except TopicError as error:
                self._failed(self._scanner, str(error))
            except Exception as error:
                logger.exception("replay failed in a way that it should not")
                self._failed(self._scanner, repr(error))
            self._show(self._scanner)
            if not self._scanner.busy:
                self._wake.wait(LOOK_INTERVAL)
                self._wake.clear()
        self._scanner.close()

    def _look(self, scanner: Scanner) -> None:
        """See which gaps there are, and move every replay on that can move."""
        gaps = {gap.instance_id: gap for gap in self._repairs.gaps()}
        for instance_id, replay in list(self._replays.items()):
            if not self._repairs.lacks(replay.gap):
                replay.happen(ReplayEvent.GONE)
                scanner.drop(instance_id)
                del self._replays[instance_id]
                logger.info("%s: nothing is lacking any more of what was searched for", instance_id)
        self._take_requests()
        for instance_id, gap in gaps.items():
            known = self._replays.get(instance_id)
            if known is None:
                self._replays[instance_id] = Replay(gap)
            elif known.state is ReplayState.WAITING:
                known.gap = gap
        self._note_ends([gap for gap in gaps.values() if not gap.reapply])
        positions = self._live.positions()
        self._repairs.read_on(positions)
        for replay in self._replays.values():
            if replay.state is ReplayState.WAITING and (ripe := ripe_part(replay.gap, positions)):
                replay.gap = ripe
                replay.happen(ReplayEvent.CAUGHT_UP)
            elif replay.state is ReplayState.BACKING_OFF and self._monotonic() >= replay.due:
                replay.happen(ReplayEvent.DUE)
        self._begin(scanner, positions)

    def _take_requests(self) -> None:
        for _ in range(len(self._asked)):
            asked = self._asked.popleft()
            known = self._replays.get(asked.gap.instance_id)
            if known is not None and known.state is ReplayState.SCANNING:
                self._asked.append(asked)
            else:
                self._replays[asked.gap.instance_id] = asked

    def _note_ends(self, gaps: list[Gap]) -> None:
        untold = any(held.horizon and held.horizon.ends is None for gap in gaps for held in gap.wanted)
        if untold or self._repairs.asks_for_ends():
            asked = self._clock()
            self._repairs.note_ends(self._live.ask_ends(), asked)

    def _begin(self, scanner: Scanner, positions: Mark) -> None:
        """Plan the replays that are ready, and have the scans done that serve them."""
        searches: list[Search] = []
        known = self._live.knowledge()
        for replay in self._replays.values():
            if replay.state is not ReplayState.QUEUED:
                continue
            replay.searches, replay.hidden = replay.look_up(positions, known)
            searches += replay.searches
            replay.happen(ReplayEvent.STARTED)
        scanner.add(plan(searches))
        for replay in list(self._replays.values()):
            if replay.state is ReplayState.SCANNING and not replay.searches:
                self._searched(replay)

    def _scanned(self, scan: Scan) -> None:
        for search in scan.searches:
            replay = self._replays.get(search.instance_id)
            if replay is None or search not in replay.searches:
                continue
            replay.searches.remove(search)
            replay.hidden += search.hidden()
            if not replay.searches:
                self._searched(replay)

    def _searched(self, replay: Replay) -> None:
        """Say what became of the gap."""
        if replay.by_hand and not replay.everywhere and self._repairs.lacks(replay.gap, open_only=True):
            replay.everywhere = True
            replay.happen(ReplayEvent.WIDENED)
            return
        replay.happen(ReplayEvent.SEARCHED)
        gap = replay.gap
        del self._replays[gap.instance_id]
        lost: dict[LossReason, int] = {}
        for held in gap.wanted:
            if held.last is None or held not in replay.ripe:
                continue
            for verdict in verdicts(held, replay.hidden):
                count = self._repairs.give_up(gap.instance_id, held, [verdict])
                if count:
                    lost[verdict.reason] = lost.get(verdict.reason, 0) + count
        if gap.reapply is not None:
            self._repairs.finish(gap.instance_id, gap.reapply)
        name = gap.instance_id
        sought = "; ".join(f"{held.first} to {held.last} of {held.incarnation}" for held in gap.wanted[:4])
        found = [f"{count} lost ({reason})" for reason, count in lost.items()]
        unripe = tuple(held for held in gap.wanted if held not in replay.ripe)
        unread = self._repairs.lacking(replace(gap, wanted=unripe))
        if (still := self._repairs.lacking(gap) - sum(lost.values()) - unread) > 0:
            found.append(f"{still} still lost")
        if unread:
            found.append(f"{unread} may still be read live")
        outcome = ", ".join(found) or "nothing lost"
        logger.log(
            logging.WARNING if lost else logging.INFO,
            "%s: the log was searched for batches %s: %s", name, sought or "to apply again", outcome,
        )  # fmt: skip

    def _failed(self, scanner: Scanner, reason: str) -> None:
        scanner.fail()
        now = self._monotonic()
        for replay in self._replays.values():
            if replay.state in (ReplayState.QUEUED, ReplayState.SCANNING):
                replay.happen(ReplayEvent.FAILED)
                replay.due = now + min(MAX_BACKOFF, FIRST_BACKOFF * 2**replay.attempts)
                replay.attempts = min(replay.attempts + 1, 16)
        if self._throttle.due():
            logger.warning("the log cannot be searched at present: %s", reason)

    def _show(self, scanner: Scanner) -> None:
        shown = {asked.gap.instance_id: ReplayStatus(asked.state.value) for asked in list(self._asked)}
        for instance_id, replay in self._replays.items():
            status = ReplayStatus(replay.state.value)
            for search in replay.searches:
                offset = scanner.position(search)
                if offset is not None:
                    status = ReplayStatus(replay.state.value, search.partition, offset, search.until)
                    break
            shown[instance_id] = status
        self._shown = shown


def ripe_part(gap: Gap, positions: Mark) -> Gap | None:
    """What of a gap live reading can no longer fill, None if nothing; what showed later holds up nothing."""
    wanted = tuple(held for held in gap.wanted if is_ripe(held, positions))
    return replace(gap, wanted=wanted) if wanted or gap.reapply else None


def is_ripe(held: SeqRange, positions: Mark) -> bool:
    """Whether every partition was read past the end that it had when the range showed."""
    if held.horizon is None:
        return True
    ends = held.horizon.ends
    return ends is not None and all(positions.get(partition, -1) >= end for partition, end in ends.items())
