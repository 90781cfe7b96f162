"""A cache server's life as LMCache's `CacheEventSubscriber` tells it, through LMCache's Kafka sink.

Reads `{"bootstrap", "topic", "instance_id", "incarnation", "chunks": [{"hash", "tokens", "offset"}], "model",
"kv_rank", "size"}`. It binds the tokens, stores every chunk in DRAM and in a shared S3 pool, reads the first,
and evicts the last from DRAM. The handlers are called as the event bus calls them.
"""

from __future__ import annotations

import json
import sys
from typing import Any

from lmcache.v1.distributed.api import L1BackendType, ObjectKey  # type: ignore[import-not-found]
from lmcache.v1.distributed.internal_api import L1ObjectMeta  # type: ignore[import-not-found]
from lmcache.v1.mp_coordinator.cache_events import (  # type: ignore[import-not-found]
    CacheEventSubscriber,
    KafkaCacheEventSink,
)
from lmcache.v1.mp_observability.event import Event, EventType  # type: ignore[import-not-found]
from lmcache.v1.multiprocess.config import KafkaCacheEventSinkConfig  # type: ignore[import-not-found]

told = json.load(sys.stdin)
subscriber = CacheEventSubscriber(
    sink=KafkaCacheEventSink(
        KafkaCacheEventSinkConfig(bootstrap_servers=told["bootstrap"], topic=told["topic"])
    ),
    instance_id=told["instance_id"],
    incarnation=told["incarnation"],
    flush_interval=0.0,
)
handlers = subscriber.get_subscriptions()


def happens(event_type: Any, **metadata: object) -> None:
    handlers[event_type](Event(event_type=event_type, metadata=metadata))


chunks = told["chunks"]
hashes = [bytes.fromhex(chunk["hash"]) for chunk in chunks]
keys = [ObjectKey(digest, told["model"], told["kv_rank"]) for digest in hashes]
meta = [L1ObjectMeta(size_bytes=told["size"], backend=L1BackendType.DRAM) for _ in keys]

happens(
    EventType.MP_TOKENS,
    chunk_hashes=hashes,
    token_chunks=[chunk["tokens"] for chunk in chunks],
    token_offsets=[chunk["offset"] for chunk in chunks],
)
happens(EventType.L1_WRITE_FINISHED, keys=keys, meta=meta)
happens(EventType.L2_KEYS_STORED, keys=keys, sizes=[told["size"]] * len(keys), backend="s3", shared=True)
happens(EventType.L1_KEYS_ACCESSED, keys=keys[:1])
happens(EventType.L1_KEYS_EVICTED, keys=keys[-1:], meta=meta[-1:])
subscriber.shutdown()
