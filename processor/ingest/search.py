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
        places: `(instance_id, partition)` -> `(incarnation, seq)` of the first batch heard there, if any.
        hides: `(instance_id, partition)` -> whether live reading met a record there that may have been one of
            the emitter's and could not be decoded.
    """

    began: Mark
    before: Callable[[str, int, int, int], int | None]
    places: Callable[[str, int], tuple[int, int] | None]
    hides: Callable[[str, int], bool]

    def first(self, instance_id: str, partition: int) -> Place | None:
        """The place of the first batch heard of an emitter on a partition, None if none was."""
        first = self.places(instance_id, partition)
        return None if first is None else Place(*first)

    def whole(self, instance_id: str, partition: int) -> bool:
        """Whether all of an emitter's that the partition held was read, and could be."""
        return partition in self.began and not self.hides(instance_id, partition)


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

    def widen(self, start: int | None, until: int) -> None:
        """It serves another range as well."""
        self.start = None if self.start is None or start is None else min(self.start, start)
        self.until = max(self.until, until)

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
    wanted: Sequence[tuple[SeqRange, Mark]],
    heard: Iterable[int],
    known: Knowledge,
    *,
    mark: Mark | None = None,
    thorough: bool = False,
    everywhere: bool = False,
) -> tuple[list[Search], list[Hidden]]:
    """The searches for a stream's ranges, and what is hidden from any search.

    Args:
        wanted: each with how far the partitions had been read when it showed.
        heard: partitions that the emitter was heard on.
        mark: the offsets before which the log is not the stream's, since its emitter departed.
        thorough: also search before the emitter's first record on a partition that was read from its start.
        everywhere: also search partitions that the emitter was never heard on.
    """
    heard, mark = frozenset(heard), mark or {}
    found: dict[int, Search] = {}
    hidden: list[Hidden] = []
    for held, read in wanted:
        for partition, until in read.items():
            first = known.first(instance_id, partition)
            spoke = partition in heard or first is not None
            whole = known.whole(instance_id, partition) and not everywhere
            if whole and ruled_out(held, first, spoke, thorough):
                if first is not None and known.began[partition] > 0:
                    hidden.append(Hidden(START, first, LossReason.BEFORE_LOG))
                continue
            before = known.before(instance_id, held.incarnation, held.first, partition)
            start, cut = start_of(before, mark.get(partition, 0))
            if start is None or start < until:
                search = found.setdefault(partition, Search(instance_id, partition, start, until, spoke))
                search.widen(start, until)
                if cut:
                    search.met(LossReason.DEPARTED)
            elif cut and spoke:
                hidden.append(Hidden(START, Place(held.incarnation, held.end + 1), LossReason.DEPARTED))
    return [search for _, search in sorted(found.items())], hidden


def ruled_out(held: SeqRange, first: Place | None, spoke: bool, thorough: bool) -> bool:
    """Whether a partition that was read from its start cannot hold what a range lacks.

    Args:
        first: the place of the emitter's first batch there, None if none was heard.
        spoke: the emitter was heard there, now or before.
    """
    came_later = first is not None and first > (held.incarnation, held.end)
    return not spoke or (came_later and not thorough)


def start_of(before: int | None, departed: int) -> tuple[int | None, bool]:
    """Where a search begins, and whether the emitter's departure, at `departed`, puts it off until there.

    Args:
        before: the newest offset known to lie before what is searched for; None if none is.
    """
    cut = (before or 0) < departed
    return (departed if cut else before), cut


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
