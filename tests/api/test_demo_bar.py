"""The coloured bar: what it says of a prompt, in terminals of every kind."""

from __future__ import annotations

import io
from collections.abc import Sequence

import numpy as np
import pytest
from rich.console import Console
from rich.text import Text

from api.demo.bar import Look, Stretch, prompt_bar, stretches
from api.demo.oracle import Match, Place
from api.demo.workload import LLAMA, Part, Request

PLAIN = Look(colour=False, blocks=False, width=44)
SERVERS = ("server-a", "server-b")
PARTS = (Part("system", 0, 256), Part("manual", 256, 1024), Part("question", 1024, 1280))
REQUEST = Request(0, 0.0, LLAMA, "", "server-b", np.zeros(1280, np.uint32), PARTS)


def place(name: str, tier: str = "l1") -> Place:
    return Place(name, tier, "dram" if tier == "l1" else "pool", 1, tier == "l2")


def match(number: int, old: int, new: int) -> Match:
    return Match(bytes([number]) * 32, old, new)


def lines(found: Sequence[Stretch], look: Look = PLAIN) -> list[str]:
    return [line.plain for line in prompt_bar(REQUEST, found, look, SERVERS)]


def test_neighbouring_chunks_from_one_source_become_one_stretch() -> None:
    held = [match(1, 512, 0), match(2, 768, 256), match(3, 0, 512)]
    assert stretches(REQUEST, held, lambda _: [place("server-a")]) == [
        Stretch(0, 512, 512, "server-a", "l1"),
        Stretch(512, 768, 0, "server-a", "l1"),
    ]


def test_stretches_end_where_the_source_the_tier_or_the_shift_changes_or_tokens_lie_between() -> None:
    held = [match(1, 0, 0), match(2, 256, 256), match(3, 512, 512), match(4, 768, 800)]
    where = {
        1: place("server-a"),
        2: place("server-b"),
        3: place("server-b", "l2"),
        4: place("server-b", "l2"),
    }
    found = stretches(REQUEST, held, lambda chunk: [where[chunk[0]]])
    assert [(s.start, s.source, s.tier) for s in found] == [
        (0, "server-a", "l1"),
        (256, "server-b", "l1"),
        (512, "pool", "l2"),
        (800, "pool", "l2"),
    ]


@pytest.mark.parametrize(
    ("places", "source"),
    [
        ([place("server-a"), place("server-b")], "server-b"),
        ([place("server-a"), place("server-b", "l2")], "server-a"),
        ([place("server-b", "l2")], "pool"),
    ],
)
def test_a_chunk_is_taken_from_the_serving_memory_then_any_memory_then_the_pool(
    places: list[Place], source: str
) -> None:
    [found] = stretches(REQUEST, [match(1, 0, 0)], lambda _: places)
    assert found.source == source


def test_the_bar_shows_each_source_where_it_lies_under_the_names_of_the_parts() -> None:
    ruler, bar, *_ = lines([Stretch(0, 256, 0, "server-a", "l1"), Stretch(512, 1024, 256, "pool", "l2")])
    assert ruler == "  |system |manual                 |questio"
    assert bar == "  AAAAAAAA........****************........"


def test_the_legend_tells_the_old_and_the_new_position_of_each_stretch() -> None:
    found = [Stretch(0, 256, 0, "server-a", "l1"), Stretch(512, 1024, 256, "pool", "l2")]
    _, _, *legend = lines(found, Look(colour=False, blocks=False, width=80))
    assert "in place at 0" in legend[0]
    assert "256 -> 512" in legend[1]
    assert legend[2].split() == [".", "to", "be", "computed", "512", "tokens"]


def test_many_stretches_are_summed_up_behind_the_longest() -> None:
    found = [Stretch(n * 128, n * 128 + 100 + n, 0, "server-a", "l1") for n in range(9)]
    legend = lines(found)[2:]
    assert len(legend) == 8
    assert legend[-2].strip() == "and 3 shorter ones, 303 tokens in all"


def test_a_prompt_of_which_nothing_is_known_is_all_to_be_computed() -> None:
    _, bar, *legend = lines([])
    assert set(bar.strip()) == {"."}
    assert legend == ["  . to be computed   1,280 tokens"]


def test_a_prompt_shorter_than_the_bar_is_drawn_all_the_same() -> None:
    short = Request(0, 0.0, LLAMA, "", "server-a", np.zeros(3, np.uint32), (Part("prompt", 0, 3),))
    ruler, bar, *_ = [line.plain for line in prompt_bar(short, [], PLAIN, SERVERS)]
    assert len(bar) == len(ruler) == PLAIN.width - 2


def colours(text: Text) -> set[str]:
    return {str(span.style) for span in text.spans} - {"", "dim"}


def test_with_colour_a_server_has_its_own_and_a_tier_its_shade() -> None:
    found = [
        Stretch(0, 256, 0, "server-a", "l1"),
        Stretch(256, 512, 0, "server-b", "l1"),
        Stretch(512, 768, 0, "pool", "l2"),
    ]
    bar = prompt_bar(REQUEST, found, Look(colour=True, blocks=True, width=44), SERVERS)[1]
    assert bar.plain.strip() == "█" * 16 + "▒" * 8 + "·" * 16
    assert len(colours(bar)) == 3


def test_without_colour_nothing_but_letters_tells_the_sources_apart() -> None:
    found = [Stretch(0, 256, 0, "server-a", "l1"), Stretch(256, 512, 0, "server-b", "l1")]
    bar = prompt_bar(REQUEST, found, Look(colour=False, blocks=True, width=44), SERVERS)[1]
    assert bar.plain.strip().rstrip("·") == "A" * 8 + "B" * 8
    assert colours(bar) == set()


@pytest.mark.parametrize("width", [20, 40, 80, 200])
@pytest.mark.parametrize("blocks", [True, False])
def test_no_line_is_wider_than_the_terminal(width: int, blocks: bool) -> None:
    found = [Stretch(n * 256, n * 256 + 256, 10_000 * n, "server-a", "l1") for n in range(5)]
    look = Look(colour=True, blocks=blocks, width=width)
    for line in prompt_bar(REQUEST, found, look, SERVERS):
        assert line.cell_len <= width


def test_without_utf_8_every_character_is_ascii() -> None:
    found = [Stretch(n * 256, n * 256 + 200, 7, "server-a", "l1") for n in range(5)]
    for colour in (True, False):
        look = Look(colour=colour, blocks=False, width=60)
        assert all(line.plain.isascii() for line in prompt_bar(REQUEST, found, look, SERVERS))


def test_the_look_follows_the_terminal_and_no_color(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    terminal = Console(force_terminal=True, color_system="256", width=100)
    assert Look.of(terminal).colour
    assert Look.of(terminal).width == 100
    assert not Look.of(Console(file=io.StringIO())).colour
    ascii_only = io.TextIOWrapper(io.BytesIO(), "ascii")
    assert not Look.of(Console(file=ascii_only)).blocks
    assert Look.of(Console(file=io.TextIOWrapper(io.BytesIO(), "utf-8"))).blocks
    monkeypatch.setenv("NO_COLOR", "1")
    assert not Look.of(Console(force_terminal=True, color_system="256")).colour
