"""The routes: each turns a request into one call of the service, and what comes back into an answer.

A handler that may take long hands the work to a small pool of threads, so that the event loop always has
time for the others; one that takes less than the detour costs works on the loop. Listings and lookups of
many keys are made and sent in slices: no slice holds the interpreter for long, and no answer has to fit
into memory.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from itertools import islice
from typing import Any, Final, TypeVar

from starlette.convertors import Convertor, register_url_convertor
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

from api import answers, bodies
from api.http import (
    MAX_INT,
    BodyReader,
    RequestError,
    content_type,
    invalid,
    json_bytes,
    json_response,
    query_choice,
    query_int,
)
from api.instances import InstanceRoutes
from api.openapi import document
from api.streams import StreamRoutes
from api.token_hasher import TokenHasher
from processor.service import (
    CheckpointError,
    CheckpointsDisabled,
    DecodeError,
    DirectoryStats,
    KeyInfo,
    Service,
)
from producer.events import ObjectKey, Tier, make_kv_rank

INLINE_BODY_BYTES: Final = 64 * 1024
"""A body of keys up to this long is decoded on the loop."""
INLINE_QUERY_BYTES: Final = 192 * 1024
"""A query up to this long is matched on the loop: it takes about 0.1 ms, and a thread costs as much."""
INLINE_MATCHES: Final = 1_024
"""With more matches than this it is matched anew in a thread: the answer takes longer than the search."""
SLICE_KEYS: Final = 256
"""Keys looked up and encoded in one go, at most."""
FIRST_KEYS: Final = 8
SLICE_PLACEMENTS: Final = 2_048
"""Placements in one go, about: a prompt that all share is on every server, so slices start small."""
PAGE_LIMIT: Final = 10_000

Result = TypeVar("Result")


class Anything(Convertor[str]):
    """The rest of a path, whatever it holds: Starlette's own `path` stops at a line's end."""

    regex = r"[\s\S]+"

    def convert(self, value: str) -> str:
        """As it is."""
        return value

    def to_string(self, value: str) -> str:
        """As it is."""
        return value


register_url_convertor("anything", Anything())


class Routes:
    """The handlers, bound to one service and one pool of threads."""

    def __init__(self, service: Service, pool: ThreadPoolExecutor) -> None:
        self.service = service
        self.hasher = TokenHasher(service.config.chunk_size)
        self._pool = pool
        self._bodies = BodyReader()
        self._streams = StreamRoutes(service, self._bodies, self._run)
        self._instances = InstanceRoutes(service, self._bodies, self._run)

    def table(self) -> list[Route]:
        """Every route."""
        return [
            Route("/events", self.events, methods=["POST"]),
            Route("/directory/lookup", self.lookup, methods=["POST"]),
            Route("/directory/blend-lookup", self.blend_lookup, methods=["POST"]),
            Route("/directory/keys", self.keys, methods=["GET"]),
            Route("/directory/stats", self.stats, methods=["GET"]),
            *self._streams.table(),
            *self._instances.table(),
            Route("/checkpoint", self.checkpoint, methods=["POST"]),
            Route("/healthz", self.healthz, methods=["GET"]),
            Route("/readyz", self.readyz, methods=["GET"]),
            Route("/metrics", self.metrics, methods=["GET"]),
            Route("/openapi.json", self.openapi, methods=["GET"]),
        ]

    async def events(self, request: Request) -> Response:
        """Offer pushed batches to the gate."""
        if not self.service.config.push_enabled:
            raise RequestError(
                404,
                "POST /events is closed: cache events come from Kafka (--event-transport kafka); "
                "--enable-push opens it beside that",
            )
        async with self._bodies.read(request) as body:
            if not body or body.isspace():
                raise invalid(("body",), "Field required", "missing")
            try:
                # Never on the loop: whoever applies a batch holds the gate.
                summary = await self._run(True, self.service.push, body)
            except DecodeError as error:
                raise invalid(("body", *error.loc), f"Value error, {error.reason}") from None
        return json_response(asdict(summary))

    async def lookup(self, request: Request) -> Response:
        """Placements of keys, or of the complete chunks of a token sequence."""
        async with self._bodies.read(request) as raw:
            asked = await self._run(len(raw) > INLINE_BODY_BYTES, bodies.lookup_of, raw)
        if isinstance(asked, bodies.KeyLookup):
            return await self._answer_lookup(len(asked.keys), _slices(asked.keys), asked.spelled)
        return await self._answer_lookup(self.hasher.count(asked.tokens), self._expanded(asked))

    async def blend_lookup(self, request: Request) -> Response:
        """The cached chunks that a query contains, at any offset."""
        async with self._bodies.read(request) as raw:
            long = len(raw) > INLINE_QUERY_BYTES
            if content_type(request) == "application/octet-stream":
                asked = bodies.raw_blend_lookup_of(raw, request.query_params)
            else:
                asked = await self._run(long, bodies.blend_lookup_of, raw)
            answer = None if long else self._matches(asked, INLINE_MATCHES)
            if answer is None:
                answer = await self._run(True, self._matches, asked)
        return Response(answer, media_type="application/json")

    async def keys(self, request: Request) -> Response:
        """One page of the directory."""
        chosen = query_choice(request.query_params, "tier", ("l1", "l2", "all"), "all")
        tier = None if chosen == "all" else Tier(chosen)
        instance_id = request.query_params.get("instance_id", "")
        backend = request.query_params.get("backend", "")
        offset = query_int(request.query_params, "offset", 0, 0)
        limit = query_int(request.query_params, "limit", 1_000, 1, PAGE_LIMIT)

        def page() -> tuple[int, list[KeyInfo]]:
            return self.service.list_keys(tier, instance_id, backend, min(offset, MAX_INT), limit)

        total, found = await self._run(True, page)
        return await self._in_slices(f'{{"total":{total},"keys":[', _slices(found), _listed)

    async def stats(self, request: Request) -> Response:
        """Counts of the directory and of the blend index."""
        return json_response(_stats(await self._run(True, self.service.stats)))

    async def checkpoint(self, request: Request) -> Response:
        """Write a checkpoint now; the answer comes when it is on disk."""
        try:
            report = await asyncio.wrap_future(self.service.checkpoint())
        except CheckpointsDisabled as error:
            raise RequestError(409, str(error)) from None
        except CheckpointError as error:
            raise RequestError(503, str(error)) from None
        return json_response(asdict(report))

    async def healthz(self, request: Request) -> Response:
        """The process answers."""
        return json_response({"status": "healthy"})

    async def readyz(self, request: Request) -> Response:
        """The state is caught up with the stream; if not, why not."""
        reasons, warnings = self.service.not_ready(), self.service.warnings()
        status = "not ready" if reasons else "ready"
        answer = {"status": status, "reasons": reasons, "warnings": warnings}
        return json_response(answer, 503 if reasons else 200)

    async def metrics(self, request: Request) -> Response:
        """The metrics as Prometheus reads them."""
        if self.service.config.disable_metrics:
            raise RequestError(404, "metrics are disabled (--disable-metrics)")
        accept = request.headers.get("accept", "")
        content, media_type = await self._run(True, self.service.scrape, accept)
        return Response(content, media_type=None, headers={"content-type": media_type})

    async def openapi(self, request: Request) -> Response:
        """This interface as an OpenAPI document."""
        return json_response(document())

    async def _run(self, long: bool, call: Callable[..., Result], *arguments: Any) -> Result:
        if not long:
            return call(*arguments)
        return await asyncio.get_running_loop().run_in_executor(self._pool, call, *arguments)

    def _matches(self, asked: bodies.BlendLookup, most: int | None = None) -> bytes | None:
        found = []
        if asked.namespace is not None and len(asked.tokens):
            found = self.service.match(asked.tokens, asked.namespace, most)
        if most is not None and len(found) > most:
            return None
        shown = [{"chunk_hash": m.chunk_hash.hex(), "old_st": m.old_st, "cur_st": m.cur_st} for m in found]
        return json_bytes({"matches": shown})

    def _expanded(self, asked: bodies.TokenLookup) -> Iterator[list[ObjectKey]]:
        space = asked.namespace
        size = space.world_size
        ranks = [make_kv_rank(size, rank, size, rank) for rank in range(size)]
        keys = (
            ObjectKey(chunk_hash, space.model_name, rank, 0, space.cache_salt)
            for chunk_hash in self.hasher.hashes(asked.tokens)
            for rank in ranks
        )
        for part in _slices(keys):
            yield self.service.expand_groups(part)

    async def _answer_lookup(
        self, chunks: int, parts: Iterator[list[ObjectKey]], spelled: Sequence[str] = ()
    ) -> Response:
        spellings = iter(spelled)

        def looked_up() -> Iterator[list[KeyInfo]]:
            most = FIRST_KEYS
            for part in parts:
                begin = 0
                while begin < len(part):
                    found = self.service.lookup(part[begin : begin + most])
                    begin += most
                    held = sum(len(info.placements) for info in found)
                    most = max(1, min(SLICE_KEYS, 2 * most, SLICE_PLACEMENTS * len(found) // max(held, 1)))
                    yield found

        def results(found: list[KeyInfo]) -> list[object]:
            # The keys of a request are echoed in its own spelling of the hash.
            return [_result(info, next(spellings, "")) for info in found]

        return await self._in_slices(f'{{"chunks":{chunks},"results":[', looked_up(), results)

    async def _in_slices(
        self,
        head: str,
        parts: Iterator[list[KeyInfo]],
        shown: Callable[[list[KeyInfo]], list[object]],
    ) -> Response:
        """An answer that ends in a list: in one piece if that fits one slice, else slice by slice."""

        def encoded() -> bytes | None:
            part = next(parts, None)
            return None if part is None else json_bytes(shown(part))[1:-1]

        first = await self._run(True, encoded)
        second = await self._run(True, encoded) if first is not None else None
        if second is None:
            return Response(head.encode() + (first or b"") + b"]}", media_type="application/json")

        async def pieces() -> AsyncIterator[bytes]:
            yield head.encode() + (first or b"")
            piece: bytes | None = second
            while piece is not None:
                yield b"," + piece
                piece = await self._run(True, encoded)
            yield b"]}"

        return StreamingResponse(pieces(), media_type="application/json")


def _stats(stats: DirectoryStats) -> dict[str, object]:
    """The counts that LMCache's answer has; the others are metrics."""
    return {name: getattr(stats, name) for name in answers.Stats.__struct_fields__}


def _slices(items: Sequence[Result] | Iterator[Result]) -> Iterator[list[Result]]:
    rest = iter(items)
    while part := list(islice(rest, SLICE_KEYS)):
        yield part


def _encoded_key(key: ObjectKey, spelled: str = "") -> dict[str, object]:
    return {
        "chunk_hash_hex": spelled or key.chunk_hash.hex(),
        "model_name": key.model_name,
        "kv_rank": key.kv_rank,
        "object_group_id": key.object_group_id,
        "cache_salt": key.cache_salt,
    }


def _result(info: KeyInfo, spelled: str) -> dict[str, object]:
    return {
        "key": _encoded_key(info.key, spelled),
        "placements": info.placements,
        "token_ids": info.token_ids,
        "access_count": info.access_count,
    }


def _listed(found: list[KeyInfo]) -> list[object]:
    return [
        {
            "key": _encoded_key(info.key),
            "placements": info.placements,
            "num_tokens": info.num_tokens,
            "access_count": info.access_count,
        }
        for info in found
    ]
