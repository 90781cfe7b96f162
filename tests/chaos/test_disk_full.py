"""A disk that is really full: under checkpoints while a fleet goes on, and under an emitter's spool."""

from __future__ import annotations

import re
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from api.client import Client, ServerError
from deploy.broker import create_topic
from deploy.broker.kafka import KafkaBroker
from processor.durability.inspection import inspect
from producer.sinks.kafka import KafkaSink
from tests.brokers import RunningBroker
from tests.chaos.disks import BLOCK, SmallDisk, small_disk
from tests.chaos.fleet import Fleet, check, hearing, progress
from tests.chaos.spooling import INSTANCE, SpoolingEmitter, key, spooling
from tests.e2e.asking import metric, reading, ready
from tests.e2e.processes import Process, blendstream, run_to_its_end, serve_to_its_end, server
from tests.producer.topics import batches_in, records
from tests.waiting import wait_for

pytestmark = pytest.mark.needs("namespaces")

DISK = 8 * 2**20
NOT_WRITTEN = "no checkpoint was written, and those before stand: [Errno 28] No space left on device"


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
        arguments = hearing(kafka_broker.bootstrap, topic, disk.path / "state", 0.2)
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
            process.kill()
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
        arguments = hearing(kafka_broker.bootstrap, topic, disk.path / "state", 0.2)
        with server(*arguments, within=disk.within) as (process, client):
            wait_until_ready(client)
            fill_until_one_fails(disk, client)
            stands = finished(disk)
            process.signal(by)
            assert process.wait() == (0 if by is signal.SIGTERM else -by)
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


@pytest.fixture(scope="module")
def own_broker() -> Iterator[KafkaBroker]:
    """A broker of this module's own, to be away."""
    with KafkaBroker() as running:
        yield running


@pytest.fixture
def broker(own_broker: KafkaBroker) -> KafkaBroker:
    """That broker, running."""
    own_broker.start()
    return own_broker


def arrived(broker: KafkaBroker, topic: str) -> list[tuple[int, int]]:
    """The batches of a topic in order of their first arrival; readers drop a second one."""
    found = batches_in(records(broker.bootstrap, topic))
    return list(dict.fromkeys((one.incarnation, one.seq) for one in found))


def wait_until_delivered(emitter: SpoolingEmitter) -> None:
    wait_for(lambda: emitter.emit(0).spool.waiting == 0, 60, "everything is delivered")


@pytest.mark.needs("java")
def test_what_a_full_spool_refuses_is_a_hole_of_exactly_that_and_all_else_arrives_in_order(
    broker: KafkaBroker, tmp_path: Path
) -> None:
    create_topic(broker.bootstrap, "refusing")
    broker.stop()
    with small_disk(tmp_path / "disk", 2**20) as disk:
        spool = disk.path / "spool"
        with spooling(spool, broker.bootstrap, "refusing", 1, disk.within) as emitter:
            assert emitter.emit(20).spool.disk_errors == 0
            disk.fill()
            counters = emitter.emit(100)
            refused = counters.spool.refused
            assert 0 < refused < 100
            assert counters.spool.disk_errors > refused, "memory has held some"
            assert (counters.emitter.last_seq, counters.emitter.dropped) == (120, refused)
            disk.make_room()
            counters = emitter.emit(10)
            assert (counters.spool.refused, counters.spool.waiting) == (refused, 130 - refused)
            broker.start()
            wait_until_delivered(emitter)
            assert emitter.emit(5).emitter.last_seq == 135
            wait_until_delivered(emitter)
    hole = range(121 - refused, 121)
    taken = [seq for seq in range(1, 136) if seq not in hole]
    assert arrived(broker, "refusing") == [(1, seq) for seq in taken]
    with server(*reading(broker.bootstrap, "refusing")) as (_, client):
        wait_until_ready(client)
        wait_for(lambda: client.streams()[0].lost, 30, "the verdict")
        (stream,) = client.streams()
        assert (stream.last_seq, stream.missing) == (135, [])
        assert [(lost.first, lost.last) for lost in stream.lost] == [(hole[0], hole[-1])]
        assert metric(client, "blendstream_lost_batches", instance_id=INSTANCE) == refused
        found = client.lookup([key(1, seq) for seq in range(1, 136)])
        assert [seq for seq, one in enumerate(found, 1) if one.placements] == taken


@pytest.mark.needs("java")
def test_an_emitter_killed_on_a_full_disk_leaves_a_whole_spool_and_the_next_one_goes_on_there(
    broker: KafkaBroker, tmp_path: Path
) -> None:
    create_topic(broker.bootstrap, "killed")
    broker.stop()
    with small_disk(tmp_path / "disk", 2**20) as disk:
        spool = disk.path / "spool"
        with spooling(spool, broker.bootstrap, "killed", 1, disk.within) as emitter:
            on_disk = emitter.emit(20).spool.waiting
            disk.fill()
            assert emitter.emit(100).spool.refused > 0
            # Killed in the middle of writes that fail.
            emitter.ask(*[20] * 100)
            emitter.answer()
        with spooling(spool, broker.bootstrap, "killed", 2, disk.within) as emitter:
            counters = emitter.emit(10)
            assert counters.spool.inherited >= on_disk
            assert counters.emitter.dropped == 0, "what the disk does not take waits in memory"
            broker.start()
            wait_until_delivered(emitter)
            # The disk is full still, but what was on it has gone.
            assert disk.free() > 0
            assert emitter.emit(10).emitter.dropped == 0
            wait_until_delivered(emitter)
    found = arrived(broker, "killed")
    left = [seq for incarnation, seq in found if incarnation == 1]
    assert left == list(range(1, len(left) + 1))
    assert len(left) >= on_disk
    assert found == [*((1, seq) for seq in left), *((2, seq) for seq in range(1, 21))]


def test_emit_says_how_many_batches_a_full_disk_has_cost(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", 2**20) as disk:
        command = ["emit", "--synthetic", "1000", "--chunks", "64"]
        where = ["--spool", str(disk.path / "spool"), "--kafka-bootstrap-servers", "127.0.0.1:1"]
        done = run_to_its_end(*command, *where, within=disk.within)
    assert done.returncode == 1
    *_, told = done.stderr.splitlines()
    refused = re.search(r"did not take (\d+) of 64 batches: .*No space left on device", told)
    lost = re.search(r"save (\d+) batches in memory, which its disk did not take", told)
    assert refused and 0 < int(refused[1]) <= 64
    assert lost and int(lost[1]) > 300, "the memory that batches may take is 32 MiB"
    assert "Traceback" not in done.stderr
