"""What the demo shows while it runs: a live panel in a terminal, now and then a line of text elsewhere.

What is said once scrolls by above the panel. The panel is drawn from what the demo and the scraper have at
that moment; drawing never asks the processor anything.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from types import TracebackType
from typing import Final, Self

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from api.demo.bar import Look
from api.demo.checker import Checker, Reuse
from api.demo.figures import Scraper

LINE_INTERVAL: Final = 2.0
"""Seconds between two lines of figures where there is no live panel."""
REFRESHES: Final = 5
"""Drawings of the panel per second."""


@dataclass(slots=True)
class Situation:
    """What there is to show.

    Attributes:
        doing: what the demo is at, in a few words.
        prompt: the bar of the prompt looked up last.
    """

    scraper: Scraper
    checker: Checker
    reuse: Reuse
    servers: Sequence[str]
    doing: str = ""
    began: float = field(default_factory=time.monotonic)
    prompt: Sequence[Text] = ()


class View:
    """Says things and keeps the figures before the user's eyes, in the way that the terminal allows."""

    def __init__(self, console: Console, plain: bool = False) -> None:
        self.console = console
        self.look = Look.of(console)
        self._situation: Situation | None = None
        self._next_line = 0.0
        self._live: Live | None = None
        if console.is_terminal and not console.is_dumb_terminal and not plain:
            self._live = Live(
                get_renderable=self._panel, console=console, refresh_per_second=REFRESHES, transient=True
            )

    def __enter__(self) -> Self:
        if self._live is not None:
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._situation = None
        if self._live is not None:
            with suppress(OSError):  # the terminal may have been closed
                self._live.stop()

    def say(self, text: str, style: str = "") -> None:
        """A line that stays."""
        # A file has no width to wrap to, and whoever searches it wants lines whole.
        self.console.print(Text(text, style), soft_wrap=not self.console.is_terminal)

    def heading(self, text: str) -> None:
        """A line that begins something new."""
        self.console.print()
        self.say(text, "bold")

    def show(self, lines: Sequence[Text]) -> None:
        """Lines that stay, cut rather than wrapped."""
        for line in lines:
            self.console.print(line, no_wrap=True, overflow="crop", crop=True)

    def watch(self, situation: Situation) -> None:
        """Show this from now on."""
        self._situation = situation

    def tick(self) -> None:
        """To be called often: prints a line of figures where there is no panel and it is time for one."""
        now = time.monotonic()
        if self._live is None and self._situation is not None and now >= self._next_line:
            self._next_line = now + LINE_INTERVAL
            self.console.print(Text("  " + one_line(self._situation), "dim"), soft_wrap=True)

    def _panel(self) -> RenderableType:
        situation = self._situation
        return Text("") if situation is None else panel(situation, self.look)


def one_line(situation: Situation) -> str:
    """The figures that matter most, for logs."""
    scraper, checker = situation.scraper, situation.checker
    gaps = ", ".join(scraper.latest.gaps())
    return (
        f"{time.monotonic() - situation.began:5.1f} s  {situation.doing}: "
        f"{scraper.rate('ingest_entries_total'):,.0f} entries/s, "
        f"{scraper.latest.total('consumer_lag'):,.0f} records behind, "
        f"{scraper.latest.total('directory_keys'):,.0f} keys, "
        f"{len(checker.seconds):,} lookups, {situation.reuse.ratio(situation.reuse.anywhere):.0%} reusable, "
        f"gap_detected {gaps or 'nowhere'}, {len(checker.wrong)} wrong"
    )


def panel(situation: Situation, look: Look) -> RenderableType:
    """All figures and the last prompt's bar, for a terminal of `look.width` columns."""
    scrape, checker, reuse = situation.scraper.latest, situation.checker, situation.reuse
    rate = situation.scraper.rate
    rows = Table.grid(padding=(0, 2), pad_edge=False)
    rows.add_column(style="bold" if look.colour else "", no_wrap=True, min_width=9)
    rows.add_column(no_wrap=True, overflow="crop")
    rows.add_row(
        "stream",
        f"{rate('ingest_batches_total'):,.0f} batches/s   {rate('ingest_entries_total'):,.0f} entries/s   "
        f"{scrape.total('consumer_lag'):,.0f} records behind",
    )
    rows.add_row(
        "directory",
        f"{scrape.total('directory_keys'):,.0f} keys   "
        f"{scrape.total('directory_placements', tier='l1'):,.0f} in L1   "
        f"{scrape.total('directory_placements', tier='l2'):,.0f} in L2   "
        f"{scrape.total('blend_contents'):,.0f} contents",
    )
    rows.add_row(
        "lookups",
        f"{len(checker.seconds):,}   p50 {checker.percentile(0.5) * 1000:.1f} ms   "
        f"p99 {checker.percentile(0.99) * 1000:.1f} ms   {len(checker.wrong)} wrong",
    )
    rows.add_row("reuse", _reuse_line(reuse, look))
    rows.add_row("gaps", _gap_line(situation, look))
    elapsed = time.monotonic() - situation.began
    title = Text(f"{situation.doing}", "bold").append(f"   {elapsed:.0f} s", "dim")
    rule = Text(("─" if look.blocks else "-") * max(0, look.width - 1), "dim")
    return Group(rule, title, rows, *_cut(situation.prompt, look))


def percent_bar(share: float, width: int, look: Look) -> str:
    """A share of one as a bar of so many columns."""
    full, empty = ("━", "╌") if look.blocks else ("=", ".")
    cells = round(share * width)
    return full * cells + empty * (width - cells)


def _reuse_line(reuse: Reuse, look: Look) -> Text:
    anywhere, prefix = reuse.ratio(reuse.anywhere), reuse.ratio(reuse.prefix)
    line = Text(percent_bar(anywhere, 20, look), "green" if look.colour else "")
    return line.append(f"  {anywhere:.0%} at any offset   {prefix:.0%} by prefix alone", "default")


def _gap_line(situation: Situation, look: Look) -> Text:
    flags = situation.scraper.latest.by("gap_detected", "instance_id")
    line = Text()
    for name in situation.servers:
        flag = int(flags.get(name, 0))
        line.append(f"{name} ").append(str(flag), "bold red" if flag and look.colour else "").append("   ")
    return line


def _cut(lines: Sequence[Text], look: Look) -> list[Text]:
    """Copies that end at the edge: a line that wrapped would push the panel about."""
    cut = []
    for line in lines:
        copy = line.copy()
        copy.truncate(look.width - 1)
        cut.append(copy)
    return cut
