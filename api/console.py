"""What a terminal is told: answers as tables, and why something cannot be done.

Nothing is cut off unsaid: what does not fit goes on in the next line, or is shortened and said so. Where
stdout is no terminal, tables hold everything and are as wide as they need to be, so that a line can be
searched for and cut into fields.
"""

from __future__ import annotations

import math
import sys
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Sequence
from datetime import datetime
from typing import Final

from rich.box import SIMPLE_HEAD
from rich.console import Console, Group, RenderableType
from rich.markup import escape
from rich.table import Table
from typer import BadParameter

from api.answers import BlendMatch, LookedUp, Lost, Replay, Stream
from producer.errors import OperatorError

SHORT_HASH: Final = 12
"""Digits of a hash on a terminal that has no room for all of them."""
SHOWN_RANGES: Final = 8
"""Ranges of batches that a terminal is shown of a stream, for each reason why it lacks them."""
STREAM_COLUMNS: Final = (
    "instance", "incarnation", "last seq", "gap", "missing", "lost", "record", "last event"
)  # fmt: skip
KEPT_TOGETHER: Final = {
    "incarnation", "last seq", "record", "lacks", "at", "was at",
    "rank", "group", "tier", "bytes", "tokens", "accesses",
}  # fmt: skip
"""Columns of short numbers, which make no others give way by much."""
UNBOUNDED_WIDTH: Final = 10_000
"""Wider than any table of ours."""


class UserError(OperatorError):
    """Something the user asked for cannot be done; the message says what to do about it."""


def no_nan(value: float) -> float:
    """What an option with bounds was given; for click, a number that is none lies within any."""
    if math.isnan(value):
        raise BadParameter("nan is no number.")
    return value


def stdout_console() -> Console:
    """Where answers are printed: as wide as the terminal, or as the answer where there is none."""
    return Console(width=None if sys.stdout.isatty() else UNBOUNDED_WIDTH)


def counted(number: int, noun: str, plural: str = "") -> str:
    """A number with its noun: `1 batch`, `2 batches`."""
    return f"{number:,} {noun if number == 1 else plural or noun + 's'}"


def _width(table: Table) -> int:
    """Columns that a table takes if nothing in it is wrapped."""
    return Console(width=UNBOUNDED_WIDTH).measure(table).maximum


def plain_table(
    names: Sequence[str],
    rows: Iterable[Sequence[str]],
    *,
    kept: Collection[str] = KEPT_TOGETHER,
    gap: int = 2,
) -> Table:
    """A table as all answers have it; columns of the names in `kept` are not wrapped."""
    table = Table(box=SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, gap - 1, 0, 0))
    for name in names:
        table.add_column(name, overflow="fold", no_wrap=name in kept)
    for row in rows:
        table.add_row(*row)
    return table


def _short_table(
    names: Sequence[str], rows: Sequence[Sequence[str]], kept: Collection[str] = KEPT_TOGETHER
) -> Table:
    """A table for a narrow terminal: columns that say nothing are left out, the others stand closer."""
    telling = [i for i in range(len(names)) if any(row[i] not in ("", "0") for row in rows)]
    return plain_table(
        [names[i] for i in telling], [[row[i] for i in telling] for row in rows], kept=kept, gap=1
    )


def placements_report(results: Sequence[LookedUp], width: int) -> RenderableType:
    """A row a placement; where that does not fit into so many columns, in short."""
    table = placements_table(results)
    if _width(table) <= width:
        return table
    note = f"[dim]hashes are cut to {SHORT_HASH} digits; a wider terminal, or a pipe, shows them whole[/dim]"
    return Group(placements_table(results, SHORT_HASH), note)


def placements_table(results: Sequence[LookedUp], digits: int | None = None) -> Table:
    """A row a placement; a key that is held nowhere has one that says so.

    With `digits` hashes are cut to so many, and columns that say nothing are left out.
    """
    names = ("chunk", "rank", "group", "tier", "instance", "backend", "bytes", "tokens", "accesses")
    rows: list[tuple[str, ...]] = []
    for result in results:
        key = result.key
        head = (_hash(key.chunk_hash_hex, digits), f"{key.kv_rank:#010x}", str(key.object_group_id))
        tail = (str(len(result.token_ids)), str(result.access_count))
        if not result.placements:
            rows.append((*head, "[dim]nowhere[/dim]", "", "", "", *tail))
        for place in result.placements:
            owner = escape(place.instance_id) + (" (shared)" if place.shared else "")
            rows.append((*head, place.tier, owner, escape(place.backend), f"{place.size_bytes:,}", *tail))
    return (
        plain_table(names, rows) if digits is None else _short_table(names, rows, KEPT_TOGETHER | {"chunk"})
    )


def _hash(digest: str, digits: int | None) -> str:
    return digest if digits is None or len(digest) <= digits else f"{digest[:digits]}…"


def matches_table(matches: Sequence[BlendMatch], tokens: int) -> Group:
    """A row a match, where it lies in the query and where it was stored."""
    rows = [(str(match.cur_st), str(match.old_st), match.chunk_hash) for match in matches]
    table = plain_table(("at", "was at", "chunk"), rows)
    return Group(
        f"{counted(len(matches), 'chunk')} found in {counted(tokens, 'token')}", *([table] if matches else [])
    )


def streams_report(found: Sequence[Stream], width: int) -> RenderableType:
    """A row a stream; on a terminal, what streams lack stands in a table of its own, and is cut to a few."""
    if width == UNBOUNDED_WIDTH:
        return streams_table(found)
    lacking = [row for stream in found for row in _lacks(stream)]
    table = _short_table(STREAM_COLUMNS, [_stream_row(stream, spell_out=False) for stream in found])
    return Group(table, "", plain_table(("instance", "lacks", "batches"), lacking)) if lacking else table


def streams_table(found: Sequence[Stream]) -> Table:
    """A row a stream; what it lacks is spelled out."""
    return plain_table(STREAM_COLUMNS, [_stream_row(stream, spell_out=True) for stream in found])


def _stream_row(stream: Stream, *, spell_out: bool) -> tuple[str, ...]:
    gap = "[red]yes[/red]" if stream.gap_detected else "[green]no[/green]"
    if stream.replay is not None:
        gap += f" ({_progress(stream.replay)})"
    missing = [_span(first, last) for first, last in stream.missing] if spell_out else []
    lost = [f"{_lost(gone, stream.incarnation)} ({gone.reason})" for gone in stream.lost if spell_out]
    return (
        escape(stream.instance_id) + (" [red](conflict)[/red]" if stream.conflict else ""),
        str(stream.incarnation),
        str(stream.last_seq),
        gap,
        "\n".join(missing),
        "\n".join(lost),
        "" if stream.partition is None else f"{stream.partition}:{stream.offset}",
        _time(stream.last_event_ts),
    )


def _lacks(stream: Stream) -> Iterator[tuple[str, str, str]]:
    """A row for what may still come, and one for each reason for which batches were given up."""
    spans: dict[str, list[str]] = defaultdict(list)
    for first, last in stream.missing:
        spans["missing"].append(_span(first, last))
    for gone in stream.lost:
        spans[f"lost ({gone.reason})"].append(_lost(gone, stream.incarnation))
    name = escape(stream.instance_id)
    for what, ranges in spans.items():
        more = f"\n… {len(ranges) - SHOWN_RANGES:,} more" if len(ranges) > SHOWN_RANGES else ""
        yield name, what, ", ".join(ranges[:SHOWN_RANGES]) + more


def _lost(gone: Lost, current: int) -> str:
    of = "" if gone.incarnation == current else f" of {gone.incarnation}"
    return f"{_span(gone.first, gone.last)}{of}"


def _progress(replay: Replay) -> str:
    if replay.partition is None:
        return replay.state
    return f"{replay.state} {replay.partition}:{replay.offset} of {replay.until}"


def _span(first: int, last: int | None) -> str:
    if last is None:
        return f"{first}-"
    return str(first) if first == last else f"{first}-{last}"


def _time(seconds: float) -> str:
    return datetime.fromtimestamp(seconds).isoformat(" ", "seconds") if 0 < seconds < 2**40 else ""
