"""Asks a server through LMCache's `BlendCoordinatorClient` and prints the matches.

Reads `{"url", "queries": [{"tokens", "model_name", "cache_salt", "world_size"}]}`; prints a list of matches a
query, each `[chunk_hash, old_st, cur_st]`.
"""

from __future__ import annotations

import json
import sys
import time
from typing import Any

from lmcache.v1.mp_coordinator.api import BlendNamespace  # type: ignore[import-not-found]
from lmcache.v1.mp_coordinator.blend_client import (  # type: ignore[import-not-found]
    PENDING,
    BlendCoordinatorClient,
)

asked = json.load(sys.stdin)
client = BlendCoordinatorClient(asked["url"], request_timeout=30.0)
for number, query in enumerate(asked["queries"]):
    namespace = BlendNamespace(query["model_name"], query["cache_salt"], query["world_size"])
    client.submit_match(str(number), query["tokens"], namespace)


def answer(rid: str) -> Any:
    deadline = time.monotonic() + 60
    while (state := client.poll_match(rid)) is PENDING:
        if time.monotonic() > deadline:
            sys.exit(f"query {rid} was not answered")
        time.sleep(0.005)
    client.take_match(rid)
    return [[match.chunk_hash.hex(), match.old_st, match.cur_st] for match in state]


print(json.dumps([answer(str(number)) for number in range(len(asked["queries"]))]))
client.close()
