"""The two ways in which a segment gets to its place: tests' segments are small, so the limit decides it."""

from __future__ import annotations

import pytest

from processor.durability import restoration

LIMITS = {"mapped": 0, "read": 1 << 60}


@pytest.fixture(params=list(LIMITS))
def way_of_restoring(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Every segment is mapped, or every one is read."""
    monkeypatch.setattr(restoration, "MAPPED_FROM_BYTES", LIMITS[request.param])
    return str(request.param)
