"""A disk that is really full: under checkpoints while a fleet goes on, and under an emitter's spool."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from api.client import Client, ServerError
from processor.durability.inspection import inspect
from producer.sinks.kafka import KafkaSink
from tests.brokers import RunningBroker
from tests.chaos.disks import BLOCK, SmallDisk, small_disk
from tests.chaos.fleet import CHUNK, Fleet, check, progress
from tests.e2e.processes import STOP_TIMEOUT, Process, blendstream, server
from tests.e2e.test_processor import kafka, metric, ready, serve_to_its_end
from tests.waiting import wait_for

pytestmark = pytest.mark.needs("namespaces")

DISK = 8 * 2**20
NOT_WRITTEN = "no checkpoint was written, and those before stand: [Errno 28] No space left on device"


def keeping(broker: RunningBroker, topic: str, disk: SmallDisk) -> list[str]:
    return [
        *("--event-transport", "kafka", *kafka(broker, topic), "--chunk-size", str(CHUNK)),
        *("--enable-blend-lookup", "--checkpoint-path", str(disk.path / "state")),
        *("--checkpoint-interval", "0.2"),
    ]


@contextmanager
def load(broker: RunningBroker, topic: str) -> Iterator[Fleet]:
    """A fleet that runs until it is stopped."""
    fleet = Fleet(KafkaSink(broker.bootstrap, topic))
    fleet.start()
    try:
        yield fleet
    finally:
        if fleet.is_alive():
            fleet.stop()


def wait_until_ready(client: Client) -> None:
    wait_for(lambda: ready(client), 60, "the server is ready")


def wait_until_read(client: Client, fleet: Fleet) -> None:
    wait_for(lambda: progress(client) == fleet.sent, 60, "all is read")


def count(client: Client, what: str) -> int:
    return int(metric(client, f"blendstream_checkpoint_{what}_total") or 0)


def names(disk: SmallDisk) -> set[str]:
    return {path.name for path in (disk.seen / "state").iterdir()}


def finished(disk: SmallDisk) -> set[str]:
    return {name for name in names(disk) if name.startswith("checkpoint-")}


def fill_until_one_fails(disk: SmallDisk, client: Client) -> int:
    """Leave room for half a checkpoint, so that the next one fails half-way; the bytes left."""
    wait_for(lambda: count(client, "successes") > 2, 60, "checkpoints are written")
    leave = int(metric(client, "blendstream_checkpoint_bytes") or 0) // 2 // BLOCK * BLOCK
    failures = count(client, "failures")

    def failed() -> bool:
        disk.fill(leave)
        return count(client, "failures") > failures

    wait_for(failed, 60, "a checkpoint fails")
    return leave


def said(process: Process, what: str) -> int:
    return sum(what in line for line in process.lines)


@pytest.mark.broker("kafka")
def test_while_no_checkpoint_can_be_written_the_stream_goes_on_and_the_one_before_stands(
    kafka_broker: RunningBroker, topic: str, tmp_path: Path
) -> None:
    with small_disk(tmp_path / "disk", DISK) as disk, load(kafka_broker, topic) as fleet:
        arguments = keeping(kafka_broker, topic, disk)
        with server(*arguments, within=disk.within) as (process, client):
            wait_until_ready(client)
            room = fill_until_one_fails(disk, client)
            stands, read = finished(disk), fleet.sent["a"]
            failures = count(client, "failures")
            wait_for(lambda: count(client, "failures") >= failures + 5, 60, "it is tried again and again")
            wait_for(lambda: (progress(client) or {})["a"] > read + 50, 60, "the stream is read meanwhile")
            with pytest.raises(ServerError, match="No space left on device"):
                client.checkpoint()
            fleet.stop()
            wait_until_read(client, fleet)
            check(client, fleet.model)
            wait_for(lambda: names(disk) == {*stands, "lock"}, 10, "nothing of a failed attempt is left")
            wait_for(lambda: disk.free() >= room, 10, "the room is there again")
            blendstream("checkpoint", "inspect", str(disk.seen / "state"))
            successes = count(client, "successes")
            disk.make_room()
            wait_for(lambda: count(client, "successes") > successes + 1, 60, "checkpoints are written again")
            failures = count(client, "failures")
            wait_for(lambda: said(process, "ERROR") >= failures, 10, "the log")
            assert said(process, NOT_WRITTEN) == said(process, "ERROR") == failures
            process.process.send_signal(signal.SIGKILL)
            process.process.wait()
        with server(*arguments, within=disk.within) as (process, client):
            wait_until_ready(client)
            assert said(process, "restored")
            check(client, fleet.model)


@pytest.mark.broker("kafka")
@pytest.mark.parametrize("by", [signal.SIGTERM, signal.SIGKILL])
def test_one_that_ends_on_a_full_disk_goes_on_from_the_checkpoint_before(
    kafka_broker: RunningBroker, topic: str, tmp_path: Path, by: signal.Signals
) -> None:
    with small_disk(tmp_path / "disk", DISK) as disk, load(kafka_broker, topic) as fleet:
        arguments = keeping(kafka_broker, topic, disk)
        with server(*arguments, within=disk.within) as (process, client):
            wait_until_ready(client)
            fill_until_one_fails(disk, client)
            stands = finished(disk)
            process.process.send_signal(by)
            status = process.process.wait(STOP_TIMEOUT)
            assert status == (0 if by is signal.SIGTERM else -by)
            assert finished(disk) == stands
            current, before = inspect(disk.seen / "state")
            assert current.problems == before.problems == []
        with server(*arguments, within=disk.within) as (process, client):
            wait_until_ready(client)
            assert said(process, "restored")
            assert not said(process, "damaged")
            fleet.stop()
            wait_until_read(client, fleet)
            check(client, fleet.model)


def test_a_disk_that_takes_no_folder_is_told_of_at_the_start(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", DISK, names=1) as disk:
        refused = serve_to_its_end("--checkpoint-path", str(disk.path / "state"), within=disk.within)
    assert refused.returncode == 1
    assert f"cannot keep checkpoints in {disk.path}/state: No space left on device" in refused.stderr
    assert "Traceback" not in refused.stderr
