"""The peer's match of long prompts against `chunks` indexed chunks."""

from __future__ import annotations

import statistics
from functools import partial

import numpy as np

from bench import workload
from bench.peer.coordinator import NAMESPACE, build, load
from bench.worker import Figures, Parameters, Round, seconds, serve


def prepare(parameters: Parameters) -> Round:
    """Load the index; each round matches every prompt once."""
    gate, directory = build()
    load(gate, parameters["chunks"])
    hits = parameters["hits"]
    # The peer widens the tokens to uint64 when it decodes a request, so it is handed them that way.
    queries = [
        tokens.astype(np.uint64)
        for tokens in workload.queries(
            parameters["queries"], parameters["tokens"], hits, parameters["chunks"]
        )
    ]

    def run() -> Figures:
        for tokens in queries:
            found = len(directory.blend_match(tokens, NAMESPACE))
            if found != hits:
                raise RuntimeError(f"{found} matches where the prompt holds {hits}")
        taken = [seconds(partial(directory.blend_match, tokens, NAMESPACE)) for tokens in queries]
        return {"match_us": statistics.median(taken) * 1e6}

    return run


if __name__ == "__main__":
    serve(prepare)
