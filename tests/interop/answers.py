"""What two coordinators are compared by: everything they say about the state that a history left behind."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from operator import itemgetter
from typing import Any

import numpy as np
import orjson
import pybase64

from producer.events import CacheEventBatch, Namespace, ObjectKey
from producer.wire import encode_rows
from tests.interop import fleet
from tests.interop.peers import Answer, Coordinator

TOKEN_SEQUENCES = [fleet.tokens_of(documents) for documents in [*fleet.PROMPTS, [0], [3, 3, 3], [1, 0, 2, 1]]]
"""Sequences looked up by their tokens: stored, partly stored, unknown."""
LISTINGS: list[dict[str, Any]] = [
    {},
    {"tier": "l1"},
    {"tier": "l2"},
    {"backend": "fs"},
    {"tier": "l2", "backend": "s3", "instance_id": fleet.INSTANCES[1]},
    *({"instance_id": instance} for instance in fleet.INSTANCES),
]


def deliver(coordinator: Coordinator, history: fleet.History) -> list[Answer]:
    """Post the history, what lies between two departures in one request; returns the answers."""
    answers = []
    run: list[CacheEventBatch] = []
    for step in history.steps:
        if isinstance(step, fleet.Deliver):
            run.append(step.batch)
            continue
        answers.append(coordinator.send("/events", encode_rows(run)))
        answers.append(coordinator.delete(f"/instances/{step.instance_id}"))
        run = []
    answers.append(coordinator.send("/events", encode_rows(run)))
    return answers


def everything(coordinator: Coordinator, prompts: Iterable[list[int]]) -> dict[str, Any]:
    """The answer to every question, by the question."""
    said: dict[str, Any] = {"keys": placements(coordinator), "stats": stats(coordinator)}
    for filters in LISTINGS:
        said[f"listing {filters}"] = listing(coordinator, filters)
    for tokens in TOKEN_SEQUENCES:
        for namespace in fleet.NAMESPACES:
            body = {"token_ids": tokens, **scope(namespace)}
            said[f"tokens {tokens} for {namespace}"] = _looked_up(coordinator, body)
    for tokens in prompts:
        for namespace in fleet.NAMESPACES:
            said[f"blend {tokens} for {namespace}"] = matches(coordinator, tokens, namespace)
    return said


def results_in(said: dict[str, Any]) -> Iterator[Any]:
    """What is said of single keys, in the answers of `everything`."""
    for question, answer in said.items():
        if question == "keys":
            yield from answer.values()
        elif question.startswith("listing"):
            yield from answer[1]
        elif question.startswith("tokens"):
            yield from answer["results"]


def placements(coordinator: Coordinator) -> dict[ObjectKey, Any]:
    """The directory's answer for every key there may be."""
    keys = fleet.all_keys()
    answer = _looked_up(coordinator, {"keys": [encoded(key) for key in keys]})
    assert answer["chunks"] == len(keys)
    return dict(zip(keys, answer["results"], strict=True))


def _looked_up(coordinator: Coordinator, body: dict[str, Any]) -> Any:
    """The answer to a lookup. A server may hold a key twice in one backend, in a private and in a shared part
    of it; which of the two comes first is nobody's promise, so they are brought into one order.
    """
    answer = coordinator.post("/directory/lookup", body)
    assert answer.status == 200, answer
    for result in answer.body["results"]:
        places = result["placements"]
        assert places == sorted(places, key=itemgetter("instance_id", "tier", "backend"))
        places.sort(key=itemgetter("instance_id", "tier", "backend", "shared"))
    return answer.body


def listing(coordinator: Coordinator, filters: dict[str, Any]) -> Any:
    """A listing read in pages, without its order: LMCache lists by insertion, Blendstream by row."""
    first = coordinator.get("/directory/keys", limit=7, **filters)
    assert first.status == 200, first
    total = first.body["total"]
    keys = first.body["keys"]
    while len(keys) < total:
        page = coordinator.get("/directory/keys", limit=7, offset=len(keys), **filters).body
        assert page["total"] == total and page["keys"], page
        keys += page["keys"]
    for key in keys:
        key["placements"].sort(key=orjson.dumps)
    return total, sorted(keys, key=lambda listed: orjson.dumps(listed["key"]))


def stats(coordinator: Coordinator) -> Any:
    """The counts, less the size of the filter, which is each one's own, and less the L1 keys of each
    instance.
    """
    answer = coordinator.get("/directory/stats")
    assert answer.status == 200, answer
    del answer.body["blend"]["table_size"], answer.body["l1_keys_by_instance"]
    return answer.body


def l1_keys_by_instance(coordinator: Coordinator) -> dict[str, int]:
    counted: dict[str, int] = coordinator.get("/directory/stats").body["l1_keys_by_instance"]
    return counted


def matches(coordinator: Coordinator, tokens: list[int], namespace: Namespace) -> Any:
    """The answer to a blend lookup."""
    body = {"tokens_b64": base64_of(tokens), **scope(namespace)}
    answer = coordinator.post("/directory/blend-lookup", body)
    assert answer.status == 200, answer
    return answer.body["matches"]


def base64_of(tokens: list[int]) -> str:
    return pybase64.b64encode_as_string(np.array(tokens, "<u4").tobytes())


def scope(namespace: Namespace) -> dict[str, Any]:
    return {
        "model_name": namespace.model_name,
        "cache_salt": namespace.cache_salt,
        "world_size": namespace.world_size,
    }


def encoded(key: ObjectKey) -> dict[str, Any]:
    return {
        "chunk_hash_hex": key.chunk_hash.hex(),
        "model_name": key.model_name,
        "kv_rank": key.kv_rank,
        "object_group_id": key.object_group_id,
        "cache_salt": key.cache_salt,
    }


def alike(our_answer: Answer, their_answer: Answer) -> None:
    """Two refusals have the same status and shape; where both name a field, ours points there or further."""
    assert 400 <= our_answer.status < 500
    assert our_answer.status == their_answer.status, (our_answer, their_answer)
    ours, theirs = our_answer.body["detail"], their_answer.body["detail"]
    assert type(ours) is type(theirs)
    if our_answer.status != 422:
        return
    for problem in ours:
        assert {"type", "loc", "msg", "input"} <= problem.keys()
    assert ours[0]["loc"][0] == theirs[0]["loc"][0]
