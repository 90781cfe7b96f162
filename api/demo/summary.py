"""The figures of a run, as the last thing it prints."""

from __future__ import annotations

import math

from rich.table import Table
from rich.text import Text

from api.console import counted
from api.demo.figures import Scraper
from api.demo.story import Outcome, Story
from api.demo.view import View
from api.demo.workload import Workload

SHOWN_WRONG = 10
"""Wrong answers spelled out; the rest are counted."""


def print_summary(story: Story, scraper: Scraper, view: View) -> None:
    """What flowed, what was answered, and whether all of it was right."""
    outcome, checker, reuse, scrape = story.outcome, story.checker, story.reuse, scraper.latest
    table = Table.grid(padding=(0, 2))
    table.add_column(style="bold" if view.look.colour else "", no_wrap=True, min_width=12)
    table.add_column(overflow="fold")
    table.add_row("served", served(outcome, story.workload, story.seconds))
    batches = scrape.total("ingest_batches_total", result="admitted")
    batches += scrape.total("ingest_batches_total", result="repaired")
    age = scrape.total("event_age_seconds_sum") / max(1.0, scrape.total("event_age_seconds_count"))
    table.add_row(
        "stream",
        f"{batches:,.0f} batches with {outcome.entries:,} entries, up to {scraper.fastest:,.0f} entries/s; "
        f"{age:.2f} s from cache server to answer, at most {scraper.most_behind:,.0f} records behind",
    )
    table.add_row(
        "directory",
        f"{outcome.keys:,} keys, {scrape.total('blend_contents'):,.0f} distinct chunk contents, "
        f"{scrape.total('directory_placement_bytes') / 2**40:.2f} TiB of KV",
    )
    table.add_row(
        "reuse",
        f"{reuse.ratio(reuse.anywhere):.0%} of {reuse.tokens:,} prompt tokens at any offset, "
        f"{reuse.ratio(reuse.prefix):.0%} by prefix alone",
    )
    table.add_row(
        "blend lookup",
        f"p50 {checker.percentile(0.5) * 1000:.1f} ms, p99 {checker.percentile(0.99) * 1000:.1f} ms "
        f"over HTTP, {reuse.tokens // max(outcome.served, 1):,} tokens a prompt",
    )
    table.add_row(
        "gap",
        f"in the metrics {outcome.gap_shown:.1f} s after the next batch, out of them "
        f"{outcome.gap_cleared:.1f} s after the late delivery",
    )
    table.add_row("check", _verdict(story))
    view.heading("Summary")
    view.console.print(table)
    for line in checker.wrong[:SHOWN_WRONG]:
        view.say(f"  {line}", "red")


def served(outcome: Outcome, workload: Workload, seconds: float) -> str:
    """How many prompts were served, of how many if the time for it ran out."""
    asked = len(workload.requests)
    of, limit = (
        (f"{outcome.served:,} of ", f" (--seconds {seconds:g})") if outcome.served < asked else ("", "")
    )
    pace = ""
    if workload.recorded and not math.isinf(outcome.speed):
        pace = f", {outcome.speed:.1f} times as fast as recorded"
    return f"{of}{counted(asked, 'prompt')} in {outcome.seconds:.0f} s{limit}{pace}"


def _verdict(story: Story) -> Text:
    checker = story.checker
    exact = counted(checker.exact, "answer")
    asked = f"{exact} compared with brute force, {checker.under_load:,} more under load"
    if checker.wrong:
        return Text(f"{counted(len(checker.wrong), 'thing')} wrong in {asked}", "bold red")
    return Text(f"all right: {asked}", "bold green")
