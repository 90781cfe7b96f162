"""A server whose service has not started: it answers for itself, and tells everybody else to come back."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, given, settings
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from api.client import Client
from api.openapi import document
from tests.api.operations import OPERATIONS
from tests.api.serving import Serving, entries_of, not_started, store, tokens

CHECKS: list[Any] = [
    status_code_conformance,
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
]
OPEN = {"/healthz": 200, "/readyz": 503, "/metrics": 200, "/openapi.json": 200}


def test_it_lives_and_says_that_it_is_not_ready() -> None:
    with not_started() as server:
        assert server.http.get("/healthz").json() == {"status": "healthy"}
        answer = server.http.get("/readyz")
        assert answer.status_code == 503
        assert answer.json() == {"status": "not ready", "reasons": ["starting"], "warnings": []}
        assert server.http.get("/openapi.json").json() == document()
        shown = server.http.get("/metrics").text
        assert "blendstream_ready 0.0" in shown
        assert "blendstream_build_info{" in shown


@pytest.fixture(scope="module")
def schema() -> Iterator[Any]:
    """The document, bound to the address of a server that stays as it is before its start."""
    with not_started(uds="", host="127.0.0.1", port=0) as server:
        yield schemathesis.openapi.from_url(f"{server.address}/openapi.json")


@pytest.mark.parametrize(("path", "method"), OPERATIONS)
def test_every_operation_answers_as_the_document_says(schema: Any, path: str, method: str) -> None:
    @settings(max_examples=5, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
    @given(case=schema[path][method.upper()].as_strategy())
    def check(case: Any) -> None:
        answer = case.call_and_validate(checks=CHECKS)
        assert answer.status_code == OPEN.get(path, 503)
        if path not in OPEN:
            assert answer.headers["retry-after"] == ["1"]
            assert answer.json() == {"detail": "starting; try again soon"}

    check()


def test_what_there_is_no_route_for_is_not_told_before_it_has_started() -> None:
    with not_started() as server:
        assert server.http.get("/no/such/path").status_code == 503
        server.service.start()
        assert server.http.get("/no/such/path").status_code == 404


def test_a_body_is_refused_without_a_look_at_it_and_the_connection_stays() -> None:
    with not_started() as server:
        for _ in range(2):
            assert server.http.post("/events", content=b"x" * 1_000_000).status_code == 503
        server.service.start()
        answers(server)


def test_a_client_waits_until_the_server_is_ready() -> None:
    with not_started() as server:
        with pytest.raises(TimeoutError, match=r"is not ready after 0.1 s: starting"):
            server.client.wait_until_ready(0.1)
        start = threading.Thread(target=server.service.start)
        start.start()
        server.client.wait_until_ready(60)
        answers(server)
        start.join()
    with Client(server.address) as client, pytest.raises(TimeoutError, match="no server answers"):
        client.wait_until_ready(0.1)


def answers(server: Serving) -> None:
    sequence = tokens(1, 2, 3, 4)
    server.emit(store(entries_of(sequence)))
    assert server.client.stats().num_keys == 1
