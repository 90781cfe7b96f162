"""The processor killed at random points, again and again, while a fleet goes on.

`BLENDSTREAM_CHAOS_ROUNDS` says how often; 30 by default.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from signal import SIGKILL, SIGTERM

import pytest

from api.client import Client
from processor.durability.inspection import inspect
from producer.sinks.kafka import KafkaSink
from tests.brokers import RunningBroker
from tests.chaos.fleet import ROUNDS, SEED, Fleet, check, hearing, progress
from tests.e2e.asking import metric, ready
from tests.e2e.processes import START_TIMEOUT, Process, server, starting
from tests.waiting import wait_for

Moment = Callable[[Process, Client], bool]
"""Waits until a server that has begun to listen is there; whether it was caught in the act."""


class Killer:
    """Chooses the moments to kill a server at, each as often as the others.

    Attributes:
        caught: how often a server was killed in the very act that a moment is named after.
    """

    def __init__(self, seed: int, checkpoints: Path, fleet: Fleet) -> None:
        self.caught: Counter[str] = Counter()
        self._random = random.Random(seed)
        self._checkpoints = checkpoints
        self._fleet = fleet
        self.moments: tuple[Moment, ...] = (
            self.while_kernels_load,
            self.while_it_restores,
            self.once_it_serves,
            self.while_it_reads,
            self.while_it_writes,
            self.after_a_checkpoint,
            self.while_it_ends,
        )

    def choose(self) -> Iterator[Moment]:
        yield self.after_a_checkpoint  # so that there is something to restore
        while True:
            yield from self._random.sample(self.moments, len(self.moments))

    def kill(self, moment: Moment, process: Process, client: Client) -> None:
        caught = moment(process, client)
        # One that was faster has ended by itself.
        self.caught[moment.__name__] += process.kill() == -SIGKILL and caught

    def while_kernels_load(self, process: Process, client: Client) -> bool:
        return not process.serves()

    def while_it_restores(self, process: Process, client: Client) -> bool:
        def seen() -> str:
            (reason, *_) = client.not_ready() or ["ready"]
            return "" if "kernels" in reason or reason == "starting" else reason

        return "restoring" in wait_for(seen, START_TIMEOUT, "it restores", interval=0)

    def once_it_serves(self, process: Process, client: Client) -> bool:
        return wait_for(process.serves, START_TIMEOUT, "the server serves")

    def while_it_reads(self, process: Process, client: Client) -> bool:
        self.once_it_serves(process, client)
        goal = self._fleet.sent["a"] + self._random.randint(1, 100)
        return wait_for(lambda: (progress(client) or {}).get("a", 0) >= goal, 60, "the stream is read")

    def while_it_writes(self, process: Process, client: Client) -> bool:
        self.once_it_serves(process, client)
        return bool(wait_for(lambda: self._names("writing-"), 60, "a checkpoint is begun", interval=0))

    def after_a_checkpoint(self, process: Process, client: Client) -> bool:
        self.once_it_serves(process, client)
        before = self._names("checkpoint-")
        return bool(wait_for(lambda: self._names("checkpoint-") - before, 60, "a checkpoint is finished"))

    def while_it_ends(self, process: Process, client: Client) -> bool:
        """It has been told to end, answers no more and writes its last checkpoint."""
        self.while_it_reads(process, client)
        process.signal(SIGTERM)
        wait_for(lambda: "Finished server process" in "".join(process.lines), 20, "it ends")
        before = self._names("writing-")
        return bool(
            wait_for(
                lambda: self._names("writing-") - before or not process.running,
                20,
                "it writes its last checkpoint",
                interval=0,
            )
        )

    def _names(self, prefix: str) -> set[str]:
        return {path.name for path in self._checkpoints.glob(f"{prefix}*")}


@pytest.mark.broker("kafka")
@pytest.mark.parametrize("topic", [4], indirect=True)
def test_whenever_it_is_killed_it_comes_back_to_what_the_model_says(
    kafka_broker: RunningBroker, topic: str, tmp_path: Path
) -> None:
    state = tmp_path / "state"
    arguments = hearing(kafka_broker.bootstrap, topic, state, 0.2)
    fleet = Fleet(KafkaSink(kafka_broker.bootstrap, topic))
    killer = Killer(SEED, state, fleet)
    fleet.start()
    try:
        for number, moment in zip(range(ROUNDS), killer.choose(), strict=False):
            with starting(*arguments) as (process, client):
                killer.kill(moment, process, client)
            said = "".join(process.lines)
            assert "damaged" not in said, f"round {number}"
            assert number == 0 or not process.serves() or "restored" in said, f"round {number}"
    finally:
        fleet.stop()
    assert fleet.refused == []
    if len(killer.moments) <= ROUNDS:
        assert (+killer.caught).keys() == {moment.__name__ for moment in killer.moments}
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
