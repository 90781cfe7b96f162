"""Lag and watermark: what is known of them, and when nothing is."""

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


def two_partitions_at_their_end() -> LogProgress:
    log = LogProgress()
    for partition in (0, 1):
        log.begin(partition, 7, 7, NOW)
        log.partitions[partition].hear_end(7, NOW)
    return log


def test_a_leader_that_is_silent_is_not_made_up_for_by_another() -> None:
    log, later = two_partitions_at_their_end(), NOW + END_KNOWN_FOR + 1
    assert (log.lag_seconds(NOW), log.caught_up(NOW), log.watermark()) == (0.0, True, NOW)
    log.partitions[0].hear_end(7, later)
    log.partitions[1].see_end(7)
    assert (log.lag_seconds(later), log.caught_up(later), log.watermark()) == (None, False, NOW)
    log.partitions[1].hear_end(7, later)
    assert (log.lag_seconds(later), log.caught_up(later), log.watermark()) == (0.0, True, later)


def test_once_touch_was_lost_every_partition_has_to_be_heard_again() -> None:
    log = two_partitions_at_their_end()
    log.lose_touch()
    log.partitions[0].hear_end(7, NOW + 1)
    assert (log.lag_seconds(NOW + 1), log.caught_up(NOW + 1)) == (None, False)
    log.partitions[1].hear_end(8, NOW + 1)
    assert (log.lag_seconds(NOW + 1), log.caught_up(NOW + 1)) == (1.0, False)


def test_what_was_read_up_to_a_moment_stays_read_when_more_comes() -> None:
    progress = reading(7, 7, read_time=NOW - 60)
    progress.see_end(9)
    assert progress.watermark == NOW


def test_a_log_that_was_cut_is_not_read_up_to_any_moment() -> None:
    log = two_partitions_at_their_end()
    log.jump(1, 3, 9, NOW)
    assert log.watermark() == 0.0
