"""The peer's decode, gate and directory, as its Kafka source drives them: a record is one JSON body."""

from __future__ import annotations

from functools import partial
from typing import Any

from lmcache.v1.mp_coordinator.schemas import CacheEventsRequest  # type: ignore[import-not-found]

from bench import workload
from bench.peer.coordinator import build
from bench.turnover import Turnover
from bench.worker import Figures, Parameters, Round, seconds, serve


def prepare(parameters: Parameters) -> Round:
    """Each round stores the next `entries` of one endless stream."""
    gate, _ = build()
    turnover = Turnover(parameters["entries"], workload.row_record)

    def run() -> Figures:
        for record in turnover.deletes():
            gate.ingest_batches(CacheEventsRequest.model_validate_json(record).batches)
        records = turnover.stores()
        decoding = applying = 0.0
        for record in records:
            decoded: list[Any] = []

            def decode(record: bytes = record, decoded: list[Any] = decoded) -> None:
                decoded.extend(CacheEventsRequest.model_validate_json(record).batches)

            decoding += seconds(decode)
            applying += seconds(partial(gate.ingest_batches, decoded))
        entries = len(records) * workload.BATCH_ENTRIES
        return {
            "rows_per_s": entries / (decoding + applying),
            "rows_decode_per_s": entries / decoding,
        }

    run()
    run()
    return run


if __name__ == "__main__":
    serve(prepare)
