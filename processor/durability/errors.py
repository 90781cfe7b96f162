"""What can keep a checkpoint from being written or read; every message says what to do about it."""

from __future__ import annotations

from producer.errors import OperatorError


class CheckpointError(OperatorError):
    """The root of these errors."""


class FolderRefused(CheckpointError):
    """The path given for checkpoints is something else, or another process uses it."""


class CheckpointMismatch(CheckpointError):
    """A checkpoint is sound but was made with settings that do not agree with this process's."""


class CheckpointDamaged(CheckpointError):
    """A file of a checkpoint is missing, cut short or not what was written."""


class CheckpointChanged(CheckpointError):
    """A file that was sound cannot be read any more; a new start will see what is left."""


class CheckpointAbandoned(CheckpointError):
    """There was no time left to finish a checkpoint; those before it stand."""


class CheckpointsDisabled(CheckpointError):
    """A checkpoint was asked for and there is no place for it."""
