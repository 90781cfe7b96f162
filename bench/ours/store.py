"""Our store path alone: decoded batches into a directory that already holds `chunks` chunks."""

from __future__ import annotations

from itertools import count

from bench import workload
from bench.ours import engine
from bench.ours.wire import column_record
from bench.worker import Figures, Parameters, Round, seconds, serve


def prepare(parameters: Parameters) -> Round:
    """Load the directory; each round then stores the next `entries` new chunks."""
    decoder, gate, _ = engine.build(2 * parameters["chunks"] + 1_000_000)
    numbers = count(engine.load(decoder, gate, parameters["chunks"]))
    batches = parameters["entries"] // workload.BATCH_ENTRIES

    def run() -> Figures:
        decoded = [
            batch for _ in range(batches) for batch in engine.decode(decoder, column_record(next(numbers)))
        ]
        taken = seconds(lambda: gate.offer_all(decoded))
        return {"store_us": taken * 1e6 / (batches * workload.BATCH_ENTRIES)}

    return run


if __name__ == "__main__":
    serve(prepare)
