"""Where in the log to look for what a stream lacks, and what follows when it is not there; all of it pure.

A search is one stream's interest in one partition: from the newest offset known to lie before its first
missing batch, up to where live reading stood when the gap showed. Searches of one partition that overlap
become one scan. While a scan goes by, each search notes what stays hidden between two batches of the stream:
records that cannot be decoded, what the log no longer holds, and what the emitter said before it departed,
which is not looked at. A batch that was not found is lost for
that reason where something hidden may have been it, and was never produced where nothing may.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import NamedTuple

from processor.ingest.ranges import LossReason, SeqRange
from processor.ingest.source import Mark


class Place(NamedTuple):
    """A batch's place in its emitter's stream."""

    incarnation: int
    seq: int


START = Place(-1, 0)
"""Before every batch."""
END = Place(1 << 63, 0)
"""Behind every batch."""

_WEIGHT = {
    LossReason.NEVER_PRODUCED: 0,
    LossReason.DEPARTED: 1,
    LossReason.BEFORE_LOG: 2,
    LossReason.UNDECODABLE: 3,
}
"""Of two reasons that may both be true, the greater says more about what can be done."""


class Hidden(NamedTuple):
    """Something between two places of a stream, both exclusive, that cannot be seen."""

    after: Place
    before: Place
    reason: LossReason


class Verdict(NamedTuple):
    """Batches `first` to `last` of a range are lost for a reason."""

    first: int
    last: int
    reason: LossReason


@dataclass(frozen=True, slots=True)
class Knowledge:
    """What live reading knows of the log.

    Attributes:
        began: the offset at which reading began, for partitions that were read from their earliest record on.
        before: `(instance_id, incarnation, seq, partition)` -> the newest offset known to lie before.
        first: `(instance_id, partition)` -> the place of the first batch heard there, None if none was.
        hides: `(instance_id, partition)` -> whether live reading met a record there that may have been one of
            the emitter's and could not be decoded.
    """

    began: Mark
    before: Callable[[str, int, int, int], int | None]
    first: Callable[[str, int], tuple[int, int] | None]
    hides: Callable[[str, int], bool]


@dataclass(slots=True, eq=False)
class Search:
    """One stream on one partition.

    Attributes:
        start: the offset to begin at, None for the log's earliest.
        until: the offset to end before.
        heard: the emitter was heard on this partition.
    """

    instance_id: str
    partition: int
    start: int | None
    until: int
    heard: bool = True
    _latest: Place = START
    _open: list[tuple[Place, LossReason]] = field(default_factory=list)
    _hidden: list[Hidden] = field(default_factory=list)

    def covers(self, offset: int) -> bool:
        """Whether it asked for a record: a scan that serves others too may begin earlier."""
        return offset >= (self.start or 0)

    def saw(self, first: Place, last: Place) -> None:
        """A record of the stream went by, with batches from `first` to `last`."""
        still_open = []
        for after, reason in self._open:
            if last > after:
                self._hidden.append(Hidden(after, max(first, after), reason))
            else:
                still_open.append((after, reason))
        self._open = still_open
        self._latest = max(self._latest, last)

    def met(self, reason: LossReason) -> None:
        """Something went by that cannot be seen, and may have been the stream's."""
        if (self._latest, reason) not in self._open:
            self._open.append((self._latest, reason))

    def hidden(self) -> list[Hidden]:
        """What stayed hidden, once the scan is over."""
        rest = [Hidden(after, END, reason) for after, reason in self._open]
        if not self.heard and self._latest == START:
            # Nothing says that the emitter ever wrote here; that the log begins late proves nothing then.
            rest = [hidden for hidden in rest if hidden.reason is LossReason.UNDECODABLE]
        return self._hidden + rest


@dataclass(slots=True)
class Scan:
    """One pass over a stretch of a partition, for every search that lies on it."""

    partition: int
    start: int | None
    until: int
    searches: list[Search]


def searches_for(
    instance_id: str,
    wanted: Sequence[SeqRange],
    read: Callable[[SeqRange], Mark],
    heard: Iterable[int],
    known: Knowledge,
    *,
    mark: Mark | None = None,
    thorough: bool = False,
    everywhere: bool = False,
) -> tuple[list[Search], list[Hidden]]:
    """The searches for a stream's ranges, and what is hidden from any search.

    Args:
        read: how far each partition was read when a range showed.
        heard: partitions that the emitter was heard on.
        mark: the offsets before which the log is not the stream's, since its emitter departed.
        thorough: also search before the emitter's first record on a partition that was read from its start.
        everywhere: also search partitions that the emitter was never heard on.
    """
    heard = frozenset(heard)
    found: dict[int, Search] = {}
    hidden: list[Hidden] = []
    for held in wanted:
        for partition, until in read(held).items():
            first = known.first(instance_id, partition)
            began = known.began.get(partition)
            spoke = partition in heard or first is not None
            if began is not None and not everywhere and not known.hides(instance_id, partition):
                last = (held.incarnation, held.first if held.last is None else held.last)
                if not spoke:
                    continue
                if first is not None and first > last and not thorough:
                    # All that the log held was read, and the emitter's first record came later.
                    if began > 0:
                        hidden.append(Hidden(START, Place(*first), LossReason.BEFORE_LOG))
                    continue
            start = known.before(instance_id, held.incarnation, held.first, partition)
            departed = (mark or {}).get(partition, 0)
            behind = (start or 0) < departed
            if behind:
                start = departed
            if start is not None and start >= until:
                if behind and spoke:
                    behind_it = (held.first if held.last is None else held.last) + 1
                    hidden.append(Hidden(START, Place(held.incarnation, behind_it), LossReason.DEPARTED))
                continue
            search = found.get(partition)
            if search is None:
                search = found[partition] = Search(instance_id, partition, start, until, spoke)
            else:
                search.start = None if search.start is None or start is None else min(search.start, start)
                search.until = max(search.until, until)
            if behind:
                search.met(LossReason.DEPARTED)
    return [search for _, search in sorted(found.items())], hidden


def plan(searches: Iterable[Search]) -> list[Scan]:
    """The scans that serve all searches: one for each stretch of a partition, in order."""
    scans: list[Scan] = []
    for search in sorted(searches, key=lambda s: (s.partition, -1 if s.start is None else s.start)):
        latest = scans[-1] if scans else None
        if (
            latest is not None
            and latest.partition == search.partition
            and (search.start or 0) <= latest.until
        ):
            latest.until = max(latest.until, search.until)
            latest.searches.append(search)
        else:
            scans.append(Scan(search.partition, search.start, search.until, [search]))
    return scans


def verdicts(wanted: SeqRange, hidden: Iterable[Hidden]) -> list[Verdict]:
    """Why the batches of a range that a complete search did not find are lost, in order."""
    assert wanted.last is not None
    parts: list[tuple[int, int, LossReason]] = []
    cuts = {wanted.first, wanted.last + 1}
    for after, before, reason in hidden:
        first, last = wanted.first, wanted.last
        if after.incarnation == wanted.incarnation:
            first = max(first, after.seq + 1)
        if before.incarnation == wanted.incarnation:
            last = min(last, before.seq - 1)
        if after.incarnation <= wanted.incarnation <= before.incarnation and first <= last:
            parts.append((first, last, reason))
            cuts |= {first, last + 1}
    edges = sorted(cuts)
    found: list[Verdict] = []
    for first, after_last in pairwise(edges):
        covering = [reason for begin, end, reason in parts if begin <= first and after_last - 1 <= end]
        reason = max(covering, key=_WEIGHT.__getitem__, default=LossReason.NEVER_PRODUCED)
        if found and found[-1].reason is reason:
            found[-1] = found[-1]._replace(last=after_last - 1)
        else:
            found.append(Verdict(first, after_last - 1, reason))
    return found
