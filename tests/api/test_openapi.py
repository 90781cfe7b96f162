"""The OpenAPI document against the running server: whatever is sent, the answer is one that it names."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, given, settings
from schemathesis import GenerationMode
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from api.openapi import document
from producer.events import Tier
from tests.api.operations import OPERATIONS
from tests.api.serving import entries_of, serving, store, tokens

CHECKS: list[Any] = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_schema_conformance,
]
SEQUENCE = tokens(1, 2, 3, 4, 5, 6, 7, 8)


MODES = [(path, method, GenerationMode.POSITIVE) for path, method in OPERATIONS] + [
    (path, method, GenerationMode.NEGATIVE)
    for (path, method), operation in OPERATIONS.items()
    if "requestBody" in operation or "parameters" in operation
]


@pytest.fixture(scope="module")
def schema() -> Iterator[Any]:
    """The document of a server with something in it, bound to its address."""
    with serving(uds="", host="127.0.0.1", port=0) as server:
        server.emit(
            store(entries_of(SEQUENCE), 3), store(entries_of(SEQUENCE), 4, tier=Tier.L2, backend="fs")
        )
        yield schemathesis.openapi.from_url(f"{server.address}/openapi.json")


@pytest.mark.parametrize(("path", "method", "mode"), MODES)
def test_every_operation_answers_as_the_document_says(
    schema: Any, path: str, method: str, mode: GenerationMode
) -> None:
    cases = schema[path][method.upper()].as_strategy(generation_mode=mode)

    @settings(max_examples=40, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
    @given(case=cases)
    def check(case: Any) -> None:
        case.call_and_validate(checks=CHECKS)

    check()


def test_the_document_names_every_route_and_nothing_else() -> None:
    with serving() as server:
        served = server.http.get("/openapi.json").json()
        assert served == document()
        for path, operations in served["paths"].items():
            url = path.replace("{instance_id}", "nobody")
            allowed = {method.upper() for method in operations if method != "parameters"}
            answer = server.http.request("PATCH", url)
            if "{instance_id}" not in path:
                assert answer.status_code == 405
                assert set(answer.headers["allow"].split(", ")) - {"HEAD"} == allowed
        assert (
            "application/octet-stream"
            in (served["paths"]["/directory/blend-lookup"]["post"]["requestBody"]["content"])
        )
