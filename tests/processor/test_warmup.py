"""Machine code of versions that are no longer used does not pile up."""

from __future__ import annotations

import os
import time
from pathlib import Path

import processor
from processor.kernel import cache_name
from processor.warmup import KEEP_UNUSED, forget_unused

OURS = cache_name(Path(processor.__file__).parent)


def caches(root: Path, ours: str) -> Path:
    """A cache folder beside others that were used a little less and a little more than a month ago."""
    for name, age in ((ours, 10 * KEEP_UNUSED), ("recent", KEEP_UNUSED - 60), ("old", KEEP_UNUSED + 60)):
        (root / name).mkdir()
        (root / name / "code.nbc").write_bytes(b"code")
        os.utime(root / name, (time.time() - age,) * 2)
    return root / ours


def test_what_nobody_used_for_a_month_is_removed_and_ours_counts_as_used(tmp_path: Path) -> None:
    forget_unused(caches(tmp_path, OURS))
    assert {path.name for path in tmp_path.iterdir()} == {OURS, "recent"}
    assert time.time() - (tmp_path / OURS).stat().st_mtime < 60


def test_a_cache_folder_that_somebody_else_named_has_neighbours_that_are_left_alone(tmp_path: Path) -> None:
    forget_unused(caches(tmp_path, "numba-cache"))
    assert {path.name for path in tmp_path.iterdir()} == {"numba-cache", "recent", "old"}


def test_a_cache_that_is_not_there_is_no_trouble(tmp_path: Path) -> None:
    forget_unused(tmp_path / OURS)
