"""Our decode, gate, directory and blend index, one record after the other, once a wire."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import count

from bench import workload
from bench.ours import engine
from bench.ours.wire import column_record
from bench.worker import Figures, Parameters, Round, seconds, serve
from processor.batch import EventBatch

MAX_CHUNKS = 4_000_000


def prepare(parameters: Parameters) -> Round:
    """Each round takes the next `entries` of one endless stream, on an engine of its own for each wire."""
    batches = parameters["entries"] // workload.BATCH_ENTRIES
    wires = [_Wire("rows", workload.row_record), _Wire("columns", column_record)]

    def run() -> Figures:
        figures: Figures = {}
        for wire in wires:
            figures |= wire.round(batches)
        return figures

    return run


class _Wire:
    def __init__(self, name: str, record: Callable[[int], bytes]) -> None:
        self._name = name
        self._record = record
        self._numbers: Iterator[int] = count()
        self._decoder, self._gate, _ = engine.build(MAX_CHUNKS)
        self.round(2)  # loads the compiled kernels

    def round(self, batches: int) -> Figures:
        records = [self._record(next(self._numbers)) for _ in range(batches)]
        decoded: list[list[EventBatch]] = []

        def decode() -> None:
            decoded.extend(engine.decode(self._decoder, record) for record in records)

        def apply() -> None:
            for body in decoded:
                self._gate.offer_all(body)

        decoding, applying = seconds(decode), seconds(apply)
        entries = batches * workload.BATCH_ENTRIES
        return {
            f"{self._name}_per_s": entries / (decoding + applying),
            f"{self._name}_decode_per_s": entries / decoding,
        }


if __name__ == "__main__":
    serve(prepare)
