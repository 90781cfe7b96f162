"""What a terminal is told: answers as tables, and why something cannot be done.

Nothing is ever cut off: what does not fit goes on in the next line. Where stdout is no terminal, tables are
as wide as they need to be, so that a line can be searched for and cut into fields.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from datetime import datetime
from typing import Final

from rich.box import SIMPLE_HEAD
from rich.console import Console, Group
from rich.markup import escape
from rich.table import Table

from api.answers import BlendMatch, LookedUp, Lost, Replay, Stream
from producer.errors import OperatorError

SHOWN_HASH_CHARS: Final = 16
KEPT_TOGETHER: Final = {"incarnation", "last seq", "record", "group", "tier", "bytes", "tokens"}
"""Columns of short numbers, which make no others give way by much."""
UNBOUNDED_WIDTH: Final = 10_000
"""Wider than any table of ours."""


class UserError(OperatorError):
    """Something the user asked for cannot be done; the message says what to do about it."""


def stdout_console() -> Console:
    """Where answers are printed: as wide as the terminal, or as the answer where there is none."""
    return Console(width=None if sys.stdout.isatty() else UNBOUNDED_WIDTH)


def _table(*columns: str) -> Table:
    table = Table(box=SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, 1, 0, 0))
    for name in columns:
        table.add_column(name, overflow="fold", no_wrap=name in KEPT_TOGETHER)
    return table


def placements_table(results: Sequence[LookedUp]) -> Table:
    """A row a placement; a key that is held nowhere has one that says so."""
    table = _table("chunk", "rank", "group", "tier", "instance", "backend", "bytes", "tokens", "accesses")
    for result in results:
        key = result.key
        head = (key.chunk_hash_hex[:SHOWN_HASH_CHARS], f"{key.kv_rank:#010x}", str(key.object_group_id))
        tail = (str(len(result.token_ids)), str(result.access_count))
        if not result.placements:
            table.add_row(*head, "[dim]nowhere[/dim]", "", "", "", *tail)
        for place in result.placements:
            owner = escape(place.instance_id) + (" (shared)" if place.shared else "")
            table.add_row(*head, place.tier, owner, escape(place.backend), f"{place.size_bytes:,}", *tail)
    return table


def matches_table(matches: Sequence[BlendMatch], tokens: int) -> Group:
    """A row a match, where it lies in the query and where it was stored."""
    table = _table("at", "stored at", "chunk")
    for match in matches:
        table.add_row(str(match.cur_st), str(match.old_st), match.chunk_hash[:SHOWN_HASH_CHARS])
    return Group(f"{len(matches)} chunks found in {tokens} tokens", *([table] if matches else []))


def streams_table(streams: Sequence[Stream]) -> Table:
    """A row a stream; what it lacks is spelled out."""
    table = _table("instance", "incarnation", "last seq", "gap", "missing", "lost", "record", "last event")
    for stream in streams:
        record = "" if stream.partition is None else f"{stream.partition}:{stream.offset}"
        gap = "[red]yes[/red]" if stream.gap_detected else "[green]no[/green]"
        if stream.replay is not None:
            gap += f" ({_progress(stream.replay)})"
        lost = "\n".join(_lost(gone, stream.incarnation) for gone in stream.lost)
        table.add_row(
            escape(stream.instance_id) + (" [red](conflict)[/red]" if stream.conflict else ""),
            str(stream.incarnation),
            str(stream.last_seq),
            gap,
            "\n".join(_span(first, last) for first, last in stream.missing),
            lost,
            record,
            _time(stream.last_event_ts),
        )
    return table


def _lost(gone: Lost, current: int) -> str:
    of = "" if gone.incarnation == current else f" of {gone.incarnation}"
    return f"{_span(gone.first, gone.last)}{of} ({gone.reason})"


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
