"""The gate's knowledge as plain data and back: what a checkpoint keeps of every stream.

Plain means what JSON holds, so that a checkpoint can be read without this code. Left out is what the process
alone knows: the outlines of the last batches, which only serve to tell a conflict, and batches that a
consumer still owes an answer to, which count as missing afterwards and are read again from the log.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from processor.ingest.backlog import Backlog, Elder
from processor.ingest.ranges import LossReason, RangeSet, RangeState, SeqRange
from processor.ingest.source import Horizon, Mark, Position
from processor.ingest.stream import Cursor, Reapplication

Plain = dict[str, Any]
"""A JSON object."""
ADDED_TO_GATE: Mapping[str, Any] = {"epoch_floor": 0}
"""What a gate's capture of the first versions lacks, and what holds in place of it."""
ADDED_TO_LOG: Mapping[str, Any] = {"skipped": ()}
"""The same of a log's."""


def capture_cursor(cursor: Cursor) -> Plain:
    """One stream."""
    data: Plain = {
        "instance_id": cursor.instance_id,
        "incarnation": cursor.incarnation,
        "epoch": cursor.epoch,
        "last_seq": cursor.last_seq,
        "positions": capture_mark(cursor.positions),
        "partition": cursor.partition,
        "last_event_ts": cursor.last_event_ts,
        "conflict": cursor.conflict,
        "stale_run": cursor.stale_run,
        "ranges": [_capture_range(held) for held in cursor.ranges],
        "past": [list(pair) for pair in cursor.past.items()],
        "reapply": None if cursor.reapply is None else [cursor.reapply.incarnation, cursor.reapply.first],
    }
    if cursor.backlog is not None:
        data["backlog"] = _capture_backlog(cursor.backlog)
    return data


def restore_cursor(data: Mapping[str, Any]) -> Cursor:
    """The stream that `capture_cursor` made plain."""
    cursor = Cursor(data["instance_id"], data["incarnation"], data["epoch"], data["last_seq"])
    cursor.positions = restore_mark(data["positions"])
    cursor.partition = data["partition"]
    cursor.last_event_ts = data["last_event_ts"]
    cursor.conflict = data["conflict"]
    cursor.stale_run = data["stale_run"]
    cursor.ranges = RangeSet([_restore_range(held) for held in data["ranges"]])
    cursor.past = {int(incarnation): int(epoch) for incarnation, epoch in data["past"]}
    cursor.reapply = None if data["reapply"] is None else Reapplication(*data["reapply"])
    if "backlog" in data:
        cursor.backlog = _restore_backlog(data["backlog"])
    return cursor


def capture_mark(mark: Mark) -> dict[str, int]:
    """Offsets by partition; an object's keys are strings."""
    return {str(partition): offset for partition, offset in mark.items()}


def restore_mark(data: Mapping[str, int]) -> dict[int, int]:
    """The offsets that `capture_mark` made plain."""
    return {int(partition): offset for partition, offset in data.items()}


def _capture_backlog(backlog: Backlog) -> Plain:
    return {
        "partition": backlog.partition,
        "since": backlog.since,
        **_capture_horizon(backlog.horizon),
        "floor": backlog.floor,
        "elders": [
            [incarnation, elder.epoch, elder.last_seq, elder.partition]
            for incarnation, elder in backlog.elders.items()
        ],
        "late": None if backlog.late is None else list(backlog.late),
    }


def _restore_backlog(data: Mapping[str, Any]) -> Backlog:
    horizon = _restore_horizon(data)
    if horizon is None:
        raise ValueError("a backlog without a horizon")
    return Backlog(
        partition=data["partition"],
        since=data["since"],
        horizon=horizon,
        floor=data["floor"],
        elders={int(incarnation): Elder(*rest) for incarnation, *rest in data["elders"]},
        late=None if data["late"] is None else (data["late"][0], data["late"][1]),
    )


def _capture_range(held: SeqRange) -> Plain:
    data: Plain = {
        "incarnation": held.incarnation,
        "epoch": held.epoch,
        "first": held.first,
        "last": held.last,
        "state": held.state.value,
        "since": held.since,
    }
    if held.reason is not None:
        data["reason"] = held.reason.value
    if held.exposed_at is not None:
        data["exposed_at"] = list(held.exposed_at)
    if held.absent is not None:
        data["absent"] = held.absent
    if held.horizon is not None:
        data |= _capture_horizon(held.horizon)
    return data


def _capture_horizon(horizon: Horizon) -> Plain:
    data: Plain = {"read": capture_mark(horizon.read)}
    if horizon.ends is not None:
        data["ends"] = capture_mark(horizon.ends)
    return data


def _restore_range(data: Mapping[str, Any]) -> SeqRange:
    state = RangeState(data["state"])
    # A missing range has a reason only while a batch of it is held for a consumer.
    reason = None if state is RangeState.MISSING else _optional(LossReason, data.get("reason"))
    return SeqRange(
        incarnation=data["incarnation"],
        epoch=data["epoch"],
        first=data["first"],
        last=data["last"],
        state=state,
        reason=reason,
        since=data["since"],
        exposed_at=None if "exposed_at" not in data else Position(*data["exposed_at"]),
        absent=data.get("absent"),
        horizon=_restore_horizon(data),
    )


def _restore_horizon(data: Mapping[str, Any]) -> Horizon | None:
    if "read" not in data:
        return None
    return Horizon(restore_mark(data["read"]), None if "ends" not in data else restore_mark(data["ends"]))


def _optional(kind: type[LossReason], value: str | None) -> LossReason | None:
    return None if value is None else kind(value)


def capture_marks(marks: Mapping[str, Mark]) -> Plain:
    """The marks of departures, by instance."""
    return {instance_id: capture_mark(mark) for instance_id, mark in marks.items()}


def restore_cursors(data: Iterable[Mapping[str, Any]]) -> dict[str, Cursor]:
    """The streams of a capture, by instance."""
    return {cursor.instance_id: cursor for cursor in map(restore_cursor, data)}
