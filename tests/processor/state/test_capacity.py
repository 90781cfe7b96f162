from __future__ import annotations

from processor.batch import Admission, EventBatch
from processor.state.capacity import Capacity, CapacityRegistry
from producer.events import EventType, Tier


def declaration(
    backend: str,
    revision: int,
    *,
    size: int = 100,
    tier: Tier = Tier.L1,
    epoch: int = 1,
    l1_void: bool = False,
) -> Admission:
    batch = EventBatch(
        "a", 5, 1, EventType.CONFIG, tier, backend, capacity_bytes=size, capacity_revision=revision
    )
    return Admission(batch, epoch, l1_void=l1_void)


def backends(registry: CapacityRegistry) -> list[str]:
    return [capacity.backend for capacity in registry.get("a")]


def test_batches_of_one_revision_make_one_declaration() -> None:
    registry = CapacityRegistry()
    registry.consume(declaration("dram", 1))
    registry.consume(declaration("fs", 1, tier=Tier.L2, size=7))
    assert registry.get("a") == (Capacity(Tier.L1, "dram", 100, False), Capacity(Tier.L2, "fs", 7, False))
    assert registry.get_all() == {"a": registry.get("a")}


def test_a_newer_revision_drops_the_compartments_it_leaves_out() -> None:
    registry = CapacityRegistry()
    registry.consume(declaration("dram", 1))
    registry.consume(declaration("cxl", 2))
    assert backends(registry) == ["cxl"]


def test_a_late_batch_of_an_older_revision_changes_nothing() -> None:
    registry = CapacityRegistry()
    registry.consume(declaration("dram", 2))
    registry.consume(declaration("cxl", 1))
    assert backends(registry) == ["dram"]


def test_a_restarted_emitter_counts_its_revisions_anew() -> None:
    registry = CapacityRegistry()
    registry.consume(declaration("dram", 9))
    registry.consume(declaration("cxl", 0, epoch=2))
    assert backends(registry) == ["cxl"]


def test_a_late_batch_of_an_older_incarnation_declares_no_memory_that_died_with_it() -> None:
    registry = CapacityRegistry()
    registry.consume(declaration("dram", 1, l1_void=True))
    registry.consume(declaration("fs", 1, tier=Tier.L2, l1_void=True))
    assert backends(registry) == ["fs"]


def test_a_fence_keeps_the_declaration_and_a_departure_drops_it() -> None:
    registry = CapacityRegistry()
    registry.consume(declaration("dram", 1))
    registry.fence("a")
    assert backends(registry) == ["dram"]
    registry.forget("a")
    assert registry.get("a") == ()


def test_batches_of_other_types_declare_nothing() -> None:
    registry = CapacityRegistry()
    registry.consume(Admission(EventBatch("a", 5, 1, EventType.STORE, Tier.L1, "dram"), 1))
    assert registry.get_all() == {}
