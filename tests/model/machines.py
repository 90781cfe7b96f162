"""A fleet as a state machine: emitters that speak, fall silent, come late, twice and again, and operators.

Subclasses say who listens, by overriding what happens at a delivery and at the operators' calls, and compare
model and engine after every step. Alphabets are small, so that everything that can collide does.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from producer.events import (
    UNKNOWN_TOKEN_OFFSET,
    CacheEventBatch,
    CacheEventEntry,
    EventType,
    Namespace,
    ObjectKey,
    Tier,
    make_kv_rank,
)
from tests.model.directory import Tokens

INSTANCES = ("a", "b", "ü")
CHUNKS = (b"\x00", b"\x00\x00", b"\x00" * 32, b"\x01" * 31)
MODELS = ("m", "n")
SALTS = ("", "s")
RANKS = (make_kv_rank(1, 0, 1, 0), make_kv_rank(2, 0, 2, 0), make_kv_rank(2, 1, 2, 1), 2**64 - 1, 0)
BACKENDS = ("x", "y")
GROUPS = (0, 1, 2**32 - 1)
WINDOW, SKEW = 10.0, 2.0
"""Repair window and clock skew, in seconds."""

keys = st.builds(
    ObjectKey,
    st.sampled_from(CHUNKS),
    st.sampled_from(MODELS),
    st.sampled_from(RANKS),
    st.sampled_from(GROUPS),
    st.sampled_from(SALTS),
)
instances = st.sampled_from(INSTANCES)
partitions = st.integers(0, 1)


@dataclass(frozen=True)
class Setting:
    """What is fixed for one run of a machine."""

    chunk_size: int
    stride: int
    blend: bool
    fingerprint_bits: int
    seekable: bool
    pool: list[ObjectKey]
    texts: list[Tokens]


@st.composite
def settings_to_try(draw: st.DrawFn) -> Setting:
    chunk_size = draw(st.integers(4, 8))
    lengths = st.sampled_from([chunk_size] * 5 + [1, chunk_size - 1, chunk_size + 1, 3 * chunk_size + 1])
    tokens = st.lists(st.integers(0, 2), min_size=25, max_size=25)
    texts = st.lists(st.builds(lambda ids, length: tuple(ids[:length]), tokens, lengths), min_size=1, max_size=4)
    return Setting(
        chunk_size,
        stride=draw(st.sampled_from((1, 1, 1, 2, 3))),
        blend=draw(st.integers(0, 7)) > 0,
        fingerprint_bits=draw(st.sampled_from((64, 64, 1, 2, 8))),
        seekable=draw(st.integers(0, 3)) > 0,
        pool=draw(st.lists(keys, min_size=1, max_size=6, unique=True)),
        texts=draw(texts),
    )


@dataclass(frozen=True)
class Said:
    """An entry before the run's keys and texts are filled in."""

    key: int
    text: int
    size: int
    offset: int


said = st.builds(
    Said,
    key=st.integers(0, 5),
    text=st.integers(-2, 3),  # negative: no tokens
    size=st.sampled_from((0, 1, 7, 2**40)),
    offset=st.sampled_from((UNKNOWN_TOKEN_OFFSET, 0, 1, 96)),
)
kinds = st.sampled_from(
    (EventType.STORE, EventType.STORE, EventType.STORE, EventType.DELETE, EventType.DELETE, EventType.ACCESS)
)


@dataclass(frozen=True)
class Sent:
    """A batch with what the reader of the log knows beside it; `position` is None where it came by HTTP."""

    batch: CacheEventBatch
    event_time: float
    generation: int
    position: tuple[int, int] | None


class Fleet(RuleBasedStateMachine):
    """Emitters and operators; what they do goes to `deliver` and its like."""

    setting: Setting

    def __init__(self) -> None:
        super().__init__()
        self.now = 100.0
        self.streams = {instance: (1, 0) for instance in INSTANCES}
        self.sent: list[Sent] = []
        self.ends = {0: 0, 1: 0}

    @initialize(setting=settings_to_try())
    def begins(self, setting: Setting) -> None:
        self.setting = setting
        self.start()

    # What subclasses do.

    def start(self) -> None:
        raise NotImplementedError

    def deliver(self, sent: Sent) -> None:
        raise NotImplementedError

    def drop_instance(self, instance_id: str, mark: dict[int, int] | None) -> None:
        raise NotImplementedError

    def register_instance(self, instance_id: str) -> None:
        raise NotImplementedError

    def reset(self, instance_id: str) -> None:
        raise NotImplementedError

    def accept_loss(
        self, instance_id: str, incarnation: int | None, first: int | None, last: int | None
    ) -> None:
        raise NotImplementedError

    def lose_tails(self, partition: int) -> None:
        raise NotImplementedError

    def tick(self, watermark: float) -> None:
        raise NotImplementedError

    def knows(self, instance_id: str) -> bool:
        raise NotImplementedError

    # What emitters do.

    @rule(
        instance=instances,
        kind=kinds,
        tier=st.sampled_from(Tier),
        backend=st.sampled_from(BACKENDS),
        entries=st.lists(said, min_size=1, max_size=4),
        shared=st.booleans(),
        ts=st.integers(0, 9),
        generation=st.sampled_from((0, 0, 0, 1)),
        partition=partitions,
        arrives=st.sampled_from((True, True, False)),
    )
    def emits(
        self,
        instance: str,
        kind: EventType,
        tier: Tier,
        backend: str,
        entries: list[Said],
        shared: bool,
        ts: int,
        generation: int,
        partition: int,
        arrives: bool,
    ) -> None:
        """The next batch of a stream, delivered now or held back."""
        incarnation, seq = self.streams[instance]
        self.streams[instance] = incarnation, seq + 1
        batch = CacheEventBatch(
            instance,
            incarnation,
            seq + 1,
            kind,
            tier,
            backend,
            [self._entry(entry, kind) for entry in entries],
            shared=shared,
            ts=float(ts and 100 + ts),
        )
        self._send(batch, float(100 + ts), generation, partition, arrives)

    @rule(instance=instances, config=st.booleans(), partition=partitions, arrives=st.booleans())
    def idles(self, instance: str, config: bool, partition: int, arrives: bool) -> None:
        """A batch that says nothing of any key."""
        incarnation, seq = self.streams[instance]
        self.streams[instance] = incarnation, seq + 1
        kind = EventType.CONFIG if config else EventType.ACCESS
        batch = CacheEventBatch(instance, incarnation, seq + 1, kind, Tier.L1, "x", ts=self.now)
        self._send(batch, self.now, 0, partition, arrives)

    @rule(instance=instances)
    def restarts(self, instance: str) -> None:
        self.streams[instance] = self.streams[instance][0] + 1, 0

    @rule(instance=instances, back=st.integers(0, 2))
    def has_its_clock_set_back(self, instance: str, back: int) -> None:
        self.streams[instance] = max(self.streams[instance][0] - back, 0), 0

    @precondition(lambda self: self.sent)
    @rule(back=st.integers(0, 11))
    def a_batch_comes_late_or_twice(self, back: int) -> None:
        self.deliver(self.sent[-1 - back % len(self.sent)])

    @precondition(lambda self: self.sent)
    @rule(back=st.integers(0, 3), by_ts=st.booleans())
    def another_process_says_something_else_under_a_number(self, back: int, by_ts: bool) -> None:
        sent = self.sent[-1 - back % len(self.sent)]
        changed = replace(sent.batch, ts=sent.batch.ts + 0.5) if by_ts else replace(sent.batch, entries=[])
        self.deliver(replace(sent, batch=changed))

    # What operators, and time, do.

    @rule(instance=instances, ahead=st.none() | st.integers(0, 1))
    def departs(self, instance: str, ahead: int | None) -> None:
        """With a mark at the log's ends, or a little before them, or without one."""
        mark = None if ahead is None else {p: max(end - ahead, 0) for p, end in self.ends.items()}
        self.drop_instance(instance, mark)

    @rule(instance=instances)
    def registers(self, instance: str) -> None:
        self.register_instance(instance)

    @rule(instance=instances)
    def is_reset(self, instance: str) -> None:
        if self.knows(instance):
            self.reset(instance)

    @rule(
        instance=instances,
        back=st.none() | st.integers(0, 2),
        first=st.none() | st.integers(1, 4),
        more=st.none() | st.integers(0, 3),
    )
    def loss_is_accepted(self, instance: str, back: int | None, first: int | None, more: int | None) -> None:
        if self.knows(instance):
            incarnation = None if back is None else max(self.streams[instance][0] - back, 0)
            last = None if more is None else more + (first or 1)
            self.accept_loss(instance, incarnation, first, last)

    @rule(partition=partitions)
    def log_is_cut(self, partition: int) -> None:
        self.lose_tails(partition)

    @rule(passed=st.sampled_from((0.0, 1.0, WINDOW)), watermark=st.integers(0, 14))
    def time_passes(self, passed: float, watermark: int) -> None:
        self.now += passed
        self.tick(float(100 + watermark))

    def _entry(self, entry: Said, kind: EventType) -> CacheEventEntry:
        key = self.setting.pool[entry.key % len(self.setting.pool)]
        if kind is not EventType.STORE:
            return CacheEventEntry(key)
        texts = self.setting.texts
        tokens = texts[entry.text % len(texts)] if entry.text >= 0 else ()
        return CacheEventEntry(key, entry.size, tokens, entry.offset)

    def _send(
        self, batch: CacheEventBatch, event_time: float, generation: int, partition: int, arrives: bool
    ) -> None:
        position = (partition, self.ends[partition])
        self.ends[partition] += 1
        sent = Sent(batch, event_time, generation, position)
        self.sent.append(sent)
        if arrives:
            self.deliver(sent)


def query_of(setting: Setting) -> list[int]:
    """All texts twice, in both orders, with a foreign token here and there."""
    tokens: list[int] = []
    for text in [*setting.texts, *reversed(setting.texts)]:
        tokens += [*text, 7] if len(text) % 2 else text
    return tokens


def namespaces_of(setting: Setting) -> list[Namespace]:
    return sorted({key.namespace for key in setting.pool}, key=repr)
