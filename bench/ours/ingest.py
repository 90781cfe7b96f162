"""Our decode, gate, directory and blend index, one record after the other, once a wire."""

from __future__ import annotations

from functools import partial

from bench import workload
from bench.ours import engine
from bench.ours.wire import column_record
from bench.turnover import Turnover
from bench.worker import Figures, Parameters, Round, seconds, serve
from processor.batch import EventBatch

MAX_CHUNKS = 1_000_000


def prepare(parameters: Parameters) -> Round:
    """Each round stores the next `entries` of one endless stream, on an engine of its own for each wire."""
    wires = [
        _Wire("rows", Turnover(parameters["entries"], workload.row_record)),
        _Wire("columns", Turnover(parameters["entries"], column_record)),
    ]

    def run() -> Figures:
        figures: Figures = {}
        for wire in wires:
            figures |= wire.round()
        return figures

    run()
    run()
    return run


class _Wire:
    def __init__(self, name: str, turnover: Turnover) -> None:
        self._name = name
        self._turnover = turnover
        self._decoder, self._gate, _ = engine.build(MAX_CHUNKS)

    def round(self) -> Figures:
        for record in self._turnover.deletes():
            self._gate.offer_all(engine.decode(self._decoder, record))
        records = self._turnover.stores()
        decoding = applying = 0.0
        for record in records:
            decoded: list[EventBatch] = []

            def decode(record: bytes = record, decoded: list[EventBatch] = decoded) -> None:
                decoded.extend(engine.decode(self._decoder, record))

            decoding += seconds(decode)
            applying += seconds(partial(self._gate.offer_all, decoded))
        entries = len(records) * workload.BATCH_ENTRIES
        return {
            f"{self._name}_per_s": entries / (decoding + applying),
            f"{self._name}_decode_per_s": entries / decoding,
        }


if __name__ == "__main__":
    serve(prepare)
