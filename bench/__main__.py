"""`python -m bench`: lists the measurements; with names, or `all`, runs them and prints one table."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import orjson
import typer
from rich.console import Console
from rich.table import Table

from bench.harness import PEER_VARIABLE, WorkerError, peer_python
from bench.measurements import FULL, MEASUREMENTS, QUICK
from bench.report import Row, table


def main(
    names: Annotated[list[str] | None, typer.Argument(help="Measurements to run, or `all`.")] = None,
    quick: Annotated[bool, typer.Option("--quick", help="Small sizes: a look, not a result.")] = False,
    rounds: Annotated[int | None, typer.Option(min=1, help="Rounds a side.")] = None,
    chunks: Annotated[int | None, typer.Option(min=1_024, help="Chunks held by `store` and `match`.")] = None,
    json_file: Annotated[
        Path | None,
        typer.Option("--json", help="Also write the rows as JSON; `-` prints it instead of the table."),
    ] = None,
) -> None:
    """Run measurements of Blendstream, beside LMCache's coordinator where PEER_PYTHON names one."""
    console = Console(width=None if sys.stdout.isatty() else 132)
    if not names:
        listed = Table.grid(padding=(0, 2))
        for measurement in MEASUREMENTS.values():
            listed.add_row(measurement.name, measurement.about)
        console.print(listed, highlight=False)
        return
    wanted = list(MEASUREMENTS) if names == ["all"] else names
    if unknown := [name for name in wanted if name not in MEASUREMENTS]:
        raise typer.BadParameter(f"{', '.join(unknown)}: not one of {', '.join(MEASUREMENTS)}")
    sizes = QUICK if quick else FULL
    sizes = replace(sizes, rounds=rounds or sizes.rounds, chunks=chunks or sizes.chunks)
    notes = Console(stderr=True)
    if peer_python() is None:
        notes.print(f"{PEER_VARIABLE} is not set: our figures alone, no ratios")
    rows: list[Row] = []
    for name in wanted:
        notes.print(f"{name}: {MEASUREMENTS[name].about} ...", highlight=False)
        try:
            rows += MEASUREMENTS[name].run(sizes)
        except WorkerError as error:
            notes.print(f"{name}: {error}", highlight=False, markup=False)
            raise typer.Exit(1) from error
    encoded = orjson.dumps([row.as_json() for row in rows], option=orjson.OPT_INDENT_2)
    if json_file == Path("-"):
        print(encoded.decode())
        return
    console.print(table(rows))
    if json_file is not None:
        json_file.write_bytes(encoded + b"\n")


if __name__ == "__main__":
    typer.run(main)
