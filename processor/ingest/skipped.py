"""Where live reading skipped a record that could not be decoded, and whose it may have been.

Replay asks for it: a batch that the log does not show may have been in such a record. It rides in the
checkpoint, so that a search after a restart finds the same reasons as before.
"""

from __future__ import annotations

from base64 import b64decode, b64encode
from collections.abc import Iterable

MAX_PLACES = 4096
"""Emitters and partitions kept; with so many, any record may have been anyone's."""

Skipped = tuple[bytes | None, int]
"""The key of a skipped record, None if it had none, and its partition."""


class SkippedRecords:
    """The places of skipped records. One thread adds; any may ask."""

    def __init__(self) -> None:
        self._places: set[Skipped] = set()

    def add(self, key: bytes | None, partition: int) -> None:
        """A record was skipped."""
        if len(self._places) < MAX_PLACES:
            self._places.add((key, partition))

    def may_hide(self, instance_id: str, partition: int) -> bool:
        """Whether one of them may have been of that emitter."""
        places = self._places
        return (
            len(places) >= MAX_PLACES
            or (None, partition) in places
            or (instance_id.encode(), partition) in places
        )

    def capture(self) -> list[list[str | int | None]]:
        """All places as plain data that JSON holds."""
        return [
            [None if key is None else b64encode(key).decode(), partition]
            for key, partition in self._places.copy()
        ]

    def restore(self, data: Iterable[tuple[str | None, int]]) -> None:
        """Take over what `capture` gave.

        Raises:
            TypeError, ValueError: it is no such capture.
        """
        self._places = {
            (None if key is None else b64decode(key, validate=True), int(partition))
            for key, partition in data
        }
