"""The peer's store path alone: decoded batches into a directory that already holds `chunks` chunks."""

from __future__ import annotations

from itertools import count

from bench import workload
from bench.peer.coordinator import batch, build, load
from bench.worker import Figures, Parameters, Round, seconds, serve


def prepare(parameters: Parameters) -> Round:
    """Load the directory; each round then stores the next `entries` new chunks."""
    gate, _ = build()
    numbers = count(load(gate, parameters["chunks"]))
    batches = parameters["entries"] // workload.BATCH_ENTRIES

    def run() -> Figures:
        decoded = [batch(next(numbers)) for _ in range(batches)]
        taken = seconds(lambda: gate.ingest_batches(decoded))
        return {"store_us": taken * 1e6 / (batches * workload.BATCH_ENTRIES)}

    return run


if __name__ == "__main__":
    serve(prepare)
