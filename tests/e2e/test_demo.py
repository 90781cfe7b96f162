"""`blendstream demo` as a user runs it: from the broker to the last answer, leaving nothing behind."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.waiting import wait_for

MARK = "DEMO_TEST_MARK"
QUICK = ("--requests", "40", "--seconds", "6")
DEADLINE = 240.0
"""Seconds a run may take on a machine that must compile the kernels first."""


class Run:
    """One demo in a process of its own; everything it starts carries the mark in its environment."""

    def __init__(self, folder: Path, *command: str, **environment: str) -> None:
        self.mark = uuid.uuid4().hex
        self.folder = folder
        self._output = folder.with_suffix(".out")
        with self._output.open("wb") as output:
            self.process = subprocess.Popen(
                command,
                stdout=output,
                stderr=output,
                env=os.environ | {MARK: self.mark, "TMPDIR": str(folder), "COLUMNS": "100"} | environment,
                start_new_session=True,
            )

    @property
    def output(self) -> str:
        """What it has printed so far."""
        return self._output.read_text()

    def wait(self) -> int:
        """Its exit status."""
        return self.process.wait(DEADLINE)

    def wait_for(self, text: str) -> None:
        """Until it has printed that."""
        wait_for(lambda: text in self.output or self.process.poll() is not None, DEADLINE, text)
        assert text in self.output, self.output

    def alive(self) -> list[str]:
        """The command line of every process that carries the mark."""
        found = []
        for entry in Path("/proc").glob("[0-9]*"):
            try:
                if self.mark.encode() in (entry / "environ").read_bytes():
                    found.append((entry / "cmdline").read_bytes().replace(b"\0", b" ").decode())
            except OSError:
                continue  # it has ended, or belongs to another user
        return [line for line in found if line]

    def must_end_completely(self) -> None:
        """Wait until no process carries the mark."""
        wait_for(lambda: not self.alive(), 60, "every process of the demo ends")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "tmp").mkdir()
    return tmp_path / "tmp"


@pytest.fixture
def runs() -> Iterator[list[Run]]:
    """Runs to be ended with the test, however it ends."""
    started: list[Run] = []
    yield started
    for run in started:
        if run.process.poll() is None:
            run.process.kill()
            run.process.wait()


def demo(folder: Path, *arguments: str, **environment: str) -> Run:
    return Run(folder, str(Path(sys.executable).with_name("blendstream")), "demo", *arguments, **environment)


def must_have_told_the_story(output: str) -> None:
    for line in (
        "0 wrong",
        "one batch gets lost",
        "gap_detected{instance_id='server-",
        "delivered late: gap_detected is 0 again",
        "and comes back empty",
        "entries, up to",
        "all right: ",
    ):
        assert line in output
    [anywhere, prefix] = re.findall(
        r"(\d+)% of [\d,]+ prompt tokens at any offset, (\d+)% by prefix", output
    )[0]
    assert int(anywhere) >= int(prefix) > 0


@pytest.mark.parametrize("kind", ["embedded", pytest.param("kafka", marks=pytest.mark.needs("java"))])
def test_the_demo_ends_well_on_either_broker_and_leaves_nothing_behind(
    kind: str, folder: Path, runs: list[Run]
) -> None:
    run = demo(folder, *QUICK, "--broker", kind)
    runs.append(run)
    assert run.wait() == 0, run.output
    must_have_told_the_story(run.output)
    assert run.alive() == []
    assert list(folder.iterdir()) == []


def test_a_block_trace_is_replayed(folder: Path, runs: list[Run], tmp_path: Path) -> None:
    trace = tmp_path / "trace.jsonl"
    rows = [
        {
            "timestamp": number * 100,
            "input_length": 2000,
            "output_length": 1,
            "hash_ids": [0, number % 5, 100 + number, 200 + number],
        }
        for number in range(60)
    ]
    trace.write_text("".join(json.dumps(row) + "\n" for row in rows))
    run = demo(folder, "--trace", str(trace), *QUICK)
    runs.append(run)
    assert run.wait() == 0, run.output
    assert "trace.jsonl, 40 prompts, 80,000 tokens" in run.output
    must_have_told_the_story(run.output)


def test_an_answer_that_differs_from_the_truth_fails_the_run_and_keeps_the_logs(
    folder: Path, runs: list[Run]
) -> None:
    # The truth is falsified rather than the answer: one chunk in each server's memory is overlooked.
    program = (
        "import sys; from api.demo import run; from api.demo.oracle import Oracle; settle = Oracle.settle\n"
        "def overlook(self):\n"
        "    for held in self.l1.values():\n"
        "        held -= set(sorted(held, key=lambda held: held.chunk_hash)[:1])\n"
        "    settle(self)\n"
        "Oracle.settle = overlook; sys.exit(run(requests=20, seconds=4))"
    )
    run = Run(folder, sys.executable, "-c", program)
    runs.append(run)
    assert run.wait() == 1
    assert re.search(r"\d+ things? wrong in ", run.output)
    assert re.search(r"^  request \d+: ", run.output, re.MULTILINE)
    [kept] = folder.glob("blendstream-demo-*")
    assert str(kept) in run.output
    assert {"broker.log", "processor.log", "server-a.log"} <= {path.name for path in kept.iterdir()}
    assert run.alive() == []


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_ends_the_demo_and_all_it_started(
    number: signal.Signals, folder: Path, runs: list[Run]
) -> None:
    run = demo(folder)
    runs.append(run)
    run.wait_for("looking up prompts")
    assert len(run.alive()) > 6
    os.killpg(run.process.pid, number)
    assert run.wait() == 130, run.output
    assert run.alive() == []
    assert "stopped; no process is left behind" in run.output
    assert "Traceback" not in run.output
    assert list(folder.iterdir()) == []


def test_nothing_outlives_a_demo_that_was_killed(folder: Path, runs: list[Run]) -> None:
    run = demo(folder)
    runs.append(run)
    run.wait_for("looking up prompts")
    run.process.kill()
    run.process.wait()
    run.must_end_completely()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--broker", "rabbit"), "--broker must be one of embedded, kafka, docker, got 'rabbit'"),
        (("--trace", "/nowhere.jsonl"), "no such trace file: /nowhere.jsonl"),
        (("--trace", __file__), "cannot be read as a trace"),
    ],
)
def test_what_cannot_be_run_is_refused_in_a_line(
    arguments: tuple[str, ...], message: str, folder: Path, runs: list[Run]
) -> None:
    run = demo(folder, *arguments)
    runs.append(run)
    assert run.wait() == 1
    assert message in run.output
    assert "Traceback" not in run.output


def test_settings_of_a_users_own_processor_do_not_reach_the_demos(folder: Path, runs: list[Run]) -> None:
    run = demo(folder, *QUICK, BLENDSTREAM_PORT="1", BLENDSTREAM_CHUNK_SIZE="16")
    runs.append(run)
    assert run.wait() == 0, run.output


def test_ascii_terminals_without_colour_get_letters(folder: Path, runs: list[Run]) -> None:
    run = demo(folder, *QUICK, "--plain", NO_COLOR="1", PYTHONIOENCODING="ascii")
    runs.append(run)
    assert run.wait() == 0, run.output
    assert run.output.isascii()
    assert "\x1b[3" not in run.output
    assert re.search(r"^  [A-D*.]{60,}$", run.output, re.MULTILINE)
