"""What a user can get wrong ends in one line and a status, never in a traceback."""

from __future__ import annotations

import io
import socket
import sys
import time
from collections.abc import Callable
from dataclasses import fields
from importlib.metadata import version
from pathlib import Path
from typing import NamedTuple

import pytest

from api.cli import main
from processor.config import Config, environment_variable_of, flag_of
from tests.api.serving import serving, store
from tests.brokers import RunningBroker
from tests.producer.topics import batches_in, records

NOBODY = "127.0.0.1:1"


class Done(NamedTuple):
    status: int
    stdout: str
    stderr: str


Blendstream = Callable[..., Done]


@pytest.fixture
def blendstream(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Blendstream:
    """Runs the command in this process."""

    def run(*arguments: str, input: str = "") -> Done:
        monkeypatch.setattr(sys, "argv", ["blendstream", *arguments])
        monkeypatch.setattr(sys, "stdin", io.StringIO(input))
        with pytest.raises(SystemExit) as ended:
            main()
        return Done(int(ended.value.code or 0), *capsys.readouterr())

    return run


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["streams", "--url", f"http://{NOBODY}"], f"no server answers at http://{NOBODY}"),
        (["streams", "--url", "unix:/does/not/exist"], "no server answers at unix:/does/not/exist"),
        (["reset", "a", "--url", f"http://{NOBODY}"], "no server answers"),
        (["emit"], "either a trace file or --synthetic"),
        (["emit", "/does/not/exist", "--url", f"http://{NOBODY}"], "no such trace file: /does/not/exist"),
        (["emit", "--synthetic", "1"], "either --url or --kafka-bootstrap-servers"),
        (["emit", "--synthetic", "1", "--url", f"http://{NOBODY}"], "did not take 1 of 1 batches"),
        (
            ["emit", "--synthetic", "1", "--kafka-bootstrap-servers", NOBODY],
            f"no Kafka broker answers at {NOBODY}",
        ),
        (
            ["emit", "--synthetic", "1", "--kafka-bootstrap-servers", NOBODY, "--wire", "smoke"],
            "--wire must be one of rows, columns, got 'smoke'",
        ),
        (
            ["emit", "--synthetic", "1", "--url", f"http://{NOBODY}", "--spool", "/tmp"],
            "--spool goes with --kafka-bootstrap-servers",
        ),
        (
            ["emit", "--synthetic", "1", "--kafka-bootstrap-servers", NOBODY, "--spool", "/dev/null"],
            "--spool: [Errno 17] File exists: '/dev/null'",
        ),
        (["lookup", "--key", "zz", "--model-name", "m"], "--key is not hexadecimal: 'zz'"),
        (["lookup", "--key", "ab"], "--model-name must be given"),
        (["lookup", "--key", "ab", "--model-name", "m@n"], "model_name must be free of '@'"),
        (["lookup", "/does/not/exist", "--model-name", "m"], "cannot read /does/not/exist"),
        (["serve", "--port", "99999"], "--port must be from 0 to 65535, got 99999"),
        (["serve", "--host", "192.0.2.1"], "requested address; --host takes an address of this machine"),
        (["serve", "--event-transport", "kafka"], "--kafka-bootstrap-servers must be given"),
        (["broker", "--kind", "pigeon"], "--kind must be one of embedded, kafka, docker, got 'pigeon'"),
        (["checkpoint", "inspect", "/proc/self"], "there is no checkpoint in /proc/self"),
        (["checkpoint", "inspect", "/dev/null"], "/dev/null is a file, and checkpoints are a folder"),
        (["demo", "--trace", "/does/not/exist"], "no such trace file: /does/not/exist"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_a_mistake_is_told_in_one_line(blendstream: Blendstream, arguments: list[str], message: str) -> None:
    done = blendstream(*arguments)
    assert message in done.stderr
    assert done.status == 1
    assert done.stderr.count("\n") == 1
    assert not done.stdout


def test_a_broker_whose_port_is_taken_is_told_of_in_one_line(blendstream: Blendstream) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        done = blendstream("broker", "--port", str(port))
    assert f"blendstream: port {port} is taken by another process" in done.stderr
    assert done.status == 1
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize(
    ("arguments", "option"),
    [
        (["emit", "--synthetic", "-5", "--url", f"http://{NOBODY}"], "--synthetic"),
        (["broker", "--port", "99999"], "--port"),
        (["emit", "--synthetic", "5", "--url", f"http://{NOBODY}", "--rate", "-1"], "--rate"),
        (["emit", "--synthetic", "5", "--url", f"http://{NOBODY}", "--rate", "nan"], "--rate"),
        (["emit", "--synthetic", "5", "--url", f"http://{NOBODY}", "--world-size", "0"], "--world-size"),
        (["broker", "--port", "-1"], "--port"),
        (["demo", "--seconds", "0"], "--seconds"),
        (["demo", "--seconds", "-3"], "--seconds"),
        (["demo", "--seconds", "nan"], "--seconds"),
        (["demo", "--seconds", "inf"], "--seconds"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_a_number_out_of_bounds_is_refused_by_the_option_that_has_it(
    blendstream: Blendstream, arguments: list[str], option: str
) -> None:
    done = blendstream(*arguments)
    assert done.status == 2
    assert f"Invalid value for '{option}'" in done.stderr


def test_the_version_is_that_of_the_distribution(blendstream: Blendstream) -> None:
    done = blendstream("--version")
    assert (done.status, done.stdout) == (0, f"blendstream {version('blendstream')}\n")


def test_a_token_file_with_something_else_in_it_is_refused_by_its_first_bad_word(
    blendstream: Blendstream,
) -> None:
    done = blendstream("lookup", "-", "--model-name", "m", input="[1, 2, three]")
    assert "no token id: 'three'" in done.stderr
    assert done.status == 1


def test_with_a_spool_what_found_no_broker_goes_first_when_there_is_one(
    blendstream: Blendstream,
    kafka_broker: RunningBroker,
    topic: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("api.emit.DELIVERY_TIMEOUT", 0.1)
    emit = ["emit", "--synthetic", "3", "--chunk-size", "16"]
    emit += ["--kafka-topic", topic, "--spool", str(tmp_path)]
    done = blendstream(*emit, "--incarnation", "1", "--kafka-bootstrap-servers", NOBODY)
    assert done.status == 1
    assert f"what is left waits in {tmp_path} and goes first next time" in done.stderr
    monkeypatch.setattr("api.emit.DELIVERY_TIMEOUT", 30.0)
    done = blendstream(*emit, "--incarnation", "2", "--kafka-bootstrap-servers", kafka_broker.bootstrap)
    assert (done.status, done.stdout) == (0, "sent 3 batches with 48 entries\n")
    found = batches_in(records(kafka_broker.bootstrap, topic))
    assert [(one.incarnation, one.seq) for one in found] == [(i, seq) for i in (1, 2) for seq in (1, 2, 3)]


def test_at_a_rate_each_made_up_batch_bears_the_time_it_is_sent_at(
    blendstream: Blendstream, kafka_broker: RunningBroker, topic: str
) -> None:
    emit = ["emit", "--synthetic", "4", "--chunk-size", "16", "--rate", "20", "--kafka-topic", topic]
    done = blendstream(*emit, "--kafka-bootstrap-servers", kafka_broker.bootstrap)
    assert done.status == 0
    times = [batch.ts for batch in batches_in(records(kafka_broker.bootstrap, topic))]
    assert times == sorted(times)
    assert times[-1] - times[0] > 0.9 * 3 / 20


def test_a_command_line_that_makes_no_sense_ends_with_status_2(blendstream: Blendstream) -> None:
    done = blendstream("serve", "--port", "many")
    assert done.status == 2
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("width", ["80", "200"])
def test_every_setting_is_an_option_with_an_environment_variable(
    blendstream: Blendstream, monkeypatch: pytest.MonkeyPatch, width: str
) -> None:
    monkeypatch.setenv("COLUMNS", width)
    shown = blendstream("serve", "--help").stdout
    for setting in fields(Config):
        assert flag_of(setting.name) in shown
        assert environment_variable_of(setting.name) in shown


def test_every_setting_that_is_a_time_says_in_what_it_is_counted() -> None:
    times = [setting for setting in fields(Config) if setting.type == "float"]
    assert len(times) == 6
    for setting in [*times, Config.__dataclass_fields__["timeout_keep_alive"]]:
        assert "seconds" in setting.metadata["help"].lower(), setting.name


def test_the_help_of_the_demo_has_its_defaults(blendstream: Blendstream) -> None:
    shown = blendstream("demo", "--help").stdout
    assert "default: 400" in shown
    assert "default: 20.0" in shown


def test_the_list_of_commands_is_not_cut_off(
    blendstream: Blendstream, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    assert "..." not in blendstream("--help").stdout.partition("Commands:")[2]


def test_the_environment_is_read_and_a_bad_value_in_it_refused(
    blendstream: Blendstream, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BLENDSTREAM_CHUNK_SIZE", "0")
    assert "--chunk-size must be from 1" in blendstream("serve").stderr


@pytest.mark.parametrize(
    ("flag", "value"),
    [("--wire", "rows"), ("--kafka-topic", "t"), ("--kafka-config", "/dev/null"), ("--spool", "/tmp")],
)
def test_what_only_kafka_knows_is_refused_by_http(blendstream: Blendstream, flag: str, value: str) -> None:
    done = blendstream("emit", "--synthetic", "1", "--url", f"http://{NOBODY}", flag, value)
    assert done.status == 1
    assert f"{flag} goes with --kafka-bootstrap-servers, not with --url" in done.stderr


@pytest.mark.parametrize(
    ("flag", "value"),
    [("--instance-id", "a"), ("--incarnation", "1"), ("--chunks", "16"), ("--chunk-size", "256"),
     ("--world-size", "1"), ("--model-name", "m"), ("--seed", "0")],
)  # fmt: skip
def test_what_shapes_made_up_batches_is_refused_beside_a_trace_file(
    blendstream: Blendstream, tmp_path: Path, flag: str, value: str
) -> None:
    (tmp_path / "trace.jsonl").touch()
    done = blendstream("emit", str(tmp_path / "trace.jsonl"), "--url", f"http://{NOBODY}", flag, value)
    assert done.status == 1
    assert f"{flag} says nothing of a trace file" in done.stderr


def test_a_topic_that_the_environment_names_does_not_keep_from_posting(
    blendstream: Blendstream, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BLENDSTREAM_KAFKA_TOPIC", "t")
    done = blendstream("emit", "--synthetic", "1", "--url", f"http://{NOBODY}")
    assert "did not take 1 of 1 batches" in done.stderr


def test_all_that_is_lacking_is_given_up_by_default_also_past_the_repair_window(
    blendstream: Blendstream,
) -> None:
    with serving(repair_window=1.0) as server:
        server.emit(store([], 3))
        server.service._gate.tick(time.time() + 5.0, watermark=0.0, clock_skew=0.0)
        assert server.client.accept_loss("a").gap_detected
        done = blendstream("accept-loss", "a", "--url", server.client.url)
        assert (done.status, done.stderr) == (0, "")
        assert not server.client.stream("a").gap_detected
