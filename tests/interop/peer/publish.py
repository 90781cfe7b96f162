"""Publishes batches through one of LMCache's own sinks.

Reads from standard input `{"sink": "http", "url"}` or `{"sink": "kafka", "bootstrap", "topic"}`, with
`batches` in the row wire, one `publish` a batch. Exits non-zero unless every batch was delivered.
"""

from __future__ import annotations

import json
import sys

from lmcache.v1.mp_coordinator.cache_events import (  # type: ignore[import-not-found]
    HttpCacheEventSink,
    KafkaCacheEventSink,
)
from lmcache.v1.mp_coordinator.schemas import CacheEventsRequest  # type: ignore[import-not-found]
from lmcache.v1.multiprocess.config import KafkaCacheEventSinkConfig  # type: ignore[import-not-found]

asked = json.load(sys.stdin)
if asked["sink"] == "http":
    sink = HttpCacheEventSink(asked["url"], timeout=30.0)
else:
    sink = KafkaCacheEventSink(
        KafkaCacheEventSinkConfig(bootstrap_servers=asked["bootstrap"], topic=asked["topic"])
    )
for batch in CacheEventsRequest.model_validate({"batches": asked["batches"]}).batches:
    sink.publish([batch])
sink.close()
if getattr(sink, "dropped_batches", 0):
    sys.exit(f"{sink.dropped_batches} batches were dropped")
