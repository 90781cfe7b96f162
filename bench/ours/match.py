"""Our match of long prompts against `chunks` indexed chunks."""

from __future__ import annotations

import statistics
from functools import partial

from bench import workload
from bench.ours import engine
from bench.worker import Figures, Parameters, Round, seconds, serve


def prepare(parameters: Parameters) -> Round:
    """Load the index; each round matches every prompt once."""
    decoder, gate, directory = engine.build(2 * parameters["chunks"])
    engine.load(decoder, gate, parameters["chunks"])
    hits = parameters["hits"]
    queries = list(workload.queries(parameters["queries"], parameters["tokens"], hits, parameters["chunks"]))

    def run() -> Figures:
        for tokens in queries:
            found = len(directory.match(tokens, engine.NAMESPACE))
            if found != hits:
                raise RuntimeError(f"{found} matches where the prompt holds {hits}")
        taken = [seconds(partial(directory.match, tokens, engine.NAMESPACE)) for tokens in queries]
        return {"match_us": statistics.median(taken) * 1e6}

    return run


if __name__ == "__main__":
    serve(prepare)
