"""The broker stopped, killed, frozen and started again under load: all come through, and nothing is missing.

The emitters and the processor are processes of their own, before an Apache Kafka that is this module's own.
Outages last seconds in the short form, and more than a minute in the long one.
"""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from api.client import Client
from deploy.broker import create_topic
from deploy.broker.kafka import KafkaBroker
from producer.events import CacheEventBatch
from producer.spool.log import SpoolLog
from tests.chaos.emitting import Emitter, emitters
from tests.chaos.fleet import (
    CHUNK,
    ROUNDS,
    SEED,
    check,
    check_answers,
    check_flags,
    hearing,
    listen,
    progress,
)
from tests.chaos.watching import Watch
from tests.e2e.asking import metric, ready
from tests.e2e.processes import Process, server
from tests.model.directory import Directory
from tests.producer.topics import batches_in, records
from tests.waiting import wait_for

pytestmark = pytest.mark.needs("java")

OUTAGE = 5.0 if ROUNDS <= 30 else 70.0
"""Seconds without a broker at least; in the long form, longer than clients wait for an answer (a minute)."""
RESTARTS = ROUNDS // 10
GROWN = 50
"""Batches that wait in a spool when an outage has been noticed."""

Name = tuple[int, int]
"""Incarnation and seq of a batch."""


@pytest.fixture(scope="module")
def own_broker() -> Iterator[KafkaBroker]:
    # By default a node that crashed waits nine seconds for the session of its former self to run out.
    with KafkaBroker(settings={"broker.session.timeout.ms": "2000"}) as running:
        yield running


@pytest.fixture
def broker(own_broker: KafkaBroker) -> Iterator[KafkaBroker]:
    """A broker to be stopped, running before the test and after it."""
    yield own_broker
    own_broker.resume()
    own_broker.start()


@dataclass
class Chain:
    """Emitters, a broker and a processor, all at work, and someone who watches the processor."""

    broker: KafkaBroker
    topic: str
    emitters: list[Emitter]
    process: Process
    client: Client
    watch: Watch

    def flows(self) -> None:
        """Wait until batches go through from end to end: of each emitter, some made from now on."""
        goals = {emitter.instance: last_name(emitter) for emitter in self.emitters}
        wait_for(
            lambda: all(self._read()[instance] > goal for instance, goal in goals.items()),
            60,
            "new batches are read",
        )

    def endure(self, began: float) -> None:
        """Wait until all have noticed the outage and it has lasted; answers stay what they were."""
        wait_for(lambda: all(one.report.spool.waiting > GROWN for one in self.emitters), 30, "spools grow")
        wait_for(lambda: not self.watch.ready, 30, "the processor says that it is not up to date")
        wait_for(self._answers_stand, 30, "the stream stands still")
        wait_for(lambda: time.monotonic() > began + OUTAGE, OUTAGE + 1)
        assert self._answers_stand()
        check_flags(self.client)

    def recover(self) -> None:
        """Wait until the processor says that it is up to date, and batches flow again."""
        wait_for(lambda: ready(self.client), 60, "the server is ready again")
        self.flows()

    def conclude(self) -> list[CacheEventBatch]:
        """End the load and check everything; all batches in the order in which they arrived."""
        for emitter in self.emitters:
            assert emitter.running
            report = emitter.end()
            spool = report.spool
            assert (spool.waiting, spool.refused, spool.rejected, spool.damaged) == (0, 0, 0, 0)
            assert (report.emitter.dropped, report.emitter.refused, report.emitter.unbound) == (0, 0, 0)
            assert is_empty(emitter.spool)
        arrived = batches_in(records(self.broker.bootstrap, self.topic))
        for emitter in self.emitters:
            check_order(emitter, arrived)
        ends = {emitter.instance: last_name(emitter) for emitter in self.emitters}
        wait_for(lambda: self._read() == ends, 60, "all is read")
        wait_for(lambda: self.watch.ready, 30, "the server is ready")
        check(self.client, model_of(arrived))
        assert metric(self.client, "blendstream_gaps_total") == 0
        for instance in ends:
            assert metric(self.client, "blendstream_gap_detected", instance_id=instance) == 0
        assert self.watch.complaints == []
        assert self.watch.reasons[0] == [], "it was ready before the broker went away"
        assert self.process.running
        return arrived

    def _read(self) -> dict[str, Name]:
        """The last batch that the processor has read of each stream."""
        return {s.instance_id: (s.incarnation, s.last_seq) for s in self.client.streams()}

    def _answers_stand(self) -> bool:
        """Whether the processor reads nothing now, and answers from exactly what it says it has read."""
        read = self._read()
        batches = [
            batch
            for emitter in self.emitters
            for batch in emitter.traced()
            if name(batch) <= read[emitter.instance]
        ]
        if not set(read.items()) <= {(batch.instance_id, name(batch)) for batch in batches}:
            return False  # it was faster than the trace
        try:
            check_answers(self.client, model_of(batches))
        except AssertionError:
            if self._read() == read:
                raise
        return self._read() == read


@contextmanager
def at_work(broker: KafkaBroker, topic: str, folder: Path) -> Iterator[Chain]:
    """Everything begun and flowing."""
    create_topic(broker.bootstrap, topic, partitions=4)
    with server(*hearing(broker.bootstrap, topic, folder / "state", 1)) as (process, client):
        with emitters(folder / "emitters", broker.bootstrap, topic) as fleet:
            wait_for(lambda: len(progress(client) or {}) == len(fleet), 60, "every emitter is heard")
            wait_for(lambda: ready(client), 60, "the server is ready")
            with Watch(client.url) as watch:
                chain = Chain(broker, topic, fleet, process, client, watch)
                chain.flows()
                yield chain
        assert process.terminate() == 0


def name(batch: CacheEventBatch) -> Name:
    return batch.incarnation, batch.seq


def last_name(emitter: Emitter) -> Name:
    return emitter.report.incarnation, emitter.report.emitter.last_seq


def is_empty(spool: Path) -> bool:
    log = SpoolLog(spool, 2**30)
    try:
        return log.next == log.first
    finally:
        log.close()


def model_of(batches: Iterable[CacheEventBatch]) -> Directory:
    model = Directory(CHUNK)
    listen(model, batches)
    return model


def check_order(emitter: Emitter, batches: list[CacheEventBatch]) -> None:
    """All that was spooled has arrived, in order. A second arrival is no news to anyone."""
    arrived = list(dict.fromkeys(name(batch) for batch in batches if batch.instance_id == emitter.instance))
    counts = Counter(incarnation for incarnation, _ in arrived)
    assert arrived == [(inc, seq) for inc in sorted(counts) for seq in range(1, counts[inc] + 1)]
    assert {name(batch) for batch in emitter.traced()} <= set(arrived)
    assert arrived[-1] == last_name(emitter)


def stop(broker: KafkaBroker) -> None:
    broker.stop()


def kill(broker: KafkaBroker) -> None:
    broker.kill()


def freeze(broker: KafkaBroker) -> None:
    broker.pause()


def bring_back(broker: KafkaBroker) -> None:
    broker.resume()
    broker.start()


@pytest.mark.parametrize("end", [kill, freeze])
def test_an_outage_of_the_broker_costs_no_batch_no_order_and_no_answer(
    broker: KafkaBroker, tmp_path: Path, end: Callable[[KafkaBroker], None]
) -> None:
    with at_work(broker, f"outage-{end.__name__}", tmp_path) as chain:
        began = time.monotonic()
        end(broker)
        chain.endure(began)
        bring_back(broker)
        chain.recover()
        chain.conclude()


def test_what_an_emitter_killed_in_an_outage_had_spooled_comes_first_and_its_next_incarnation_after(
    broker: KafkaBroker, tmp_path: Path
) -> None:
    with at_work(broker, "killed-emitter", tmp_path) as chain:
        victim = chain.emitters[0]
        before = victim.report.incarnation
        began = time.monotonic()
        stop(broker)
        chain.endure(began)
        victim.kill()
        victim.start()
        inherited = victim.report.spool.inherited
        assert inherited > GROWN
        wait_for(lambda: victim.report.spool.waiting > inherited + GROWN, 30, "the spool grows on")
        bring_back(broker)
        chain.recover()
        arrived = chain.conclude()
        incarnations = [batch.incarnation for batch in arrived if batch.instance_id == victim.instance]
        assert list(dict.fromkeys(incarnations)) == [before, victim.report.incarnation]
        assert metric(chain.client, "blendstream_fences_total") == 1


def test_a_broker_that_is_restarted_again_and_again_costs_nothing_either(
    broker: KafkaBroker, tmp_path: Path
) -> None:
    source = random.Random(SEED)
    with at_work(broker, "restarts", tmp_path) as chain:
        for _ in range(RESTARTS):
            source.choice([stop, kill])(broker)
            bring_back(broker)
            if source.random() < 0.5:
                # Otherwise the next restart meets them while they still recover.
                chain.recover()
        chain.recover()
        chain.conclude()
