from __future__ import annotations

import json
from typing import Any

import pytest

from producer.events import CacheEventEntry
from producer.wire import encode_columns, encode_rows
from tests.api.serving import Serving, entries_of, key, serving, store, tokens


def row_batch(**changes: Any) -> dict[str, Any]:
    batch: dict[str, Any] = json.loads(encode_rows([store([CacheEventEntry(key(), 7, (1, 2, 3, 4), 8)])]))
    return {**batch["batches"][0], **changes}


@pytest.mark.parametrize("encode", [encode_rows, encode_columns])
def test_batches_are_counted_by_what_became_of_them(server: Serving, encode: Any) -> None:
    batches = [store(entries_of(tokens(1, 2, 3, 4)), 1, incarnation=2), store([], 2, incarnation=2)]
    first = server.http.post("/events", content=encode(batches))
    assert first.content == b'{"applied":2,"duplicates":0,"stale":0}'
    again = server.http.post("/events", content=encode([*batches, store([], 1, incarnation=1)]))
    assert again.content == b'{"applied":0,"duplicates":2,"stale":1}'


def test_a_repaired_batch_counts_as_applied(server: Serving) -> None:
    server.emit(store([], 2))
    assert server.emit(store([], 1)) == {"applied": 1, "duplicates": 0, "stale": 0}


def test_an_envelope_without_batches_applies_none(server: Serving) -> None:
    assert server.http.post("/events", json={}).json() == {"applied": 0, "duplicates": 0, "stale": 0}


def test_one_bad_entry_refuses_the_whole_request(server: Serving) -> None:
    bad = row_batch(seq=2, entries=[{"key": {"chunk_hash_hex": "zz", "model_name": "m", "kv_rank": 1}}])
    answer = server.http.post("/events", json={"batches": [row_batch(), bad]})
    assert answer.status_code == 422
    assert answer.json()["detail"][0]["loc"][:3] == ["body", "batches", 1]
    assert server.client.stats().num_keys == 0
    assert server.client.streams() == []


@pytest.mark.parametrize(
    ("body", "loc"),
    [
        (b"", ["body"]),
        (b"{", ["body"]),
        (b"[1]", ["body"]),
        (b'{"batches":null}', ["body", "batches"]),
        (b'{"batches":[1]}', ["body", "batches", 0]),
        (b'{"batches":[{"seq":NaN}]}', ["body"]),
        (b'{"batches":[{"instance_id":"\\ud800"}]}', ["body"]),
        (b'{"batches":' + b"[" * 100_000, ["body"]),
        (b'{"batches":"\xff"}', ["body"]),
    ],
)
def test_a_malformed_envelope_is_refused_with_the_place(server: Serving, body: bytes, loc: list[Any]) -> None:
    answer = server.http.post("/events", content=body)
    assert answer.status_code == 422
    (problem,) = answer.json()["detail"]
    assert problem["loc"][: len(loc)] == loc or loc[: len(problem["loc"])] == problem["loc"]
    assert problem["msg"]


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("instance_id", ""),
        ("incarnation", -1),
        ("seq", 0),
        ("seq", 2**64),
        ("event_type", "burn"),
        ("tier", "all"),
        ("backend", ""),
        ("ts", -1),
    ],
)
def test_a_batch_that_breaks_the_contract_is_refused_by_its_field(
    server: Serving, field: str, value: Any
) -> None:
    answer = server.http.post("/events", json={"batches": [row_batch(**{field: value})]})
    assert answer.status_code == 422
    assert field in answer.text
    assert server.client.streams() == []


def test_a_body_over_the_limit_is_refused_whether_or_not_its_length_is_announced(server: Serving) -> None:
    piece = b" " * (1 << 20)
    announced = server.http.post("/events", content=piece * 65)
    chunked = server.http.post("/events", content=(piece for _ in range(65)))
    for answer in (announced, chunked):
        assert answer.status_code == 413
        assert "67108864" in answer.json()["detail"]
    assert server.http.get("/healthz").status_code == 200


def test_pushing_is_closed_beside_kafka_unless_it_is_opened() -> None:
    kafka = {"event_transport": "kafka", "kafka_bootstrap_servers": "127.0.0.1:1"}
    with serving(**kafka) as closed:
        answer = closed.http.post("/events", json={"batches": []})
        assert answer.status_code == 404
        assert "--event-transport kafka" in answer.json()["detail"]
    with serving(**kafka, enable_push=True) as opened:
        assert opened.http.post("/events", json={"batches": []}).status_code == 200
