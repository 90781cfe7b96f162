"""Events in request bodies."""

from __future__ import annotations

import pytest

from processor.ingest.broadcaster import Broadcaster
from processor.ingest.decode import DecodeError, Decoder
from processor.ingest.gate import EventGate
from processor.ingest.http_source import HttpEventSource
from processor.ingest.source import ReplayCapability
from producer.events import CacheEventBatch, EventType, Tier
from producer.wire import encode_rows
from tests.processor.ingest.recorder import Recorder


def body(*seqs: int) -> bytes:
    return encode_rows([CacheEventBatch("server-1", 1, seq, EventType.ACCESS, Tier.L1, "") for seq in seqs])


@pytest.fixture
def recorder() -> Recorder:
    return Recorder()


@pytest.fixture
def source(recorder: Recorder) -> HttpEventSource:
    gate = EventGate(Broadcaster([recorder]), seekable=False)
    return HttpEventSource(gate, Decoder(256), clock=lambda: 77.0)


def test_the_batches_of_a_body_are_offered_in_order(source: HttpEventSource, recorder: Recorder) -> None:
    summary = source.ingest(body(1, 2, 4, 3, 3), now=5.0)
    assert (summary.applied, summary.duplicates, summary.stale) == (4, 1, 0)
    assert recorder.seqs == [1, 2, 4, 3]
    assert {admission.batch.event_time for admission in recorder.admissions} == {5.0}


def test_one_bad_batch_refuses_the_whole_body(source: HttpEventSource, recorder: Recorder) -> None:
    with pytest.raises(DecodeError):
        source.ingest(body(1, 2)[:-2] + b',{"seq": 3}]}', now=5.0)
    assert recorder.seqs == []


def test_it_is_always_caught_up_and_cannot_be_read_again(source: HttpEventSource) -> None:
    source.start()
    status = source.status()
    assert (status.name, status.capability, status.lag_seconds) == ("http", ReplayCapability.NONE, 0.0)
    assert source.watermark() == 77.0
    source.stop()
