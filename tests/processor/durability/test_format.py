"""A checkpoint kept from each version of the format is restored by every later one."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest

from processor.durability.manifest import FORMAT, READABLE
from processor.state.directory import KeyDirectory
from producer.events import Namespace, ObjectKey, Tier, make_kv_rank
from tests.processor.durability.keeping import Kept, answers

FORMATS = (1, 2)
"""A folder each. Two chunks of `a` and `b`, one of them shared and deleted again; batch 2 of `a` missing."""
TEXT = np.arange(8, dtype=np.uint32)
RANK = make_kv_rank(1, 0, 1, 0)


def test_there_is_one_of_every_format_that_can_be_read() -> None:
    assert FORMATS == READABLE
    assert FORMATS[-1] == FORMAT


@pytest.mark.usefixtures("way_of_restoring")
@pytest.mark.parametrize("version", FORMATS)
def test_the_checkpoint_is_restored(version: int, tmp_path: Path) -> None:
    shutil.copytree(Path(__file__).parent / f"format-{version}", tmp_path / "checkpoint-1")
    kept = Kept(tmp_path, KeyDirectory(chunk_size=4, max_chunks=1000))
    assert kept.restored.manifest is not None
    assert kept.restored.manifest.format == version
    assert kept.restored.manifest.version == "0.1.0"
    keys = [ObjectKey(digest * 32, "model", RANK, 0, "salt") for digest in (b"\1", b"\2", b"\3")]
    first, second, third = kept.held.lookup(keys)
    assert [(p.instance_id, p.tier, p.backend, p.size_bytes) for p in first.placements] == [
        ("a", Tier.L1, "dram", 100),
        ("b", Tier.L2, "disk", 100),
    ]
    assert first.token_ids.tolist() == [0, 1, 2, 3]
    assert second.token_ids.tolist() == [4, 5, 6, 7]
    assert third.placements == []
    found = kept.held.match(TEXT, Namespace("model", "salt", 1))
    assert [(match.chunk_hash[:1], match.old_st, match.cur_st) for match in found] == [
        (b"\1", 0, 0),
        (b"\2", 4, 4),
    ]
    assert kept.held.stats().num_tombstones == 1
    stream = kept.gate.stream("a")
    assert stream is not None
    assert (stream.last_seq, stream.missing) == (3, [(2, 2)])
    kept.write()
    kept.close()
    again = Kept(tmp_path, KeyDirectory(chunk_size=4, max_chunks=1000))
    assert again.restored.manifest is not None
    assert again.restored.manifest.format == FORMAT
    assert answers(again.held) == answers(kept.held)
    again.close()
