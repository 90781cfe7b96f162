"""A server a test."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.api.serving import Serving, serving


@pytest.fixture
def server() -> Iterator[Serving]:
    """A server of chunks of four tokens, fed by POST /events."""
    with serving() as running:
        yield running
