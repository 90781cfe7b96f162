"""The lag in seconds: what is known of it, and when nothing is."""

from __future__ import annotations

from processor.ingest.progress import END_KNOWN_FOR, LogProgress, PartitionProgress

NOW = 1_700_000_000.0


def reading(position: int, end: int, *, read_time: float = 0.0) -> PartitionProgress:
    progress = PartitionProgress(0, position, read_time=read_time)
    progress.hear_end(end, NOW)
    return progress


def test_at_the_end_there_is_no_lag() -> None:
    assert reading(7, 7).lag_seconds(NOW) == 0.0


def test_behind_the_end_the_next_record_is_as_old_as_the_last_one_at_most() -> None:
    assert reading(3, 7, read_time=NOW - 60).lag_seconds(NOW) == 60.0


def test_before_the_first_record_the_lag_is_not_known() -> None:
    assert reading(3, 7).lag_seconds(NOW) is None


def test_an_end_that_was_never_heard_of_leaves_the_lag_unknown() -> None:
    assert PartitionProgress(0, 3, read_time=NOW).lag_seconds(NOW) is None


def test_the_first_record_after_an_idle_hour_is_not_an_hour_old() -> None:
    progress = reading(7, 7, read_time=NOW - 3600)
    progress.hear_end(8, NOW + 0.25)
    assert progress.lag_seconds(NOW + 0.25) == 0.25


def test_a_reader_that_is_stuck_does_not_pass_for_one_at_the_end() -> None:
    progress = reading(7, 7, read_time=NOW)
    assert progress.lag_seconds(NOW + END_KNOWN_FOR) == 0.0
    assert progress.lag_seconds(NOW + END_KNOWN_FOR + 1) is None


def test_an_end_that_was_heard_of_does_not_move_back() -> None:
    progress = reading(3, 7)
    progress.hear_end(5, NOW)
    assert progress.end == 7


def test_a_topic_lags_as_its_worst_partition_and_is_unknown_if_one_is() -> None:
    log = LogProgress()
    assert log.lag_seconds(NOW) is None
    log.begin(0, 0, 0, NOW)
    log.begin(1, 0, 5, NOW)
    assert log.lag_seconds(NOW) is None
    log.partitions[1].read_time = NOW - 3
    assert log.lag_seconds(NOW) == 3.0
