from __future__ import annotations

import base64
import json
from typing import Any

import numpy as np
import pytest

from producer.events import CacheEventEntry, Tier
from tests.api.serving import (
    MODEL,
    Serving,
    chunk_keys,
    entries_of,
    key,
    serving,
    store,
    tokens,
    wire_key,
)

SEQUENCE = tokens(1, 2, 3, 4, 5, 6, 7, 8)


def refusal(answer: Any) -> tuple[int, list[Any]]:
    return answer.status_code, answer.json()["detail"][0]["loc"]


def test_a_lookup_by_keys_answers_in_order_and_says_nothing_of_unknown_keys(server: Serving) -> None:
    held = key()
    server.emit(store([CacheEventEntry(held, 7, (1, 2, 3, 4), 8)], instance_id="a/b"))
    unknown = {**wire_key(held), "chunk_hash_hex": "AB"}
    answer = server.http.post("/directory/lookup", json={"keys": [wire_key(held), unknown]})
    # Byte for byte what LMCache's coordinator answers, the spelling of the hash included.
    assert answer.text == (
        '{"chunks":2,"results":[{"key":{"chunk_hash_hex":"'
        + "ab" * 32
        + '","model_name":"m","kv_rank":16777472,'
        '"object_group_id":0,"cache_salt":""},"placements":[{"instance_id":"a/b","incarnation":1,"tier":"l1",'
        '"backend":"dram","size_bytes":7,"shared":false}],"token_ids":[1,2,3,4],"access_count":0},'
        '{"key":{"chunk_hash_hex":"AB","model_name":"m","kv_rank":16777472,"object_group_id":0,"cache_salt":""},'
        '"placements":[],"token_ids":[],"access_count":0}]}'
    )


def test_a_lookup_by_tokens_finds_the_chunks_of_every_rank(server: Serving) -> None:
    server.emit(store(entries_of(SEQUENCE, world_size=2)))
    found = server.client.lookup_tokens([*SEQUENCE, 9], MODEL, world_size=2)
    assert found.chunks == 2
    assert [result.key.chunk_hash_hex for result in found.results] == [
        each.chunk_hash.hex() for each in chunk_keys(SEQUENCE, world_size=2)
    ]
    assert [result.key.kv_rank for result in found.results] == [0x02000200, 0x02010201] * 2
    assert all(len(result.placements) == 1 for result in found.results)


def test_a_lookup_by_tokens_reaches_the_copies_in_other_object_groups(server: Serving) -> None:
    digest = chunk_keys(SEQUENCE)[0].chunk_hash
    server.emit(store([CacheEventEntry(key(digest, group=group)) for group in (3, 1)]))
    found = server.client.lookup_tokens(SEQUENCE[:4], MODEL)
    assert found.chunks == 1
    assert [result.key.object_group_id for result in found.results] == [0, 1, 3]
    assert [len(result.placements) for result in found.results] == [0, 1, 1]


def test_tokens_that_do_not_fill_a_chunk_resolve_to_nothing(server: Serving) -> None:
    answer = server.http.post("/directory/lookup", json={"token_ids": [1, 2, 3], "model_name": MODEL})
    assert answer.content == b'{"chunks":0,"results":[]}'


def test_a_lookup_of_many_keys_is_sent_in_pieces_that_make_one_answer(server: Serving) -> None:
    sequence = np.arange(4 * 700, dtype=np.uint32)
    server.emit(store(entries_of(sequence)))
    found = server.client.lookup_tokens(sequence, MODEL)
    assert found.chunks == len(found.results) == 700
    assert [result.token_ids[0] for result in found.results] == list(range(0, 2800, 4))
    by_keys = server.client.lookup(chunk_keys(sequence))
    assert by_keys == found.results


@pytest.mark.parametrize(
    ("body", "loc"),
    [
        (b"", ["body"]),
        (b"null", ["body"]),
        (b"{", ["body"]),
        (b"{}", ["body"]),
        (b'{"keys":1}', ["body", "keys"]),
        (b'{"keys":[{"model_name":"m","kv_rank":1}]}', ["body", "keys", 0, "chunk_hash_hex"]),
        (
            b'{"keys":[{"chunk_hash_hex":"zz","model_name":"m","kv_rank":1}]}',
            ["body", "keys", 0, "chunk_hash_hex"],
        ),
        (
            b'{"keys":[{"chunk_hash_hex":"ab","model_name":"m@","kv_rank":1}]}',
            ["body", "keys", 0, "model_name"],
        ),
        (
            b'{"keys":[{"chunk_hash_hex":"ab","model_name":"m","kv_rank":18446744073709551616}]}',
            ["body", "keys", 0, "kv_rank"],
        ),
        (b'{"token_ids":[1]}', ["body"]),
        (b'{"token_ids":[1,"q"],"model_name":"m"}', ["body", "token_ids", 1]),
        (b'{"token_ids":[1,2,4.5],"model_name":"m"}', ["body", "token_ids", 2]),
        (b'{"token_ids":[1,-1],"model_name":"m"}', ["body", "token_ids", 1]),
        (b'{"token_ids":[4294967296],"model_name":"m"}', ["body", "token_ids", 0]),
        (b'{"token_ids":[NaN],"model_name":"m"}', ["body"]),
        (b'{"token_ids":[1],"model_name":"\\ud800"}', ["body"]),
        (b'{"token_ids":[1],"model_name":"m","world_size":0}', ["body", "world_size"]),
        (b'{"token_ids":[1],"model_name":"m","world_size":256}', ["body", "world_size"]),
        (b'{"token_ids":' + b"[" * 100_000 + b"]" * 100_000 + b"}", ["body"]),
    ],
)
def test_a_malformed_lookup_is_refused_with_the_field(server: Serving, body: bytes, loc: list[Any]) -> None:
    assert refusal(server.http.post("/directory/lookup", content=body)) == (422, loc)


LONG = 100_000


@pytest.mark.parametrize("separator", [",", " , "])
def test_a_long_list_of_tokens_is_read_like_a_short_one(server: Serving, separator: str) -> None:
    server.emit(store(entries_of(SEQUENCE)))
    listed = separator.join(map(str, [*SEQUENCE, *([9] * LONG)]))
    body = f'{{"x":{{"token_ids":[1]}},"token_ids":[{listed}],"model_name":"m"}}'
    answer = server.http.post("/directory/lookup", content=body).json()
    assert answer["chunks"] == len(answer["results"]) == LONG // 4 + 2
    assert [len(result["placements"]) for result in answer["results"][:3]] == [1, 1, 0]


@pytest.mark.parametrize(
    ("last", "loc"),
    [
        ("-1", ["body", "token_ids", LONG]),
        ('"q"', ["body", "token_ids", LONG]),
        ("4294967296", ["body", "token_ids"]),
        ("[2]", ["body", "token_ids", LONG]),
        ("", ["body", "token_ids"]),
    ],
)
def test_a_long_list_of_tokens_is_checked_to_its_end(server: Serving, last: str, loc: list[Any]) -> None:
    body = f'{{"model_name":"m","token_ids":[{"1234567890," * LONG}{last}]}}'
    assert refusal(server.http.post("/directory/lookup", content=body)) == (422, loc)


def test_a_long_list_of_keys_is_read_and_checked_to_its_end(server: Serving) -> None:
    keys = [wire_key(key(n.to_bytes(4, "big"))) for n in range(3_000)]
    answer = server.http.post("/directory/lookup", json={"keys": keys}).json()
    assert answer["chunks"] == 3_000
    assert [result["key"] for result in answer["results"]] == keys
    keys[-1] = {**keys[-1], "kv_rank": "x"}
    answer = server.http.post("/directory/lookup", json={"keys": keys})
    assert refusal(answer) == (422, ["body", "keys", 2_999, "kv_rank"])


@pytest.mark.parametrize(
    "body",
    [
        b'{"model_name":"' + b"x" * 300_000 + b'","token_ids":[1]}',
        b'{"keys":[{"chunk_hash_hex":"' + b"a" * 300_000 + b'","model_name":"m","kv_rank":1}]}',
        b'{"keys":"' + b"a" * 300_000 + b'"}',
        b'{"keys":[' + b"{" * 300_000,
        b'{"token_ids":[' + b"[" * 300_000 + b"]" * 300_000 + b"]}",
        b"[" + b"1," * 200_000 + b"1]",
        b'{"token_ids":[' + b"1," * 200_000 + b"1]",
        b"\xff" * 300_000,
        b" " * 300_000,
    ],
)
def test_long_nonsense_is_refused(server: Serving, body: bytes) -> None:
    assert server.http.post("/directory/lookup", content=body).status_code == 422
    # Members that a route does not know are ignored, so some of it is a query for nothing there.
    assert server.http.post("/directory/blend-lookup", content=body).status_code in (200, 422)


def test_what_is_well_formed_and_cannot_be_is_refused_with_400(server: Serving) -> None:
    for names in ({"model_name": "m@"}, {"model_name": "m", "cache_salt": "a/b"}):
        answer = server.http.post("/directory/lookup", json={"token_ids": [1], **names})
        assert answer.status_code == 400
        assert "must be free of" in answer.json()["detail"]
    answer = server.http.post("/directory/lookup", json={"token_ids": [1] * 1_000_001, "model_name": "m"})
    assert answer.status_code == 400
    assert answer.json()["detail"] == ("too many token_ids in a single request (limit=1000000, got=1000001)")


def test_a_blend_lookup_finds_chunks_at_any_offset_in_either_form(server: Serving) -> None:
    server.emit(store(entries_of(SEQUENCE)))
    query = tokens(9, *SEQUENCE[4:], 9, 9)
    digest = chunk_keys(SEQUENCE)[1].chunk_hash.hex()
    body = {"tokens_b64": base64.b64encode(query.tobytes()).decode(), "model_name": MODEL}
    by_json = server.http.post("/directory/blend-lookup", json=body)
    assert by_json.text == '{"matches":[{"chunk_hash":"' + digest + '","old_st":4,"cur_st":1}]}'
    raw = server.http.post(
        "/directory/blend-lookup",
        content=query.tobytes(),
        headers={"content-type": "application/octet-stream"},
        params={"model_name": MODEL},
    )
    assert raw.content == by_json.content
    assert [match.cur_st for match in server.client.blend_lookup(query, MODEL)] == [1]


def test_a_blend_lookup_sees_its_own_namespace_alone(server: Serving) -> None:
    server.emit(store(entries_of(SEQUENCE, world_size=2, salt="s")))
    assert len(server.client.blend_lookup(SEQUENCE, MODEL, world_size=2, cache_salt="s")) == 2
    assert server.client.blend_lookup(SEQUENCE, MODEL, world_size=2) == []
    assert server.client.blend_lookup(SEQUENCE, MODEL, cache_salt="s") == []
    assert server.client.blend_lookup(SEQUENCE, "other", world_size=2, cache_salt="s") == []


def test_a_blend_lookup_of_nothing_or_in_an_impossible_namespace_finds_nothing(server: Serving) -> None:
    server.emit(store(entries_of(SEQUENCE)))
    assert server.http.post("/directory/blend-lookup", json={}).content == b'{"matches":[]}'
    assert server.client.blend_lookup(SEQUENCE, "m@") == []


def test_a_long_blend_lookup_takes_the_same_answer_off_the_loop(server: Serving) -> None:
    server.emit(store(entries_of(SEQUENCE)))
    query = np.full(500_000, 99, np.uint32)
    query[400_000:400_008] = SEQUENCE
    body = {"tokens_b64": base64.b64encode(query.tobytes()).decode(), "model_name": MODEL}
    answer = server.http.post("/directory/blend-lookup", json=body)
    assert [match["cur_st"] for match in answer.json()["matches"]] == [400_000, 400_004]


def test_without_blend_lookup_nothing_matches() -> None:
    with serving(enable_blend_lookup=False) as server:
        server.emit(store(entries_of(SEQUENCE)))
        assert server.client.blend_lookup(SEQUENCE, MODEL) == []


FOUR_TOKENS = base64.b64encode(SEQUENCE[:4].tobytes()).decode()


@pytest.mark.parametrize(
    ("body", "loc"),
    [
        (b"", ["body"]),
        (b'{"tokens_b64":1}', ["body", "tokens_b64"]),
        (b'{"tokens_b64":"AAA","model_name":"m"}', ["body", "tokens_b64"]),
        (b'{"tokens_b64":"AAAA","model_name":"m"}', ["body", "tokens_b64"]),
        (b'{"tokens_b64":"!!!!","model_name":"m"}', ["body", "tokens_b64"]),
        (f'{{"tokens_b64":"{FOUR_TOKENS}"}}'.encode(), ["body", "model_name"]),
        (f'{{"tokens_b64":"{FOUR_TOKENS}","model_name":5}}'.encode(), ["body", "model_name"]),
        (
            f'{{"tokens_b64":"{FOUR_TOKENS}","model_name":"m","world_size":300}}'.encode(),
            ["body", "world_size"],
        ),
        (b'{"world_size":1.5}', ["body", "world_size"]),
        (b'{"world_size":null}', ["body", "world_size"]),
        (b'{"world_size":18446744073709551616}', ["body", "world_size"]),
        (b'{"world_size":NaN}', ["body"]),
        (b'{"tokens_b64":"\\ud800"}', ["body"]),
    ],
)
def test_a_malformed_blend_lookup_is_refused_with_the_field(
    server: Serving, body: bytes, loc: list[Any]
) -> None:
    status, found = refusal(server.http.post("/directory/blend-lookup", content=body))
    assert (status, found[: len(loc)]) == (422, loc[: len(found)])


def test_padding_inside_long_base64_is_refused(server: Serving) -> None:
    text = "A" * ((1 << 20) - 4) + "AA==" + "A" * 1024
    answer = server.http.post("/directory/blend-lookup", json={"tokens_b64": text, "model_name": MODEL})
    assert refusal(answer) == (422, ["body", "tokens_b64"])


def test_raw_tokens_are_checked_like_those_in_json(server: Serving) -> None:
    def post(content: bytes, **params: Any) -> Any:
        headers = {"content-type": "application/octet-stream"}
        return server.http.post("/directory/blend-lookup", content=content, headers=headers, params=params)

    assert refusal(post(b"abc", model_name=MODEL)) == (422, ["body"])
    assert refusal(post(b"abcd")) == (422, ["query", "model_name"])
    assert refusal(post(b"abcd", model_name=MODEL, world_size=256)) == (422, ["query", "world_size"])
    assert refusal(post(b"abcd", model_name=MODEL, world_size="x")) == (422, ["query", "world_size"])
    assert post(b"").content == b'{"matches":[]}'


def test_listings_are_filtered_and_paged(server: Serving) -> None:
    server.emit(store(entries_of(SEQUENCE)), store(entries_of(SEQUENCE[:4]), 2, tier=Tier.L2, backend="fs"))
    server.emit(store(entries_of(SEQUENCE[:4]), instance_id="b"))
    assert server.client.keys().total == 2
    assert server.client.keys(tier="l2").total == 1
    assert server.client.keys(instance_id="b").total == 1
    assert server.client.keys(backend="fs", instance_id="b").total == 0
    page = server.client.keys(tier="l1", instance_id="a", offset=1, limit=1)
    assert (page.total, len(page.keys), page.keys[0].num_tokens) == (2, 1, 4)
    assert [place.instance_id for place in page.keys[0].placements] == ["a"]
    assert server.client.keys(offset=10**6).keys == []


@pytest.mark.parametrize(
    ("query", "fields"),
    [
        ("tier=zz", "tier"),
        ("offset=-1", "offset"),
        ("offset=x", "offset"),
        ("offset=" + "9" * 5_000, "offset"),
        ("limit=0", "limit"),
        ("limit=10001", "limit"),
    ],
)
def test_a_malformed_listing_is_refused_with_the_parameter(server: Serving, query: str, fields: str) -> None:
    assert refusal(server.http.get(f"/directory/keys?{query}")) == (422, ["query", fields])


def test_stats_have_lmcaches_fields_in_its_order(server: Serving) -> None:
    server.emit(store(entries_of(SEQUENCE)))
    stats = json.loads(server.http.get("/directory/stats").content)
    assert list(stats) == [
        "num_keys",
        "num_placements",
        "l1_keys_by_instance",
        "blend",
        "l1_count",
        "l1_size_bytes",
        "l2_count",
        "l2_size_bytes",
    ]
    assert stats["l1_keys_by_instance"] == {"a": 2}
    assert list(stats["blend"]) == [
        "num_contents",
        "num_chunks",
        "num_claims",
        "num_namespaces",
        "table_size",
    ]
    assert (stats["l1_count"], stats["l1_size_bytes"], stats["blend"]["num_claims"]) == (2, 14, 2)
