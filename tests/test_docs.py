"""The pages in docs/ as a reader walks them: each is reached from the README, and no link leads nowhere."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

import pytest

from producer.wire import decode_batch

ROOT: Final = Path(__file__).parents[1]
PAGES: Final = sorted((ROOT / "docs").glob("*.md"))
LINK: Final = re.compile(r"\]\((?!https?:|#)([^)#]+)")


BATCH: Final = re.compile(r'^\{"instance_id".*\}$', re.MULTILINE)


def links_of(page: Path) -> set[Path]:
    return {(page.parent / target).resolve() for target in LINK.findall(page.read_text())}


@pytest.mark.parametrize("page", [ROOT / "README.md", *PAGES], ids=lambda page: page.name)
def test_every_link_of_a_page_leads_somewhere(page: Path) -> None:
    assert [str(target) for target in links_of(page) if not target.exists()] == []


def test_every_page_can_be_reached_from_the_readme() -> None:
    reached: set[Path] = set()
    ahead = {ROOT / "README.md"}
    while ahead:
        page = ahead.pop()
        reached.add(page)
        ahead |= {target for target in links_of(page) if target.suffix == ".md"} - reached
    assert [page.name for page in PAGES if page not in reached] == []


def test_the_batches_that_a_page_tells_to_emit_make_the_gap_that_it_shows() -> None:
    lines = BATCH.findall((ROOT / "docs" / "emitter.md").read_text())
    assert [decode_batch(line.encode()).seq for line in lines] == [1, 3, 2]
