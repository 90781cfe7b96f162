"""The peer's resident memory an entry, after `chunks` stored entries.

The entries come in as records, since what decoding leaves behind (a string object a field) is part of the
figure.
"""

from __future__ import annotations

from typing import Any

from lmcache.v1.mp_coordinator.schemas import CacheEventsRequest  # type: ignore[import-not-found]

from bench import workload
from bench.peer.coordinator import build
from bench.worker import Figures, Parameters, Round, resident_bytes, serve


def prepare(parameters: Parameters) -> Round:
    """Warm up on a directory of its own, so that imports and compiled code are not counted."""
    _ingest(build()[0], 1)
    held = []

    def run() -> Figures:
        before = resident_bytes()
        gate, directory = build()
        held.append((gate, directory))
        _ingest(gate, parameters["chunks"] // workload.BATCH_ENTRIES)
        return {"bytes_per_entry": (resident_bytes() - before) / directory.stats().num_keys}

    return run


def _ingest(gate: Any, batches: int) -> None:
    for number in range(batches):
        gate.ingest_batches(CacheEventsRequest.model_validate_json(workload.row_record(number)).batches)


if __name__ == "__main__":
    serve(prepare)
