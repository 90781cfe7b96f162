"""A prompt as a coloured bar: which parts of it are cached, on which server and tier, and where they sat
before.

Each cell stands for an equal share of the prompt's tokens and shows what covers most of it. Colour names the
server, shade the tier. Terminals without colour or without block characters get letters instead, so that
nothing is told by colour alone there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final

from rich.console import Console
from rich.text import Text

from api.demo.oracle import Match, Place
from api.demo.workload import CHUNK_TOKENS, Part, Request

POOL: Final = "pool"
_COLOURS: Final = ("cyan", "magenta", "yellow", "green", "bright_red", "bright_blue")
_POOL_COLOUR: Final = "blue"
_LISTED: Final = 6
"""Stretches that the legend tells apart; the rest are summed up."""


@dataclass(frozen=True, slots=True)
class Stretch:
    """Tokens `start` to `end` of a prompt that one source holds in one piece, from `old_start` on."""

    start: int
    end: int
    old_start: int
    source: str
    tier: str

    @property
    def tokens(self) -> int:
        """Its length."""
        return self.end - self.start


@dataclass(frozen=True, slots=True)
class Look:
    """What a terminal can show."""

    colour: bool
    blocks: bool
    width: int

    @classmethod
    def of(cls, console: Console) -> Look:
        """Colour unless `NO_COLOR` or the terminal says otherwise, blocks where the encoding has them."""
        colour = console.color_system is not None and not console.no_color
        return cls(colour, console.encoding.lower().startswith("utf"), console.width)


def stretches(
    request: Request, reused: Iterable[Match], places: Callable[[bytes], Sequence[Place]]
) -> list[Stretch]:
    """The chunks a prompt can reuse, neighbours joined where source, tier and shift are the same.

    A chunk on several servers is taken from the one that serves the prompt, then from any memory, then from
    the pool.
    """
    joined: list[Stretch] = []
    for match in reused:
        place = min(
            places(match.chunk_hash), key=lambda p: (p.tier, p.instance_id != request.server, p.instance_id)
        )
        source = POOL if place.shared else place.instance_id
        end = match.cur_st + CHUNK_TOKENS
        last = joined[-1] if joined else None
        if (
            last is not None
            and (last.source, last.tier, last.end) == (source, place.tier, match.cur_st)
            and last.old_start + last.tokens == match.old_st
        ):
            joined[-1] = replace(last, end=end)
        else:
            joined.append(Stretch(match.cur_st, end, match.old_st, source, place.tier))
    return joined


def prompt_bar(request: Request, found: Sequence[Stretch], look: Look, sources: Sequence[str]) -> list[Text]:
    """The bar under the names of the prompt's parts, and the legend under it.

    Args:
        sources: the fleet's servers in a fixed order, so that a server keeps its colour from bar to bar.
    """
    painter = _Painter(look, sources)
    width = max(10, look.width - 4)
    lines = [
        Text(_ruler(request.parts, len(request.tokens), width, look.blocks), "dim"),
        painter.bar(found, len(request.tokens), width),
        *painter.legend(request, found),
    ]
    return [_indented(line, look) for line in lines]


def _indented(line: Text, look: Look) -> Text:
    indented = Text("  ").append(line)
    indented.truncate(look.width, overflow="ellipsis" if look.blocks else "crop")
    return indented


def _ruler(parts: Sequence[Part], total: int, width: int, blocks: bool) -> str:
    mark = "│" if blocks else "|"
    line = ""
    for part in parts:
        room = part.end * width // total - len(line)
        if room > 0:
            name = part.name if len(part.name) < room else part.name[: max(0, room - 1)]
            line += (mark + name).ljust(room)[:room]
    return line


class _Painter:
    def __init__(self, look: Look, sources: Sequence[str]) -> None:
        self._look = look
        self._colours = {name: _COLOURS[i % len(_COLOURS)] for i, name in enumerate(sources)}
        self._colours[POOL] = _POOL_COLOUR

    def bar(self, found: Sequence[Stretch], total: int, width: int) -> Text:
        bar = Text()
        for cell in range(width):
            start, end = cell * total // width, max((cell + 1) * total // width, cell * total // width + 1)
            covering = max(found, key=lambda stretch: _overlap(stretch, start, end), default=None)
            if covering is None or _overlap(covering, start, end) * 2 < end - start:
                bar.append("·" if self._look.blocks else ".", "dim" if self._look.colour else "")
            else:
                bar.append(*self._cell(covering))
        return bar

    def legend(self, request: Request, found: Sequence[Stretch]) -> Iterator[Text]:
        arrow = "→" if self._look.blocks else "->"
        for stretch in sorted(
            sorted(found, key=lambda stretch: -stretch.tokens)[:_LISTED], key=lambda stretch: stretch.start
        ):
            line = Text()
            line.append(*self._cell(stretch))
            where = "shared pool" if stretch.source == POOL else stretch.source
            line.append(f" {where} {stretch.tier.upper()}".ljust(17))
            line.append(f"{stretch.tokens:>6,} tokens  ")
            if stretch.old_start == stretch.start:
                line.append(f"in place at {stretch.start:,}")
            else:
                line.append(f"{stretch.old_start:,} {arrow} {stretch.start:,}")
            names = [p.name for p in request.parts if _overlap(stretch, p.start, p.end) > 0]
            line.append(f"  {', '.join(names)}", "dim" if self._look.colour else "")
            yield line
        rest = sorted(found, key=lambda stretch: -stretch.tokens)[_LISTED:]
        if rest:
            tokens = sum(stretch.tokens for stretch in rest)
            yield Text(f"  and {len(rest)} shorter ones, {tokens:,} tokens in all", "dim")
        missing = len(request.tokens) - sum(stretch.tokens for stretch in found)
        nothing = Text("·" if self._look.blocks else ".", "dim" if self._look.colour else "")
        yield nothing.append(" to be computed".ljust(17)).append(f"{missing:>6,} tokens")

    def _cell(self, stretch: Stretch) -> tuple[str, str]:
        colour = self._colours.get(stretch.source, "white") if self._look.colour else ""
        if self._look.colour and self._look.blocks:
            return ("█" if stretch.tier == "l1" else "▒"), colour
        return stretch.source[-1].upper() if stretch.source != POOL else "*", colour


def _overlap(stretch: Stretch, start: int, end: int) -> int:
    return min(stretch.end, end) - max(stretch.start, start)
