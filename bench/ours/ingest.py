"""Our decode, gate, directory and blend index, one record after the other, once a wire."""

from __future__ import annotations

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
        decoded: list[list[EventBatch]] = []

        def decode() -> None:
            decoded.extend(engine.decode(self._decoder, record) for record in records)

        def apply() -> None:
            for body in decoded:
                self._gate.offer_all(body)

        decoding, applying = seconds(decode), seconds(apply)
        entries = len(records) * workload.BATCH_ENTRIES
        return {
            f"{self._name}_per_s": entries / (decoding + applying),
            f"{self._name}_decode_per_s": entries / decoding,
        }


if __name__ == "__main__":
    serve(prepare)
