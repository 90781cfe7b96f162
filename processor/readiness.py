"""What an operator is told of a running service: why it is not ready, and what wants attention.

Each is one line that names the setting, the broker or the disk that it is about.
"""

from __future__ import annotations

import time

from processor.config import Config
from processor.durability.keeper import CheckpointStatus
from processor.ingest.source import SourceStatus
from processor.meters import Meter


def behind(status: SourceStatus, config: Config) -> list[str]:
    """Why the state may lack what a source's stream has said already; a lag that is not known counts."""
    name = status.name
    if name == "kafka":
        name = f"kafka at {config.kafka_bootstrap_servers}"
    if status.error is not None:
        return [f"{name}: {status.error}"]
    if status.lag_seconds is None:
        return [f"{name}: how far reading is behind is not known yet"]
    if status.lag_seconds > config.max_lag:
        return [f"{name}: {status.lag_seconds:.1f} s behind the end, more than --max-lag {config.max_lag:g}"]
    return []


def state_warnings(capacity_used: float, max_chunks: int, meter: Meter) -> list[str]:
    """What is wrong with the state, or with what the fleet sends."""
    found = []
    if capacity_used >= 1.0:
        found.append(f"the state is full (--max-chunks {max_chunks}): new keys are refused")
    if meter.chunk_size_in_doubt():
        found.append(
            f"cache servers store chunks of {meter.unfitting_length} tokens, and --chunk-size is "
            f"{meter.chunk_size}: such chunks cannot be found by content, nor by tokens"
        )
    return found


def checkpoint_warnings(status: CheckpointStatus | None) -> list[str]:
    """That the last checkpoint could not be written, and since when there is none."""
    if status is None or not status.failure:
        return []
    if status.newest is None:
        return [f"no checkpoint could be written yet: {status.failure}"]
    moment = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(status.newest))
    return [f"no checkpoint since {moment}: {status.failure}"]


def told_range(incarnation: int | None, first: int | None, last: int | None) -> str:
    """Which batches an operator named; what is None narrows nothing."""
    if incarnation is None and first is None and last is None:
        return "all that is lacking and may still come"
    batches = f"{first or 1} to {last}" if last is not None else f"from {first or 1} on"
    return f"batches {batches}" + (f" of incarnation {incarnation}" if incarnation is not None else "")
