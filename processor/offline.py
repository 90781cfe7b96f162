"""What of the processor the command line needs while none runs: its settings, and checkpoints to look at.

The other door beside `processor.service` through which `api` sees the processor. Nothing behind it loads a
kernel, so that `--help` and `blendstream checkpoint inspect` answer at once.
"""

from __future__ import annotations

from processor.config import Config, ConfigError, environment_variable_of, flag_of
from processor.durability.errors import CheckpointError, FolderRefused
from processor.durability.inspection import Inspected
from processor.durability.inspection import inspect as inspect_checkpoints

__all__ = [
    "CheckpointError",
    "Config",
    "ConfigError",
    "FolderRefused",
    "Inspected",
    "environment_variable_of",
    "flag_of",
    "inspect_checkpoints",
]
