"""A measurement's result as rows: ours, the peer's, how many times better, and the target where one is
set.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from enum import StrEnum

from rich.table import Table


class Better(StrEnum):
    """Which way a figure improves."""

    HIGHER = "higher"
    LOWER = "lower"


@dataclass(frozen=True, slots=True)
class Row:
    """One figure. `target` is a ratio to reach (`8x`) or, for a figure with a bound of its own, the bound."""

    measurement: str
    figure: str
    unit: str
    ours: float
    peer: float | None = None
    better: Better = Better.HIGHER
    target_ratio: float | None = None
    bound: float | None = None

    @property
    def ratio(self) -> float | None:
        """How many times better ours is; None without a peer."""
        if self.peer is None:
            return None
        return self.ours / self.peer if self.better is Better.HIGHER else self.peer / self.ours

    @property
    def met(self) -> bool | None:
        """Whether the target is met; None where there is none, or nothing to compare with."""
        if self.bound is not None:
            return self.ours >= self.bound if self.better is Better.HIGHER else self.ours <= self.bound
        if self.target_ratio is not None and self.ratio is not None:
            return self.ratio >= self.target_ratio
        return None

    def as_json(self) -> dict[str, object]:
        """The row with its ratio and verdict."""
        return {**asdict(self), "ratio": self.ratio, "met": self.met}


def table(rows: list[Row]) -> Table:
    """The rows as text columns, in the order given."""
    drawn = Table(box=None, pad_edge=False, header_style="bold")
    drawn.add_column("measurement", no_wrap=True)
    drawn.add_column("figure")
    drawn.add_column("ours", justify="right", no_wrap=True)
    drawn.add_column("peer", justify="right", no_wrap=True)
    drawn.add_column("unit", no_wrap=True)
    drawn.add_column("ratio", justify="right", no_wrap=True)
    drawn.add_column("target", justify="right", no_wrap=True)
    for row in rows:
        drawn.add_row(
            row.measurement,
            row.figure,
            _number(row.ours),
            "-" if row.peer is None else _number(row.peer),
            row.unit,
            "-" if row.ratio is None else f"{row.ratio:.1f}x",
            _target(row),
        )
    return drawn


def _number(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def _target(row: Row) -> str:
    if row.bound is not None:
        text = f"{'>=' if row.better is Better.HIGHER else '<='} {_number(row.bound)}"
    elif row.target_ratio is not None:
        text = f">= {row.target_ratio:g}x"
    else:
        return ""
    return text if row.met is None else f"{text} {'met' if row.met else 'MISSED'}"
