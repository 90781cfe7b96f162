from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

from processor.batch import Admission, BatchColumns, EventBatch
from processor.meters import Histogram, Meter
from processor.metrics import TABLE
from producer.events import EventType, Tier

PAGE = Path(__file__).parents[2] / "docs" / "metrics.md"


def stored(*lengths: int, ts: float = 0.0, dropped: int = 0) -> Admission:
    starts = np.concatenate(([0], np.cumsum(lengths))).astype(np.int64)
    columns = BatchColumns(
        token_starts=starts, tokens=np.zeros(sum(lengths), np.uint32), tokens_dropped=dropped
    )
    return Admission(EventBatch("a", 1, 1, EventType.STORE, Tier.L1, "dram", ts=ts, columns=columns), 1)


def test_the_page_on_metrics_has_every_metric_with_its_type_labels_and_meaning() -> None:
    rows = re.findall(r"^\| `(\w+)` \| (\w+) \| (.*?) ?\| (.+) \|$", PAGE.read_text(), re.MULTILINE)
    page = {
        name: (kind, tuple(re.findall(r"`(\w+)`", labels)), meaning) for name, kind, labels, meaning in rows
    }
    assert page == {name: (kind.type, kind.labels, kind.help.rstrip(".")) for name, kind in TABLE.items()}


def test_a_histogram_counts_cumulatively_and_a_bound_counts_its_own_value() -> None:
    histogram = Histogram((1.0, 2.0))
    for value in (0.5, 1.0, 1.5, 9.0):
        histogram.observe(value)
    assert histogram.buckets() == ([("1.0", 2.0), ("2.0", 3.0), ("+Inf", 4.0)], 12.0)


def test_the_age_of_a_batch_runs_from_its_emitters_clock_and_is_never_negative() -> None:
    meter = Meter(4, clock=lambda: 100.0)
    for ts in (97.0, 105.0, 0.0):
        meter.consume(stored(4, ts=ts))
    buckets, total = meter.ages.buckets()
    assert buckets[-1][1] == 2
    assert total == pytest.approx(3.0)


def test_contents_of_another_length_than_the_fleets_are_counted_and_raise_doubt_if_they_prevail() -> None:
    meter = Meter(4)
    meter.consume(stored(4, 0, 8))
    assert (meter.fitting, meter.unfitting, meter.unfitting_length) == (1, 1, 8)
    assert not meter.chunk_size_in_doubt()
    meter.consume(stored(8))
    assert meter.chunk_size_in_doubt()


def test_contents_that_the_decoder_left_out_are_counted() -> None:
    meter = Meter(4)
    meter.consume(stored(0, 0, dropped=2))
    assert (meter.tokens_dropped, meter.unfitting) == (2, 0)
