"""Readiness: red until every source is known to be within `--max-lag` of the end; unknown is not zero."""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from processor.housekeeping import Housekeeper
from processor.ingest.source import PartitionStatus, ReplayCapability, SourceStatus
from processor.readiness import told_range
from processor.service import CheckpointError, Config, Service
from tests.producer.disk import files_limited_to

MAX_LAG = 5.0


class StandIn:
    """A source that reads nothing and says what the test tells it to."""

    def __init__(self) -> None:
        self.lag: float | None = 0.0
        self.trouble: str | None = None
        self.end: int | None = 7

    def start(self) -> None:
        """Nothing to begin."""

    def stop(self) -> None:
        """Nothing to end."""

    def watermark(self) -> float:
        return 0.0

    def status(self) -> SourceStatus:
        partition = PartitionStatus(0, 3, self.end, None if self.end is None else self.end - 3)
        return SourceStatus("stand-in", ReplayCapability.SEEKABLE, [partition], self.lag, error=self.trouble)


@pytest.fixture
def source() -> StandIn:
    return StandIn()


@pytest.fixture
def service(source: StandIn) -> Iterator[Service]:
    running = Service(Config(chunk_size=4, max_chunks=4096, max_lag=MAX_LAG))
    running._sources = [source]
    running.start()
    yield running
    running.stop()


def scraped(service: Service) -> Callable[[str], float | None]:
    families = list(text_string_to_metric_families(service.scrape()[0].decode()))
    values = {sample.name: sample.value for family in families for sample in family.samples}
    return lambda name: values.get("blendstream_" + name)


@pytest.mark.parametrize("lag", [0.0, MAX_LAG])
def test_within_the_greatest_lag_it_is_ready(service: Service, source: StandIn, lag: float) -> None:
    source.lag = lag
    assert service.not_ready() == []
    assert scraped(service)("ready") == 1
    assert scraped(service)("consumer_lag_seconds") == lag


def test_further_behind_it_is_not_and_says_how_far(service: Service, source: StandIn) -> None:
    source.lag = 7.25
    (reason,) = service.not_ready()
    assert "7.2 s behind the end, more than --max-lag 5" in reason
    assert scraped(service)("ready") == 0
    assert scraped(service)("consumer_lag_seconds") == 7.25


def test_a_lag_that_is_not_known_is_not_taken_for_none(service: Service, source: StandIn) -> None:
    assert (scraped(service)("consumer_lag"), scraped(service)("log_end")) == (4, 7)
    # The end that the broker told before it went away is nothing to go by.
    source.lag = None
    (reason,) = service.not_ready()
    assert "not known yet" in reason
    shown = scraped(service)
    assert (shown("ready"), shown("consumer_lag_seconds"), shown("consumer_lag")) == (0, None, None)
    assert (shown("consumer_position"), shown("log_end")) == (3, None)


def test_that_it_is_ready_and_is_not_any_more_is_logged_and_no_flapping(
    service: Service, source: StandIn, caplog: pytest.LogCaptureFixture
) -> None:
    def lines(wording: str) -> list[str]:
        return [record.getMessage() for record in caplog.records if record.getMessage().startswith(wording)]

    with caplog.at_level(logging.INFO, "processor.housekeeping"):
        keep = Housekeeper(
            service._gate,
            service._membership,
            [source],
            service.not_ready,
            list,
            clock=time.time,
            clock_skew=0.0,
        )._keep_house
        keep()
        assert len(lines("ready: ")) == 1
        source.trouble = "no broker can be reached"
        keep()
        assert lines("not ready any more: ") == ["not ready any more: stand-in: no broker can be reached"]
        source.trouble = None
        keep()
        assert len(lines("ready: ")) == 2
        source.trouble = "no broker can be reached"
        keep()
        source.trouble = None
        keep()
        assert (len(lines("ready: ")), len(lines("not ready any more: "))) == (2, 1)


@pytest.mark.parametrize(
    ("named", "told"),
    [
        ((None, None, None), "all that is lacking and may still come"),
        ((3, None, None), "batches from 1 on of incarnation 3"),
        ((None, 5, 9), "batches 5 to 9"),
        ((None, None, 9), "batches 1 to 9"),
    ],
)
def test_what_an_operator_named_is_told(named: tuple[int | None, int | None, int | None], told: str) -> None:
    assert told_range(*named) == told


def test_trouble_with_the_source_is_told_in_its_own_words(service: Service, source: StandIn) -> None:
    source.trouble = "no broker can be reached"
    (reason,) = service.not_ready()
    assert reason == "stand-in: no broker can be reached"


def test_one_source_that_lags_is_enough(service: Service, source: StandIn) -> None:
    service._sources = [StandIn(), source]
    source.lag = 60.0
    assert len(service.not_ready()) == 1
    source.lag = 0.0
    assert service.not_ready() == []


def test_a_checkpoint_that_fails_is_warned_of_until_the_next_one_succeeds(tmp_path: Path) -> None:
    service = Service(
        Config(chunk_size=4, max_chunks=4096, checkpoint_path=str(tmp_path), checkpoint_interval=0)
    )
    service.start()
    try:
        with files_limited_to(1_000), pytest.raises(CheckpointError):
            service.checkpoint().result(60)
        (warning,) = service.warnings()
        assert re.fullmatch("no checkpoint could be written yet: .*File too large.*", warning)
        assert service.not_ready() == []
        service.checkpoint().result(60)
        assert service.warnings() == []
        with files_limited_to(1_000), pytest.raises(CheckpointError):
            service.checkpoint().result(60)
        (warning,) = service.warnings()
        assert re.fullmatch(r"no checkpoint since [-0-9]{10} [:0-9]{8}: .*File too large.*", warning)
    finally:
        service.stop()
