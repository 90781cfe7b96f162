"""The processor killed at random points, again and again, while a fleet goes on.

`BLENDSTREAM_CHAOS_ROUNDS` says how often; 30 by default.
"""

from __future__ import annotations

import random
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from api.client import Client
from processor.durability.inspection import inspect
from producer.sinks.kafka import KafkaSink
from tests.brokers import RunningBroker
from tests.chaos.fleet import CHUNK, ROUNDS, SEED, Fleet, check, progress
from tests.e2e.processes import Process, server
from tests.e2e.test_processor import kafka, metric, ready
from tests.waiting import wait_for


class Killer:
    """Kills a server at a moment of its own choice."""

    def __init__(self, seed: int, checkpoints: Path) -> None:
        self._random = random.Random(seed)
        self._checkpoints = checkpoints

    def choose(self) -> Callable[[Process, Client, Fleet], None]:
        return self._random.choice(
            [self.while_it_starts, self.while_it_writes, self.after_a_checkpoint, self.while_it_reads]
        )

    def while_it_starts(self, process: Process, client: Client, fleet: Fleet) -> None:
        """At once: it listens, and has hardly read anything."""

    def while_it_writes(self, process: Process, client: Client, fleet: Fleet) -> None:
        wait_for(lambda: self._names("writing-"), 60, "no checkpoint is begun")

    def after_a_checkpoint(self, process: Process, client: Client, fleet: Fleet) -> None:
        before = self._names("checkpoint-")
        wait_for(lambda: self._names("checkpoint-") - before, 60, "no checkpoint is finished")

    def while_it_reads(self, process: Process, client: Client, fleet: Fleet) -> None:
        goal = fleet.sent["a"] + self._random.randint(1, 100)
        wait_for(lambda: (progress(client) or {}).get("a", 0) >= goal, 60, "the stream is not read")

    def _names(self, prefix: str) -> set[str]:
        return {path.name for path in self._checkpoints.glob(f"{prefix}*")}


@pytest.mark.broker("kafka")
@pytest.mark.parametrize("topic", [4], indirect=True)
def test_whenever_it_is_killed_it_comes_back_to_what_the_model_says(
    kafka_broker: RunningBroker, topic: str, tmp_path: Path
) -> None:
    state = tmp_path / "state"
    arguments = [
        *("--event-transport", "kafka", *kafka(kafka_broker, topic), "--chunk-size", str(CHUNK)),
        *("--enable-blend-lookup", "--checkpoint-path", str(state), "--checkpoint-interval", "0.2"),
    ]
    fleet, killer = Fleet(KafkaSink(kafka_broker.bootstrap, topic)), Killer(SEED, state)
    fleet.start()
    restored = 0
    try:
        for round in range(ROUNDS):
            with server(*arguments) as (process, client):
                killer.choose()(process, client, fleet)
                process.process.send_signal(signal.SIGKILL)
                process.process.wait()
            restored += "restored" in "".join(process.lines)
            assert "damaged" not in "".join(process.lines), f"round {round}"
    finally:
        fleet.stop()
    assert fleet.refused == []
    assert restored >= ROUNDS // 2
    with server(*arguments) as (process, client):
        wait_for(lambda: ready(client), 60, "the server is ready")
        wait_for(lambda: progress(client) == fleet.sent, 60, "all is read")
        check(client, fleet.model)
        assert (metric(client, "blendstream_checkpoint_restore_seconds") or 0) < 1
        assert process.terminate() == 0
    current, _ = inspect(state)
    assert current.problems == []
    assert {s["instance_id"]: s["last_seq"] for s in current.documents["gate"]["streams"]} == fleet.sent
    with server(*arguments) as (process, client):
        wait_for(lambda: ready(client), 60, "the server is ready")
        check(client, fleet.model)
