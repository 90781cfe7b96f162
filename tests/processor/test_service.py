from __future__ import annotations

import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from processor.ingest.kafka_source import KafkaEventSource
from processor.offline import inspect_checkpoints
from processor.service import Config, Phase, Service, StartAbandoned, UnknownStream
from producer.events import CacheEventBatch, CacheEventEntry, EventType, ObjectKey, Tier
from producer.wire import encode_columns
from tests.waiting import wait_for

KEY = ObjectKey(b"\xab" * 32, "m", 1 << 24)


def make_service(**settings: Any) -> Service:
    return Service(Config(**{"chunk_size": 4, "max_chunks": 4096, **settings}))


@pytest.fixture
def service() -> Iterator[Service]:
    running = make_service(clock_skew=0.0)
    running.start()
    yield running
    running.stop()


def push(service: Service, *batches: CacheEventBatch) -> None:
    service.push(encode_columns(batches))


def batch(event_type: EventType, seq: int, *, shared: bool = False, ts: float = 1.0) -> CacheEventBatch:
    tier = Tier.L2 if shared else Tier.L1
    return CacheEventBatch(
        "a", 1, seq, event_type, tier, "pool", [CacheEventEntry(KEY, 7)], shared=shared, ts=ts
    )


def metric(service: Service, name: str) -> float:
    families = text_string_to_metric_families(service.scrape()[0].decode())
    return next(s.value for family in families for s in family.samples if s.name == name)


def test_housekeeping_forgets_deletes_in_a_shared_pool_once_nothing_older_can_come(service: Service) -> None:
    push(service, batch(EventType.STORE, 1, shared=True), batch(EventType.DELETE, 2, shared=True, ts=2.0))
    wait_for(lambda: metric(service, "blendstream_directory_tombstones") == 0)
    assert service.lookup([KEY])[0].placements == []


def test_a_tombstone_waits_while_a_stream_has_an_open_range(service: Service) -> None:
    push(service, batch(EventType.DELETE, 2, shared=True, ts=2.0))
    push(service, batch(EventType.STORE, 1, shared=True))
    assert service.lookup([KEY])[0].placements == []
    assert not service.stream("a").gap_detected


def test_a_service_is_ready_between_its_start_and_its_stop() -> None:
    service = make_service()
    assert (service.phase, service.not_ready()) == (Phase.NEW, ["starting"])
    service.start()
    assert (service.phase, service.not_ready()) == (Phase.RUNNING, [])
    service.stop()
    service.stop()
    assert (service.phase, service.not_ready()) == (Phase.ENDED, ["ended"])


def test_a_start_that_is_held_up_tells_where_and_ends_when_told_to(tmp_path: Path) -> None:
    """What holds it up is a disk that does not answer: a manifest that is a pipe nobody writes into."""
    settings = {"checkpoint_path": str(tmp_path), "checkpoint_interval": 0.0}
    written = make_service(**settings)
    written.start()
    push(written, batch(EventType.STORE, 1))
    written.stop()
    manifest = tmp_path / "checkpoint-1" / "manifest.json"
    text = manifest.read_bytes()
    manifest.unlink()
    os.mkfifo(manifest)
    service = make_service(**settings)
    with ThreadPoolExecutor(1) as pool:
        start = pool.submit(service.start)
        wait_for(lambda: service.phase is Phase.RESTORING, 60)
        assert service.not_ready() == ["starting: restoring a checkpoint"]
        assert service.warnings() == []
        assert metric(service, "blendstream_ready") == 0
        service.stop()
        assert service.phase is Phase.ENDED
        manifest.write_bytes(text)
        with pytest.raises(StartAbandoned):
            start.result(60)
    service.stop()
    assert sorted(path.name for path in tmp_path.glob("*-*")) == ["checkpoint-1", "checkpoint-2"]


def test_a_service_that_was_never_started_can_be_stopped() -> None:
    make_service().stop()
    make_service(event_transport="kafka", kafka_bootstrap_servers="127.0.0.1:1").stop()


def test_a_stopped_service_still_answers(service: Service) -> None:
    push(service, batch(EventType.STORE, 1))
    service.stop()
    assert len(service.lookup([KEY])[0].placements) == 1
    assert service.streams()[0].last_seq == 1


def test_an_unknown_instance_is_told_apart_from_one_without_a_gap(service: Service) -> None:
    for ask in (service.stream, service.reset, lambda name: service.accept_loss(name, None, None, None)):
        with pytest.raises(UnknownStream):
            ask("nobody")
    service.drop_instance("nobody")


def test_a_departed_instance_that_comes_back_starts_afresh(service: Service) -> None:
    push(service, batch(EventType.STORE, 1))
    service.drop_instance("a")
    assert service.lookup([KEY])[0].placements == []
    push(service, batch(EventType.STORE, 1))
    assert service.stream("a").epoch == 2
    assert len(service.lookup([KEY])[0].placements) == 1


def test_a_departure_without_a_broker_is_still_to_be_marked_after_a_restart(tmp_path: Path) -> None:
    for restarted in (False, True):
        service = make_service(
            event_transport="kafka", kafka_bootstrap_servers="127.0.0.1:1", checkpoint_path=str(tmp_path)
        )
        service.start()
        if not restarted:
            service.register("a", "10.0.0.1", 8000)
            service.register("b", "10.0.0.2", 8000)
            service.drop_instance("a")
        assert [instance.instance_id for instance in service.instances()] == ["b"]
        service.stop()
        assert inspect_checkpoints(tmp_path)[0].documents["membership"]["unmarked"] == ["a"]


def test_the_broker_is_let_go_of_after_the_last_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found: list[list[str]] = []
    close = KafkaEventSource.close

    def look_and_close(source: KafkaEventSource) -> None:
        found.append([path.name for path in tmp_path.glob("checkpoints/*/manifest.json")])
        close(source)

    monkeypatch.setattr(KafkaEventSource, "close", look_and_close)
    service = make_service(
        event_transport="kafka",
        kafka_bootstrap_servers="127.0.0.1:1",
        checkpoint_path=str(tmp_path / "checkpoints"),
    )
    service.start()
    service.stop()
    assert found == [["manifest.json"]]
