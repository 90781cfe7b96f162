"""Checkpoints as an operator meets them: asked for, found again after a restart, and looked into."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from api.checkpoints import kafka_rows
from api.cli import main
from processor.config import Config
from processor.durability.errors import CheckpointMismatch, FolderRefused
from processor.service import Service
from producer.events import CacheEventBatch, CacheEventEntry, EventType, Namespace, Tier
from tests.api.serving import CHUNK, MODEL, Serving, chunk_keys, serving, store, tokens

SEQUENCE = tokens(1, 2, 3, 4, 5, 6, 7, 8)


def fill(server: Serving) -> None:
    """Two chunks, a declared size, a registered server and a gap."""
    entries = [
        CacheEventEntry(key, 10, SEQUENCE[i * CHUNK : (i + 1) * CHUNK], i * CHUNK)
        for i, key in enumerate(chunk_keys(SEQUENCE))
    ]
    declaration = CacheEventBatch(
        "a", 1, 4, EventType.CONFIG, Tier.L1, "dram", capacity_bytes=100, capacity_revision=1, ts=5.0
    )
    server.emit(store(entries, 1), store(entries, 3), declaration)
    server.client.register("10.0.0.1", 8080, instance_id="a")


def what_is_known(server: Serving) -> list[object]:
    client = server.client
    return [
        client.lookup_tokens(SEQUENCE, MODEL),
        client.blend_lookup([9, *SEQUENCE], MODEL),
        client.streams(),
        client.stats(),
        client.fleet_usage(),
        client.instances(),
    ]


def metrics(server: Serving) -> dict[str, float]:
    families = text_string_to_metric_families(server.client.metrics())
    return {
        sample.name.removeprefix("blendstream_checkpoint_"): sample.value
        for family in families
        for sample in family.samples
        if sample.name.startswith("blendstream_checkpoint_")
    }


def test_without_a_folder_for_them_none_is_written_and_the_answer_says_how_to_change_that() -> None:
    with serving() as server:
        answer = server.http.post("/checkpoint")
        assert answer.status_code == 409
        assert "--checkpoint-path" in answer.json()["detail"]
        assert metrics(server) == {}


def test_one_that_is_asked_for_is_on_disk_when_the_answer_comes(tmp_path: Path) -> None:
    with serving(checkpoint_path=str(tmp_path), checkpoint_interval=0.0) as server:
        fill(server)
        first = server.client.checkpoint()
        assert first.number == 1
        assert first.path == str(tmp_path / "checkpoint-1")
        assert (tmp_path / "checkpoint-1" / "manifest.json").is_file()
        assert server.client.checkpoint().number == 2
        shown = metrics(server)
        assert (shown["successes_total"], shown["failures_total"], shown["damaged"]) == (2, 0, 0)
        assert shown["last_success_timestamp_seconds"] >= first.created
        assert shown["bytes"] >= first.bytes
        assert shown["pause_seconds"] < shown["duration_seconds"]


def test_after_a_restart_everything_is_as_it_was(tmp_path: Path) -> None:
    with serving(checkpoint_path=str(tmp_path)) as server:
        fill(server)
        before = what_is_known(server)
    with serving(checkpoint_path=str(tmp_path)) as server:
        assert what_is_known(server) == before
        assert metrics(server)["restored_timestamp_seconds"] > 0
        # The stream goes on where it was: what was missing repairs, what was there is a duplicate.
        entries = [CacheEventEntry(chunk_keys(SEQUENCE)[0], 10)]
        assert server.emit(store(entries, 2), store(entries, 3)) == {
            "applied": 1,
            "duplicates": 1,
            "stale": 0,
        }
        assert server.client.streams()[0].missing == []


def test_an_unfinished_start_writes_no_checkpoint(tmp_path: Path) -> None:
    service = Service(Config(chunk_size=CHUNK, max_chunks=64, checkpoint_path=str(tmp_path)))
    service.stop()
    assert list(tmp_path.iterdir()) == []


def refused_start(**settings: object) -> str:
    service = Service(Config(**{"chunk_size": CHUNK, "max_chunks": 4096, **settings}))  # type: ignore[arg-type]
    try:
        with pytest.raises((CheckpointMismatch, FolderRefused)) as error:
            service.start()
    finally:
        service.stop()
    return str(error.value)


def test_another_chunk_size_and_a_folder_in_use_are_refused_and_leave_it_as_it_was(tmp_path: Path) -> None:
    with serving(checkpoint_path=str(tmp_path)) as server:
        fill(server)
        assert "another process" in refused_start(checkpoint_path=str(tmp_path))
    names = sorted(path.name for path in tmp_path.iterdir())
    refusal = refused_start(checkpoint_path=str(tmp_path), chunk_size=8)
    assert f"--chunk-size {CHUNK}, and this process has 8" in refusal
    assert sorted(path.name for path in tmp_path.iterdir()) == names


def test_blend_lookup_that_is_switched_on_finds_what_was_stored_without_it(tmp_path: Path) -> None:
    with serving(checkpoint_path=str(tmp_path), enable_blend_lookup=False) as server:
        fill(server)
    with serving(checkpoint_path=str(tmp_path)) as server:
        found = server.service.match(tokens(9, *SEQUENCE), Namespace(MODEL))
        assert [(match.old_st, match.cur_st) for match in found] == [(0, 1), (CHUNK, CHUNK + 1)]


@pytest.fixture
def inspect(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[[Path], tuple[int, str]]:
    def run(path: Path) -> tuple[int, str]:
        monkeypatch.setattr("sys.argv", ["blendstream", "checkpoint", "inspect", str(path)])
        monkeypatch.setenv("COLUMNS", "200")
        with pytest.raises(SystemExit) as ended:
            main()
        done = capsys.readouterr()
        return int(ended.value.code or 0), done.out + done.err

    return run


def test_inspecting_shows_what_is_in_a_checkpoint(
    tmp_path: Path, inspect: Callable[[Path], tuple[int, str]]
) -> None:
    with serving(checkpoint_path=str(tmp_path)) as server:
        fill(server)
        server.client.checkpoint()
        status, shown = inspect(tmp_path)
    assert status == 0
    for text in ("2 with 2 placements", "a: incarnation 1, up to 4", "1 of them with batches missing",
                 "chunk size", "all as they were written"):  # fmt: skip
        assert text in shown
    (tmp_path / "checkpoint-1" / "tokens.0000.npy").unlink()
    status, shown = inspect(tmp_path / "checkpoint-1")
    assert status == 1
    assert "there is no file tokens.0000.npy" in shown


def test_inspecting_tells_the_current_checkpoint_from_the_one_before(
    tmp_path: Path, inspect: Callable[[Path], tuple[int, str]]
) -> None:
    with serving(checkpoint_path=str(tmp_path)) as server:
        server.client.checkpoint()
        server.client.checkpoint()
        status, shown = inspect(tmp_path)
        assert status == 0
        heads = [line.split()[0] for line in shown.splitlines() if str(tmp_path) in line]
        assert heads == ["current", "before"]
        assert inspect(tmp_path / "checkpoint-1")[1].startswith("checkpoint ")


def test_inspecting_names_what_is_not_known_of_kafka() -> None:
    kafka = {"cluster_id": "", "topic_id": "", "positions": {"0": 1234}}
    assert dict(kafka_rows({"kafka": kafka})) == {
        "Kafka": "cluster unknown, topic id unknown",
        "positions": "0: 1,234",
    }


def test_inspecting_something_else_says_so(
    tmp_path: Path, inspect: Callable[[Path], tuple[int, str]]
) -> None:
    assert inspect(tmp_path) == (1, f"blendstream: there is no checkpoint in {tmp_path}\n")
    file = tmp_path / "state.json"
    file.write_text("{}")
    status, shown = inspect(file)
    assert status == 1
    assert "is a file, and checkpoints are a folder" in shown
