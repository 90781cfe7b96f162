"""The peer's decode, gate and directory, as its Kafka source drives them: a record is one JSON body."""

from __future__ import annotations

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
        decoded: list[Any] = []

        def decode() -> None:
            decoded.extend(CacheEventsRequest.model_validate_json(record).batches for record in records)

        def apply() -> None:
            for body in decoded:
                gate.ingest_batches(body)

        decoding, applying = seconds(decode), seconds(apply)
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
