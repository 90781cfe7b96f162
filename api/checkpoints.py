"""`blendstream checkpoint`: what the checkpoints of a folder hold, and whether they are sound."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any, Final

import typer
from rich.markup import escape
from rich.table import Table

from api.console import counted, plain_table, stdout_console
from processor.offline import FolderRefused, Inspected, inspect_checkpoints

SHOWN_STREAMS: Final = 10

checkpoints = typer.Typer(help="Checkpoints on disk.", no_args_is_help=True, rich_markup_mode=None)


@checkpoints.callback()
def group() -> None:
    """Checkpoints on disk."""


@checkpoints.command()
def inspect(
    path: Annotated[Path, typer.Argument(help="The folder of --checkpoint-path, or one checkpoint in it.")],
) -> None:
    """Show what a folder of checkpoints holds; the status is 1 if the current one is damaged."""
    found = inspect_checkpoints(path)
    if not found:
        raise FolderRefused(f"there is no checkpoint in {path}")
    out = stdout_console()
    for index, table in enumerate(checkpoint_tables(found, path)):
        if index:
            out.print()
        out.print(table)
    if found[0].problems:
        raise typer.Exit(1)


def checkpoint_tables(found: Sequence[Inspected], named: Path) -> Iterator[Table]:
    """A table a checkpoint: what it is of, and what is wrong with it."""
    for index, one in enumerate(found):
        head = "checkpoint" if one.path == named else "current" if index == 0 else "before"
        rows = [(name, escape(value)) for name, value in _checkpoint_rows(one)]
        rows += [("[red]damaged[/red]", escape(problem)) for problem in one.problems]
        if not one.problems:
            rows.append(("files", "[green]all as they were written[/green]"))
        yield plain_table((head, escape(str(one.path))), rows, kept={head})


def _checkpoint_rows(one: Inspected) -> Iterator[tuple[str, str]]:
    manifest = one.manifest
    if manifest is None:
        return
    size = sum(file.size for file in manifest.files())
    yield "taken", datetime.fromtimestamp(manifest.created).isoformat(" ", "seconds")
    yield "written by", f"version {manifest.version}, format {manifest.format}"
    yield "chunk size", f"{manifest.settings.chunk_size}, blend {'on' if manifest.settings.blend else 'off'}"
    yield "keys", f"{manifest.keys:,} with {counted(manifest.placements, 'placement')}"
    yield "size", f"{size:,} bytes in {counted(len(manifest.files()), 'file')}"
    streams: list[dict[str, Any]] = one.documents.get("gate", {}).get("streams", [])
    lacking = sum(1 for stream in streams if stream["ranges"])
    yield "streams", f"{len(streams):,}, {lacking:,} of them with batches missing or lost"
    for stream in streams[:SHOWN_STREAMS]:
        yield "", f"{stream['instance_id']}: incarnation {stream['incarnation']}, up to {stream['last_seq']}"
    if len(streams) > SHOWN_STREAMS:
        yield "", f"and {len(streams) - SHOWN_STREAMS:,} more"
    yield from kafka_rows(one.documents)


def kafka_rows(documents: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Which log a checkpoint was read from, and how far; nothing where events came by HTTP alone."""
    if kafka := documents.get("kafka"):
        cluster, topic = (kafka[name] or "unknown" for name in ("cluster_id", "topic_id"))
        yield "Kafka", f"cluster {cluster}, topic id {topic}"
        positions = sorted(kafka["positions"].items(), key=lambda item: int(item[0]))
        yield "positions", ", ".join(f"{partition}: {offset:,}" for partition, offset in positions)
