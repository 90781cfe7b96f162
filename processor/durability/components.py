"""What a checkpoint of a processor holds beside the directory, and how it is put together.

The gate's knowledge must be of the same instant as the state, and so must Kafka's positions with the log they
are of. Where batches stand in that log only has to be true, so that is gathered when the gate is open again.
Once a checkpoint is on disk the group's offsets are committed; nothing depends on them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Protocol

from processor.config import Config
from processor.durability.keeper import Component, Keeper
from processor.durability.quiesce import Capture, Gate
from processor.state.parts import Parts

KAFKA = "kafka"


class Plain(Protocol):
    """Something that can be made plain and brought back."""

    def capture(self) -> Any:
        """What there is, as JSON can hold it."""

    def restore(self, data: Any) -> None:
        """Take back what `capture` gave."""


class StreamGate(Gate, Plain, Protocol):
    """The gate."""


class Log(Protocol):
    """The source that reads from a log."""

    def freeze(self) -> Callable[[], Any]:
        """Note where reading stands in which log; what is returned gives that, and where batches stand."""

    def restore(self, data: Any) -> None:
        """Go on from there."""

    def commit(self, positions: Any) -> bool:
        """Tell lag tools how far the state on disk has come."""


def make_keeper(
    config: Config,
    gate: StreamGate,
    parts: Parts,
    log: Log | None,
    others: Mapping[str, Plain],
    clock: Callable[[], float],
) -> Keeper | None:
    """Put together what keeps a processor's state, if it is to be kept; `others` go by their names."""
    if not config.checkpoint_path:
        return None
    components = {name: _component(plain) for name, plain in {"gate": gate, **others}.items()}
    if log is not None:
        components[KAFKA] = Component(log.freeze, log.restore)

    def commit(captured: Capture) -> None:
        if log is not None:
            positions = captured.documents[KAFKA]["positions"]
            log.commit({int(partition): offset for partition, offset in positions.items()})

    path, interval = Path(config.checkpoint_path), config.checkpoint_interval
    return Keeper(path, interval, gate, parts, components, on_durable=commit, clock=clock)


def _component(plain: Plain) -> Component:
    def freeze() -> Callable[[], Any]:
        data = plain.capture()
        return lambda: data

    return Component(freeze, plain.restore)
