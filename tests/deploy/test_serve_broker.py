"""A broker in the foreground, run as the command runs it: in a process of its own, ended by a signal."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest

from deploy.broker import BrokerError, EmbeddedBroker
from deploy.broker.broker import port_is_free
from tests.waiting import wait_for

SERVE = """
import sys
from deploy.broker import serve_broker
serve_broker(sys.argv[1], say=lambda text: print(text, flush=True))
"""


@contextmanager
def serving(kind: str) -> Iterator[tuple[subprocess.Popen[str], int]]:
    """The process and the port that it announced."""
    process = subprocess.Popen(
        [sys.executable, "-c", SERVE, kind], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    announced = re.fullmatch(rf"{kind} broker ready at 127\.0\.0\.1:(\d+)\n", process.stdout.readline())
    assert announced, process.communicate(timeout=30)
    try:
        yield process, int(announced[1])
    finally:
        process.kill()
        process.communicate()


@pytest.mark.parametrize(
    ("kind", "request_to_stop"),
    [
        pytest.param("embedded", signal.SIGINT, marks=pytest.mark.needs("embedded")),
        pytest.param("embedded", signal.SIGTERM, marks=pytest.mark.needs("embedded")),
        pytest.param("kafka", signal.SIGTERM, marks=pytest.mark.needs("java")),
    ],
)
def test_a_signal_ends_the_broker_and_the_command_with_status_0(
    kind: str, request_to_stop: signal.Signals
) -> None:
    with serving(kind) as (process, port):
        assert not port_is_free(port)
        process.send_signal(request_to_stop)
        output, errors = process.communicate(timeout=30)
        assert (process.returncode, output) == (0, f"{kind} broker stopping\n")
        assert "Traceback" not in errors
        assert port_is_free(port)


@pytest.mark.needs("embedded")
def test_a_command_that_is_killed_takes_its_broker_along() -> None:
    with serving("embedded") as (process, port):
        process.kill()
        wait_for(lambda: port_is_free(port), timeout=20, what="the end of the broker")


@pytest.mark.needs("embedded")
def test_a_broker_outlives_the_thread_that_started_it() -> None:
    broker = EmbeddedBroker()
    with ThreadPoolExecutor(1) as executor:
        executor.submit(broker.start).result()
    with broker:
        assert broker.alive()


@pytest.mark.needs("embedded")
def test_the_command_fails_when_its_broker_ends_by_itself() -> None:
    with serving("embedded") as (process, _):
        tasks = Path(f"/proc/{process.pid}/task").iterdir()
        (child,) = (int(pid) for task in tasks for pid in (task / "children").read_text().split())
        os.kill(child, signal.SIGKILL)
        wait_for(lambda: process.poll() is not None, what="the end of the command")
        assert process.returncode != 0
        assert "the embedded broker ended by itself" in process.communicate()[1]


@pytest.mark.parametrize("port", [-1, 65536])
def test_a_port_that_cannot_be_is_refused(port: int) -> None:
    with pytest.raises(BrokerError, match=f"port must be from 0 to 65535, got {port}"):
        EmbeddedBroker(port)
