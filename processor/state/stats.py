"""What the directory tells of itself as a whole: its counts, what each place holds, how large it may grow."""

from __future__ import annotations

from dataclasses import dataclass

from processor.state.blend import BlendStats
from processor.state.limits import MOST_CHUNKS
from processor.state.memory import machine_memory
from producer.events import Tier

BYTES_A_CHUNK = 2_048
"""What a chunk takes beside its tokens, with a few keys and placements, rounded up."""


@dataclass(frozen=True, slots=True)
class DirectoryStats:
    """Counts of what the fleet holds; sizes in bytes.

    Attributes:
        l1_keys_by_instance: live L1 placements by the instance that reported them; 0 for one heard since its
            last fence.
        num_tombstones: deletes remembered for writes that are older and still to come.
        refused: entries for which there was no room.
    """

    num_keys: int
    num_placements: int
    l1_keys_by_instance: dict[str, int]
    blend: BlendStats
    l1_count: int
    l1_size_bytes: int
    l2_count: int
    l2_size_bytes: int
    num_tombstones: int
    refused: int


@dataclass(frozen=True, slots=True)
class Usage:
    """What one place holds: an instance's own (tier, backend), or a shared pool under the instance id ""."""

    instance_id: str
    tier: Tier
    backend: str
    shared: bool
    count: int
    size_bytes: int


def default_max_chunks(chunk_size: int) -> int:
    """Return how many chunks of so many tokens fit into half of the machine's memory."""
    return min(max(machine_memory() // 2 // (BYTES_A_CHUNK + 4 * chunk_size), 1), MOST_CHUNKS)
