"""Tables hold every character of what they show, on a terminal of eighty columns and in a pipe."""

from __future__ import annotations

import io
from collections.abc import Sequence

import msgspec
import pytest
from rich.console import Console, RenderableType

from api.answers import BlendMatch, Key, LookedUp, Lost, Placement, Replay, Stream
from api.console import (
    matches_table,
    placements_report,
    placements_table,
    stdout_console,
    streams_report,
    streams_table,
)

NAME = "cache-server-7.rack-12.cluster.example"
LOST = [Lost(3, 5, 1764446107, "never_produced"), Lost(9, 9, 1764446000, "before_log")]


def stream(lost: Sequence[Lost] = LOST) -> Stream:
    return Stream(
        instance_id=NAME, incarnation=1764446107, epoch=1, last_seq=123456, gap_detected=True, conflict=True,
        missing=[(17, 19), (21, 21)], lost=list(lost), replay=Replay("scanning", 3, 800, 1234), partition=3,
        offset=98765, last_event_ts=1764446207.3,
    )  # fmt: skip


def looked_up() -> LookedUp:
    key = Key("ab" * 32, "m", 0x01000000, 0, "")
    return LookedUp(
        key, [Placement(NAME, 1764446107, "l2", "shared-file-system", 10**9, True)], [1] * 256, 77
    )


def shown(what: RenderableType, width: int) -> list[str]:
    console = Console(file=io.StringIO(), width=width)
    console.print(what)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue().splitlines()


@pytest.mark.parametrize("what", [streams_table([stream()]), placements_table([looked_up()])])
def test_on_a_narrow_terminal_what_does_not_fit_goes_on_below(what: RenderableType) -> None:
    narrow, wide = shown(what, 80), shown(what, 1000)
    assert max(map(len, narrow)) <= 80
    assert sorted("".join(narrow).replace("─", "").replace(" ", "")) == sorted(
        "".join(wide).replace("─", "").replace(" ", "")
    )


def test_in_a_pipe_an_instance_has_its_id_and_reasons_in_whole(capsys: pytest.CaptureFixture[str]) -> None:
    stdout_console().print(streams_table([stream()]))
    assert NAME in (text := capsys.readouterr().out)
    assert "3-5 (never_produced)" in text


def test_a_lost_range_has_a_line_of_its_own_and_an_incarnation_only_if_it_is_an_old_one() -> None:
    lines = shown(streams_table([stream()]), 1000)
    assert sum("3-5 (never_produced)" in line for line in lines) == 1
    assert sum("9 of 1764446000 (before_log)" in line for line in lines) == 1
    assert not any("never_produced" in line and "before_log" in line for line in lines)


def test_a_search_without_a_match_says_so_without_a_table() -> None:
    assert shown(matches_table([], 32768), 80) == ["0 chunks found in 32,768 tokens"]


def test_a_hash_is_whole_wherever_there_is_room_for_it() -> None:
    assert any("ab" * 32 in line for line in shown(placements_report([looked_up()], 1000), 1000))
    match = BlendMatch("ab" * 32, old_st=100_000, cur_st=128_000)
    assert any("ab" * 32 in line for line in shown(matches_table([match], 32768), 80))


def test_a_hash_that_was_shortened_for_want_of_room_shows_that_and_says_how_to_see_it_whole() -> None:
    lines = shown(placements_report([looked_up()], 80), 80)
    assert max(map(len, lines)) <= 80
    assert any(line.startswith("ab" * 6 + "… ") for line in lines)
    assert "shows them whole" in lines[-1]


def test_on_a_terminal_what_a_stream_lacks_is_listed_by_reason_and_cut_to_a_few() -> None:
    many = [*LOST, *(Lost(n, n + 1, 1764446107, "before_log") for n in range(100, 240, 4))]
    lines = shown(streams_report([stream(many)], 80), 80)
    text = " ".join(" ".join(lines).split())
    assert max(map(len, lines)) <= 80
    assert "missing 17-19, 21" in text
    assert any(line.rstrip().endswith("lost (never_produced)  3-5") for line in lines)
    assert sum("lost (before_log)" in line for line in lines) == 1
    assert "… 28 more" in text
    assert "9 of 1764446000, 100-101" in text


def test_a_column_that_says_nothing_of_any_stream_is_left_out_on_a_terminal_alone() -> None:
    quiet = msgspec.structs.replace(stream([]), missing=[], partition=None, offset=None, replay=None)
    assert not {"lost", "missing", "record"} & set(shown(streams_report([quiet], 80), 80)[0].split())
    assert {"lost", "missing", "record"} < set(shown(streams_table([quiet]), 1000)[0].split())


def test_one_thing_is_no_things() -> None:
    match = BlendMatch("ab" * 32, old_st=0, cur_st=0)
    assert shown(matches_table([match], 256), 80)[0] == "1 chunk found in 256 tokens"
