"""Positions committed while a broker crashes, in a process that librdkafka could end, and while one hangs."""

from __future__ import annotations

import subprocess
import sys
import time
from itertools import islice
from pathlib import Path

import pytest

from deploy.broker import create_topic
from deploy.broker.kafka import KafkaBroker
from processor.ingest.kafka_settings import KafkaSettings
from processor.ingest.kafka_topic import TopicInspector
from tests.waiting import wait_for

COMMITTING = """
import itertools, sys
from processor.ingest.kafka_settings import KafkaSettings
from processor.ingest.kafka_topic import TopicInspector
inspector = TopicInspector(KafkaSettings(sys.argv[1], "events"))
for offset in itertools.count():
    print(inspector.commit({0: offset}, None, 1.0), flush=True)
"""
TIMEOUT = 60.0


@pytest.mark.needs("java")
def test_commits_are_refused_while_the_broker_is_down_and_taken_once_it_is_back() -> None:
    with KafkaBroker(settings={"broker.session.timeout.ms": "2000"}) as broker:
        create_topic(broker.bootstrap, "events")
        process = subprocess.Popen(
            [sys.executable, "-c", COMMITTING, broker.bootstrap],
            stdout=subprocess.PIPE,
            text=True,
            cwd=Path(__file__).parents[3],
        )
        assert process.stdout is not None
        deadline = time.monotonic() + TIMEOUT
        try:
            answers = (line.strip() == "True" for line in process.stdout if time.monotonic() < deadline)
            assert len(list(islice(filter(None, answers), 20))) == 20
            broker.kill()
            refused = (taken for taken in answers if not taken)
            assert len(list(islice(refused, 2))) == 2
            broker.start()
            taken = list(islice(filter(None, answers), 20))
            assert len(taken) == 20, f"the process ended with status {process.poll()}"
        finally:
            process.kill()
            process.stdout.close()
            process.wait()


@pytest.mark.needs("java")
def test_a_commit_that_a_hanging_broker_does_not_answer_does_not_hold_up_the_close() -> None:
    with KafkaBroker() as broker:
        create_topic(broker.bootstrap, "events")
        inspector = TopicInspector(KafkaSettings(broker.bootstrap, "events"))
        wait_for(lambda: inspector.commit({0: 0}, None, 5.0), 30, "the group's coordinator")
        broker.pause()
        assert not inspector.commit({0: 0}, None, 0.5)
        began = time.monotonic()
        inspector.close()
        assert time.monotonic() - began < 5.0
        broker.resume()
