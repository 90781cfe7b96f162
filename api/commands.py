"""The commands of `blendstream`.

The options of `serve` are the fields of `processor.config.Config`; nothing is said twice. What a user can
get wrong is an `OperatorError`: it ends in its message on stderr and status 1 (2 for a command line that
makes no sense), never in a traceback. Parts that take long to import are imported by the command that needs
them.
"""

from __future__ import annotations

import inspect
import logging
import os
import sys
from dataclasses import fields
from pathlib import Path
from typing import Annotated, Any, Final

import typer
from rich.console import Console
from rich.markup import escape

from api.checkpoints import checkpoints
from api.client import DEFAULT_URL, Client
from api.console import UserError, matches_table, no_nan, placements_report, stdout_console, streams_report
from api.demo import REQUESTS, SECONDS
from api.demo import run as run_demo
from api.emit import emit
from processor.offline import Config, environment_variable_of, flag_of
from producer.errors import OperatorError
from producer.events import ObjectKey

MAX_PORT: Final = 65535
HELP_WIDTH: Final = 120
"""Columns of a help text on a wide terminal."""

app = typer.Typer(
    name="blendstream",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,  # whose tables cut the names of options and variables
    context_settings={"max_content_width": HELP_WIDTH},
)
app.add_typer(checkpoints, name="checkpoint")
out = stdout_console()
err = Console(stderr=True, highlight=False)

Url = Annotated[
    str,
    typer.Option(
        "--url", envvar="BLENDSTREAM_URL", help="The server's address; unix:/path for a Unix socket."
    ),
]
InstanceId = Annotated[str, typer.Argument(help="The emitter's instance_id.")]
Incarnation = Annotated[int | None, typer.Option(help="Only of this incarnation.")]
First = Annotated[int | None, typer.Option(help="From this sequence number.")]
Last = Annotated[int | None, typer.Option(help="Up to this sequence number.")]


def run() -> None:
    """Run what the command line names."""
    try:
        app()
    except OperatorError as error:
        err.print(f"[red]blendstream:[/red] {escape(str(error))}", soft_wrap=True)
        sys.exit(1)


def _print_version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version

        out.print(f"blendstream {version('blendstream')}", highlight=False)
        raise typer.Exit


@app.callback()
def _common(
    _: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Show the version.")
    ] = False,
) -> None:
    """A Kafka-backed map of an LLM KV-cache fleet."""


def _serve(**settings: Any) -> None:
    """Run a processor: read the fleet's cache events and answer lookups."""
    config = Config(**settings)
    logging.basicConfig(
        level=config.log_level.upper(), format="%(asctime)s %(levelname)s %(name)s: %(message)s"
    )
    from api.server import serve

    serve(config, lambda line: err.print(line, soft_wrap=True))
    # Threads still at work on a request nobody waits for any more would hold the process up.
    logging.shutdown()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)


def _options() -> inspect.Signature:
    """The fields of `Config` as the options of a command."""
    return inspect.Signature(
        [
            inspect.Parameter(
                item.name,
                inspect.Parameter.KEYWORD_ONLY,
                default=typer.Option(
                    item.default,
                    flag_of(item.name),
                    envvar=environment_variable_of(item.name),
                    help=item.metadata["help"],
                ),
                annotation=type(item.default),
            )
            for item in fields(Config)
        ]
    )


_serve.__signature__ = _options()  # type: ignore[attr-defined]
_serve.__annotations__ = {item.name: type(item.default) for item in fields(Config)}
app.command("serve")(_serve)
app.command()(emit)


@app.command()
def lookup(
    tokens: Annotated[Path | None, typer.Argument(help="File of token ids, - for stdin.")] = None,
    key: Annotated[list[str] | None, typer.Option(help="A chunk hash in hex; may be repeated.")] = None,
    model_name: Annotated[str, typer.Option(help="The model that the KV belongs to.")] = "",
    world_size: Annotated[int, typer.Option(help="Workers that share the model.")] = 1,
    kv_rank: Annotated[int | None, typer.Option(help="Of the keys; of worker 0 if left out.")] = None,
    object_group_id: Annotated[int, typer.Option(help="Of the keys.")] = 0,
    cache_salt: Annotated[str, typer.Option(help="The tenant's salt.")] = "",
    blend: Annotated[bool, typer.Option("--blend", help="Find the tokens' chunks at any offset.")] = False,
    url: Url = DEFAULT_URL,
) -> None:
    """Ask a server where keys, or the chunks of a token sequence, are held."""
    from producer.events import make_kv_rank

    if bool(tokens) == bool(key):
        raise UserError("give either a file of token ids or --key HASH")
    if not model_name:
        raise UserError("--model-name must be given")
    with Client(url) as client:
        if key:
            rank = make_kv_rank(world_size, 0, world_size, 0) if kv_rank is None else kv_rank
            keys = [_object_key(text, model_name, rank, object_group_id, cache_salt) for text in key]
            out.print(placements_report(client.lookup(keys), out.width))
            return
        assert tokens is not None
        ids = _read_tokens(tokens)
        if blend:
            found = client.blend_lookup(ids, model_name, world_size=world_size, cache_salt=cache_salt)
            out.print(matches_table(found, len(ids)))
            return
        answer = client.lookup_tokens(ids, model_name, world_size=world_size, cache_salt=cache_salt)
        if not answer.chunks:
            raise UserError(f"{len(ids)} tokens do not fill a chunk")
        out.print(placements_report(answer.results, out.width))


def _object_key(text: str, model_name: str, kv_rank: int, group: int, cache_salt: str) -> ObjectKey:
    try:
        chunk_hash = bytes.fromhex(text)
    except ValueError:
        raise UserError(f"--key is not hexadecimal: {text!r}") from None
    return ObjectKey(chunk_hash, model_name, kv_rank, group, cache_salt)


def _read_tokens(path: Path) -> list[int]:
    """Token ids in decimal, separated by whatever is no digit: a JSON list will do."""
    import re

    try:
        text = sys.stdin.read() if str(path) == "-" else path.read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"cannot read {path}: {error}") from None
    words = [word for word in re.split(r"[\s,\[\]]+", text) if word]
    bad = next((word for word in words if not word.isdecimal() or int(word[:12]) >= 2**32), None)
    if bad is not None:
        raise UserError(f"{path} holds something that is no token id: {bad[:40]!r}")
    if not words:
        raise UserError(f"{path} holds no token ids")
    return [int(word) for word in words]


@app.command()
def streams(
    gap: Annotated[bool, typer.Option("--gap", help="Only streams that lack batches.")] = False,
    url: Url = DEFAULT_URL,
) -> None:
    """Show every emitter's stream: how far it has come and what it lacks."""
    with Client(url) as client:
        found = client.streams(gap=True if gap else None)
    if found:
        out.print(streams_report(found, out.width))
    else:
        out.print("no stream lacks batches" if gap else "no emitter is known: none has sent an event yet")


@app.command()
def replay(
    instance_id: InstanceId,
    incarnation: Incarnation = None,
    first: First = None,
    last: Last = None,
    url: Url = DEFAULT_URL,
) -> None:
    """Search the log for an emitter's missing batches: for all that may still come, or for those named."""
    with Client(url) as client:
        stream = client.replay(instance_id, incarnation=incarnation, first=first, last=last)
        out.print(streams_report([stream], out.width))
    if stream.replay is None and (stream.missing or stream.lost):
        err.print("no search is under way: batches past --repair-window have to be named, as by --first 1")


@app.command("accept-loss")
def accept_loss(
    instance_id: InstanceId,
    incarnation: Incarnation = None,
    first: First = None,
    last: Last = None,
    url: Url = DEFAULT_URL,
) -> None:
    """Give up on an emitter's missing batches, by default on all of them."""
    if incarnation is None and first is None and last is None:
        # A server that is given no bound keeps what is past the repair window; all is meant to be all here.
        first = 1
    with Client(url) as client:
        stream = client.accept_loss(instance_id, incarnation=incarnation, first=first, last=last)
        out.print(streams_report([stream], out.width))


@app.command()
def reset(instance_id: InstanceId, url: Url = DEFAULT_URL) -> None:
    """Forget an emitter's cursor and its memory, and let any incarnation go on: the end of a conflict."""
    with Client(url) as client:
        client.reset(instance_id)
    out.print(f"{instance_id} starts afresh with its next batch")


@app.command()
def broker(
    kind: Annotated[str, typer.Option(help="embedded, kafka or docker.")] = "embedded",
    port: Annotated[
        int, typer.Option(help="Port to listen on; 0 takes a free one.", min=0, max=MAX_PORT)
    ] = 9092,
    data_dir: Annotated[
        Path | None,
        typer.Option(help="Folder that keeps the data of the kind kafka; without it, none is kept."),
    ] = None,
) -> None:
    """Run a local Kafka broker until stopped."""
    from deploy.broker import BrokerError, BrokerKind, serve_broker

    if kind not in tuple(BrokerKind):
        raise UserError(f"--kind must be one of {', '.join(BrokerKind)}, got {kind!r}")
    try:
        serve_broker(kind, port, data_dir, lambda line: err.print(line, soft_wrap=True))
    except BrokerError as error:
        raise UserError(str(error)) from None


@app.command()
def demo(
    broker: Annotated[str, typer.Option(help="embedded, kafka or docker.")] = "embedded",
    trace: Annotated[Path | None, typer.Option(help="Replay this block trace in place of documents.")] = None,
    requests: Annotated[int, typer.Option(help="Prompts to serve at most.", min=1)] = REQUESTS,
    seconds: Annotated[
        float,
        typer.Option(
            help="Begin no further round of prompts after this many seconds.",
            min=0.1,
            max=86_400,
            callback=no_nan,
        ),
    ] = SECONDS,
    plain: Annotated[bool, typer.Option("--plain", help="Lines of text in place of the live view.")] = False,
) -> None:
    """Watch a fleet's cache events flow through a broker into answers, each checked by brute force."""
    if trace is not None and not trace.is_file():
        raise UserError(f"no such trace file: {trace}")
    raise typer.Exit(run_demo(broker, trace, requests=requests, seconds=seconds, plain=plain))


for _command in app.registered_commands:
    # In whole: what click derives by itself is cut off.
    _command.short_help = inspect.getdoc(_command.callback)
