"""What the demo reads from the metrics and puts before the user's eyes."""

from __future__ import annotations

import io

import pytest
from rich.console import Console
from rich.text import Text

from api.client import Client
from api.demo.bar import Look
from api.demo.checker import Answer, Checker, Reuse
from api.demo.figures import Scrape, Scraper
from api.demo.oracle import Match, Oracle
from api.demo.story import Outcome
from api.demo.summary import served
from api.demo.view import Situation, View, one_line, panel, percent_bar
from api.demo.workload import Request, assembled_prompts

METRICS = """\
# HELP blendstream_gap_detected 1 while a gap is open
# TYPE blendstream_gap_detected gauge
blendstream_gap_detected{instance_id="server-a"} 0.0
blendstream_gap_detected{instance_id="server-b"} 1.0
# HELP blendstream_ingest_batches_total batches
# TYPE blendstream_ingest_batches_total counter
blendstream_ingest_batches_total{result="admitted"} 40.0
blendstream_ingest_batches_total{result="repaired"} 2.0
# HELP blendstream_directory_placements placements
# TYPE blendstream_directory_placements gauge
blendstream_directory_placements{tier="l1"} 12000.0
blendstream_directory_placements{tier="l2"} 30.0
# HELP blendstream_directory_keys keys
# TYPE blendstream_directory_keys gauge
blendstream_directory_keys 12345.0
# HELP process_open_fds not ours
# TYPE process_open_fds gauge
process_open_fds 5.0
"""

SCRAPE = Scrape.parse(METRICS, at=10.0)
REQUEST = assembled_prompts(1).requests[0]


def situation(wrong: int = 0) -> Situation:
    scraper = Scraper("http://127.0.0.1:9")
    scraper.latest = SCRAPE
    checker = Checker(Client("http://127.0.0.1:9"), Oracle([REQUEST]))
    checker.seconds = [0.001] * 98 + [0.009] * 2
    checker.wrong = ["something"] * wrong
    prompt = [Text("x" * 300), Text("█" * 70)]
    found = Situation(scraper, checker, Reuse(1000, 600, 150), ["server-a", "server-b"], "serving prompts")
    found.prompt = prompt
    return found


def drawn(width: int, encoding: str = "utf-8") -> list[str]:
    data = io.BytesIO()
    screen = io.TextIOWrapper(data, encoding, errors="strict")
    console = Console(file=screen, width=width, highlight=False)
    shown = situation()
    if encoding != "utf-8":
        shown.prompt = ()
    console.print(panel(shown, Look.of(console)))
    screen.flush()
    return data.getvalue().decode(encoding).splitlines()


def test_a_scrape_gives_sums_and_single_series_of_our_metrics_alone() -> None:
    assert SCRAPE.total("ingest_batches_total") == 42
    assert SCRAPE.total("ingest_batches_total", result="repaired") == 2
    assert SCRAPE.total("directory_keys") == 12345
    assert SCRAPE.total("never_heard_of") == 0
    assert SCRAPE.by("directory_placements", "tier") == {"l1": 12000, "l2": 30}
    assert SCRAPE.gaps() == ["server-b"]
    assert "process_open_fds" not in SCRAPE.series


def test_a_rate_is_taken_over_the_scrapes_held() -> None:
    scraper = Scraper("http://127.0.0.1:9")
    assert scraper.rate("ingest_batches_total") == 0
    later = Scrape.parse(METRICS.replace("40.0", "140.0"), at=12.0)
    scraper._held = [SCRAPE, later]
    assert scraper.rate("ingest_batches_total") == 50


def test_the_panel_fits_eighty_columns_and_shows_every_figure() -> None:
    lines = drawn(80)
    assert all(len(line) <= 80 for line in lines)
    text = "\n".join(lines)
    for figure in ("serving prompts", "12,345 keys", "12,000 in L1", "30 in L2", "100   p50 1.0 ms"):
        assert figure in text
    assert "60% at any offset   15% by prefix alone" in text
    assert "server-a 0   server-b 1" in text


@pytest.mark.parametrize("width", [30, 60, 120])
def test_the_panel_is_as_high_at_every_width(width: int) -> None:
    assert len(drawn(width)) == len(drawn(80))


def test_where_there_is_no_utf_8_the_panel_is_ascii() -> None:
    assert any("============" in line for line in drawn(80, "ascii"))


def test_a_share_is_drawn_to_scale() -> None:
    look = Look(colour=False, blocks=False, width=80)
    assert [percent_bar(share, 10, look) for share in (0.0, 0.5, 1.0)] == [
        "..........",
        "=====.....",
        "==========",
    ]


def test_without_a_terminal_lines_of_figures_come_now_and_then() -> None:
    screen = io.StringIO()
    view = View(Console(file=screen, width=200))
    with view:
        view.watch(situation(wrong=3))
        view.tick()
        view.tick()
    [line] = screen.getvalue().splitlines()
    assert "serving prompts" in line
    assert "gap_detected server-b" in line
    assert "3 wrong" in line
    assert one_line(situation()).endswith("0 wrong")


def test_what_is_said_stays_whole_whatever_characters_it_has() -> None:
    screen = io.StringIO()
    View(Console(file=screen, width=200)).say("[/tmp/x] is [bold]not[/bold] markup :smile:")
    assert screen.getvalue() == "[/tmp/x] is [bold]not[/bold] markup :smile:\n"


def test_reuse_counts_tokens_not_prompts() -> None:
    reuse = Reuse()
    assert reuse.ratio(reuse.anywhere) == 0.0
    request: Request = REQUEST
    matches = [Match(bytes(32), 0, 0), Match(bytes(32), 256, 700)]
    reuse.count(Answer(request, matches, {}, 256))
    reuse.count(Answer(request, [], {}, 0))
    assert (reuse.tokens, reuse.anywhere, reuse.prefix) == (2 * len(request.tokens), 512, 256)


def test_a_run_that_time_ended_says_how_many_prompts_were_left_out() -> None:
    workload = assembled_prompts(12)
    assert served(Outcome(served=12, seconds=3.2), workload, 20.0) == "12 prompts in 3 s"
    assert served(Outcome(served=8, seconds=20.4), workload, 20.0) == "8 of 12 prompts in 20 s (--seconds 20)"
    assert served(Outcome(served=1, seconds=3.2), assembled_prompts(1), 20.0) == "1 prompt in 3 s"
