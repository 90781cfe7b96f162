"""Directory and index against the model, entry by entry: both hear what the model's gate admits."""

from __future__ import annotations

from hypothesis import strategies as st
from hypothesis.stateful import invariant, precondition, rule

from processor.state.directory import KeyDirectory
from producer.events import Namespace, Tier
from tests.model.compare import assert_same_directory, assert_same_listing, matches
from tests.model.convert import admission
from tests.model.directory import Directory
from tests.model.gate import Admitted, Gate
from tests.model.machines import (
    BACKENDS,
    INSTANCES,
    MODELS,
    SALTS,
    WINDOW,
    Fleet,
    namespaces_of,
    neighbours,
    query_of,
)


class Both:
    """Tells two directories the same."""

    def __init__(self, model: Directory, engine: KeyDirectory) -> None:
        self.model, self.engine = model, engine

    def consume(self, admitted: Admitted) -> None:
        self.model.consume(admitted)
        self.engine.consume(admission(admitted))

    def fence(self, instance_id: str) -> None:
        self.model.fence(instance_id)
        self.engine.fence(instance_id)

    def settle(self, instance_id: str) -> None:
        self.model.settle(instance_id)
        self.engine.settle(instance_id)

    def expire(self, before: float) -> None:
        self.model.expire(before)
        self.engine.expire(before)


class DirectoryMachine(Fleet):
    model: Directory
    engine: KeyDirectory

    def start(self) -> None:
        setting = self.setting
        self.model = Directory(setting.chunk_size, setting.blend, setting.stride)
        self.engine = KeyDirectory(
            chunk_size=setting.chunk_size,
            max_chunks=64,
            enable_blend=setting.blend,
            probe_stride=setting.stride,
            seed=bytes(32),
            fingerprint_bits=setting.fingerprint_bits,
        )
        self.connect()

    def connect(self) -> None:
        self.gate = Gate(Both(self.model, self.engine), repair_window=WINDOW, seekable=self.setting.seekable)

    @rule(
        tier=st.none() | st.sampled_from(Tier),
        instance=st.sampled_from(("", *INSTANCES, "nobody")),
        backend=st.sampled_from(("", *BACKENDS, "nowhere")),
        page=st.integers(1, 4),
    )
    def keys_are_listed(self, tier: Tier | None, instance: str, backend: str, page: int) -> None:
        assert_same_listing(self.model, self.engine, tier, instance, backend, page)

    @rule(
        query=st.lists(st.integers(0, 2), max_size=40),
        namespace=st.builds(
            Namespace, st.sampled_from(MODELS), st.sampled_from(SALTS), st.sampled_from((0, 1, 2, 255))
        ),
    )
    def any_query_is_matched(self, query: list[int], namespace: Namespace) -> None:
        assert matches(self.engine, query, namespace) == self.model.match(query, namespace)

    @precondition(lambda self: hasattr(self, "setting"))
    @invariant()
    def both_know_the_same(self) -> None:
        setting = self.setting
        assert_same_directory(
            self.model, self.engine, neighbours(setting.pool), namespaces_of(setting), query_of(setting)
        )
