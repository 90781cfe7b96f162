"""Our resident memory an entry, after `chunks` stored entries that came by the column wire."""

from __future__ import annotations

from bench import workload
from bench.ours import engine
from bench.worker import Figures, Parameters, Round, resident_bytes, serve


def prepare(parameters: Parameters) -> Round:
    """Warm up on an engine of its own, so that imports and compiled kernels are not counted."""
    decoder, gate, _ = engine.build(1_024)
    engine.load(decoder, gate, workload.BATCH_ENTRIES)
    held = []

    def run() -> Figures:
        before = resident_bytes()
        decoder, gate, directory = engine.build(2 * parameters["chunks"])
        held.append((gate, directory))
        engine.load(decoder, gate, parameters["chunks"])
        return {"bytes_per_entry": (resident_bytes() - before) / directory.stats().num_keys}

    return run


if __name__ == "__main__":
    serve(prepare)
