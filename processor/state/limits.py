"""How large a state can be: a number for the settings too, which must not load what the state needs."""

from __future__ import annotations

from typing import Final

MOST_CHUNKS: Final = (1 << 31) // 16
"""Rows are numbered in 31 bits, and there is room for twelve placements a chunk."""
