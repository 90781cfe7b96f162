"""A fleet as a state machine: emitters that speak, fall silent, come late, twice and again, and operators.

The model's gate hears all of it. Subclasses say who listens behind it, tell the engine the same, and compare
the two after every step. Alphabets are small, so that everything that can collide does.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from random import Random

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
from tests.model.gate import Gate, Result

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
    texts = st.lists(
        st.builds(lambda ids, length: tuple(ids[:length]), tokens, lengths), min_size=1, max_size=4
    )
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


@dataclass(frozen=True)
class Utterance:
    """A batch before its emitter, its number, keys and texts are filled in."""

    kind: EventType
    tier: Tier
    backend: str
    shared: bool
    entries: list[Said]
    time: int
    tells_time: bool
    generation: int
    partition: int
    arrives: bool


STORE, DELETE, ACCESS, CONFIG = EventType.STORE, EventType.DELETE, EventType.ACCESS, EventType.CONFIG
utterances = st.builds(
    Utterance,
    kind=st.sampled_from((STORE,) * 5 + (DELETE,) * 3 + (ACCESS, CONFIG)),
    tier=st.sampled_from(Tier),
    backend=st.sampled_from(BACKENDS),
    shared=st.booleans(),
    entries=st.lists(said, max_size=4),
    time=st.integers(101, 109),
    tells_time=st.booleans(),
    generation=st.sampled_from((0, 0, 0, 1)),
    partition=partitions,
    arrives=st.sampled_from((True, True, False)),
)


@dataclass(frozen=True)
class Sent:
    """A batch with what the reader of the log knows beside it; `position` is None where it came by HTTP."""

    batch: CacheEventBatch
    event_time: float
    generation: int
    position: tuple[int, int] | None


@dataclass(frozen=True)
class Named:
    """What an operator names of a stream: an incarnation so far back, and a range of its batches."""

    back: int | None
    first: int | None
    more: int | None


named = st.builds(
    Named,
    back=st.none() | st.integers(0, 2),
    first=st.none() | st.integers(1, 4),
    more=st.none() | st.integers(0, 3),
)


class ReadLog:
    """The log as far as it was read live."""

    def __init__(self) -> None:
        self.lagging = False
        self.read: dict[int, int] = {0: 0, 1: 0}

    def behind(self, partition: int) -> bool:
        return self.lagging

    def positions(self) -> dict[int, int]:
        return dict(self.read)

    def replay_status(self, instance_id: str) -> None:
        return None


class Fleet(RuleBasedStateMachine):
    """Emitters, operators, replay and restarts; what they do goes to `deliver` and its like."""

    setting: Setting
    gate: Gate

    def __init__(self) -> None:
        super().__init__()
        self.now = 100.0
        self.streams = dict.fromkeys(INSTANCES, (1, 0))
        self.sent: list[Sent] = []
        self.ends = {0: 0, 1: 0}
        self.log = ReadLog()

    @initialize(setting=settings_to_try())
    def begins(self, setting: Setting) -> None:
        self.setting = setting
        self.start()

    def start(self) -> None:
        """Make the model's gate and whatever is held against it."""
        raise NotImplementedError

    # What the model is told; subclasses tell the engine the same.

    def deliver(self, sent: Sent) -> Result:
        return self.gate.offer(
            sent.batch, sent.position, event_time=sent.event_time, generation=sent.generation, now=self.now
        )

    def read_again(self, sent: Sent) -> Result:
        assert sent.position is not None
        return self.gate.read_again(
            sent.batch, sent.position, event_time=sent.event_time, generation=sent.generation, now=self.now
        )

    def give_up(self, instance_id: str, incarnation: int, first: int, last: int, reason: str) -> int:
        return self.gate.give_up(instance_id, incarnation, first, last, reason, self.now)

    def request(self, instance_id: str, incarnation: int | None, first: int | None, last: int | None) -> None:
        self.gate.request(instance_id, incarnation, first, last)

    def finish(self, instance_id: str) -> None:
        self.gate.finish(instance_id)

    def drop_instance(self, instance_id: str, mark: dict[int, int] | None) -> None:
        self.gate.drop_instance(instance_id, mark)

    def register_instance(self, instance_id: str) -> None:
        self.gate.register_instance(instance_id)

    def reset(self, instance_id: str) -> None:
        self.gate.reset(instance_id)

    def accept_loss(
        self, instance_id: str, incarnation: int | None, first: int | None, last: int | None
    ) -> None:
        self.gate.accept_loss(instance_id, incarnation, first, last)

    def lose_tails(self, partition: int) -> None:
        self.gate.lose_tails(partition, self.now)

    def lose_log(self) -> None:
        self.gate.lose_log(self.now)

    def note_ends(self, ends: dict[int, int]) -> None:
        self.gate.note_ends(ends, self.now)

    def read_on(self, positions: dict[int, int]) -> None:
        self.gate.read_on(positions)

    def tick(self, watermark: float) -> None:
        self.gate.tick(self.now, watermark, SKEW)

    def die_and_return(self) -> None:
        self.gate.die_and_return(self.now)

    # What emitters do.

    @rule(instance=instances, utterances=st.lists(utterances, min_size=1, max_size=4))
    def emits(self, instance: str, utterances: list[Utterance]) -> None:
        """The next batches of a stream, each delivered now or held back."""
        for said in utterances:
            incarnation, seq = self.streams[instance]
            self.streams[instance] = incarnation, seq + 1
            silent = said.kind is EventType.CONFIG
            batch = CacheEventBatch(
                instance,
                incarnation,
                seq + 1,
                said.kind,
                said.tier,
                said.backend,
                [] if silent else [self._entry(entry, said.kind) for entry in said.entries],
                shared=said.shared,
                ts=float(said.time if said.tells_time else 0),
            )
            position = (said.partition, self.ends[said.partition])
            self.ends[said.partition] += 1
            sent = Sent(batch, float(said.time), said.generation, position)
            self.sent.append(sent)
            if said.arrives:
                self.deliver(sent)

    @rule(instance=instances, by=st.sampled_from((1, 1, 1, 0, -1, -2)))
    def restarts(self, instance: str, by: int) -> None:
        """As the next incarnation, or with a clock set back."""
        self.streams[instance] = max(self.streams[instance][0] + by, 0), 0

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

    # What replay does.

    @precondition(lambda self: self.sent)
    @rule(back=st.integers(0, 11))
    def a_batch_is_read_again(self, back: int) -> None:
        self.read_again(self.sent[-1 - back % len(self.sent)])

    @precondition(lambda self: self.sent)
    @rule(order=st.randoms(use_true_random=False), count=st.integers(1, 12))
    def the_log_is_read_again(self, order: Random, count: int) -> None:
        for sent in order.sample(self.sent, min(count, len(self.sent))):
            self.read_again(sent)

    @rule(
        instance=instances,
        which=st.integers(0, 7),
        more=st.integers(0, 3),
        reason=st.sampled_from(("never_produced", "undecodable")),
    )
    def a_search_finds_nothing(self, instance: str, which: int, more: int, reason: str) -> None:
        stream = self.gate.streams.get(instance)
        missing = [] if stream is None else stream.searched
        if missing:
            incarnation, first = missing[which % len(missing)]
            self.give_up(instance, incarnation, first, first + more, reason)

    @rule(instance=instances, named=named)
    def a_replay_is_asked_for(self, instance: str, named: Named) -> None:
        if instance in self.gate.streams:
            self.request(instance, *self._range(instance, named))

    @rule(instance=instances)
    def a_replay_comes_to_its_end(self, instance: str) -> None:
        if instance in self.gate.streams and self.gate.streams[instance].reapply is not None:
            self.finish(instance)

    # What operators, and time, do.

    @rule(instance=instances, ahead=st.none() | st.integers(0, 1), returns=st.booleans())
    def departs(self, instance: str, ahead: int | None, returns: bool) -> None:
        """With a mark at the log's ends, or a little before them, or without one."""
        mark = None if ahead is None else {p: max(end - ahead, 0) for p, end in self.ends.items()}
        self.drop_instance(instance, mark)
        if returns:
            self.register_instance(instance)

    @rule(instance=instances)
    def is_reset(self, instance: str) -> None:
        if instance in self.gate.streams:
            self.reset(instance)

    @rule(instance=instances, named=named)
    def loss_is_accepted(self, instance: str, named: Named) -> None:
        if instance in self.gate.streams:
            self.accept_loss(instance, *self._range(instance, named))

    @rule(partition=partitions)
    def log_is_cut(self, partition: int) -> None:
        self.lose_tails(partition)

    @rule()
    def log_is_made_anew(self) -> None:
        self.lose_log()

    @rule(behind=st.integers(0, 3), at_start=st.booleans(), lagging=st.booleans())
    def live_reading_falls_behind_or_catches_up(self, behind: int, at_start: bool, lagging: bool) -> None:
        self.log.lagging = lagging
        self.log.read = {p: 0 if at_start else max(end - behind, 0) for p, end in self.ends.items()}

    @rule(told=st.booleans(), behind=st.sampled_from((0, 0, 1)))
    def live_reading_goes_on(self, told: bool, behind: int) -> None:
        if told:
            self.note_ends(dict(self.ends))
        self.read_on({p: max(end - behind, 0) for p, end in self.ends.items()})

    @rule()
    def the_processor_is_killed_and_restored(self) -> None:
        self.die_and_return()

    @rule(
        passed=st.sampled_from((0.0, 1.0, WINDOW)),
        watermark=st.integers(0, 14),
        ticks=st.sampled_from((1, 1, 5)),
    )
    def time_passes(self, passed: float, watermark: int, ticks: int) -> None:
        self.now += passed
        for _ in range(ticks):
            self.tick(float(100 + watermark))

    def _range(self, instance: str, named: Named) -> tuple[int | None, int | None, int | None]:
        incarnation = None if named.back is None else max(self.streams[instance][0] - named.back, 0)
        return incarnation, named.first, None if named.more is None else named.more + (named.first or 1)

    def _entry(self, entry: Said, kind: EventType) -> CacheEventEntry:
        key = self.setting.pool[entry.key % len(self.setting.pool)]
        if kind is not EventType.STORE:
            return CacheEventEntry(key)
        texts = self.setting.texts
        tokens = texts[entry.text % len(texts)] if entry.text >= 0 else ()
        return CacheEventEntry(key, entry.size, tokens, entry.offset)


def query_of(setting: Setting) -> list[int]:
    """All texts twice, in both orders, with a foreign token here and there."""
    tokens: list[int] = []
    for text in [*setting.texts, *reversed(setting.texts)]:
        tokens += [*text, 7] if len(text) % 2 else text
    return tokens


def neighbours(keys: list[ObjectKey]) -> list[ObjectKey]:
    """The keys, and for each one that differs in one field."""
    return [
        *keys,
        replace(keys[0], chunk_hash=(keys[0].chunk_hash + b"\0")[-32:]),
        replace(keys[0], object_group_id=keys[0].object_group_id ^ 1),
        replace(keys[-1], kv_rank=keys[-1].kv_rank ^ 1 << 32),
        replace(keys[-1], cache_salt="nobody's"),
    ]


def namespaces_of(setting: Setting) -> list[Namespace]:
    return sorted({key.namespace for key in setting.pool}, key=repr)
