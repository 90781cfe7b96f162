"""The routes about emitters' streams: how far each has come, what it lacks, and what to do about that."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from api import answers, bodies
from api.http import BodyReader, RequestError, Run, json_response, path_instance_id, query_flag
from processor.service import NoLog, Service, StreamStatus, UnknownStream

Result = TypeVar("Result")


class StreamRoutes:
    """The handlers of `/streams`, bound to one service."""

    def __init__(self, service: Service, reader: BodyReader, run: Run) -> None:
        self._service = service
        self._bodies = reader
        self._run = run

    def table(self) -> list[Route]:
        """Every route. An instance id may contain slashes, so what ends in a verb comes first."""
        return [
            Route("/streams", self.collection, methods=["GET"]),
            Route("/streams/{instance_id:anything}/replay", self.replay, methods=["POST"]),
            Route("/streams/{instance_id:anything}/accept-loss", self.accept_loss, methods=["POST"]),
            Route("/streams/{instance_id:anything}/reset", self.reset, methods=["POST"]),
            Route("/streams/{instance_id:anything}", self.one, methods=["GET"]),
        ]

    async def collection(self, request: Request) -> Response:
        """Every emitter's stream, or those with (or without) a gap."""
        gap = query_flag(request.query_params, "gap")
        found = await self._run(True, self._service.streams, gap)
        return json_response({"streams": [_stream(status) for status in found]})

    async def one(self, request: Request) -> Response:
        """One emitter's stream."""
        status = await self._run(True, _known, self._service.stream, path_instance_id(request))
        return json_response(_stream(status))

    async def replay(self, request: Request) -> Response:
        """Search the log for missing batches; without a body, for all of them."""
        async with self._bodies.read(request) as raw:
            asked = bodies.range_of(raw)
        named = (asked.incarnation, asked.first, asked.last)
        try:
            status = await self._run(True, _known, self._service.replay, path_instance_id(request), *named)
        except NoLog as error:
            raise RequestError(409, str(error)) from None
        return json_response(_stream(status))

    async def accept_loss(self, request: Request) -> Response:
        """Give up on missing batches; without a body, on all of them."""
        async with self._bodies.read(request) as raw:
            asked = bodies.range_of(raw)
        named = (asked.incarnation, asked.first, asked.last)
        status = await self._run(True, _known, self._service.accept_loss, path_instance_id(request), *named)
        return json_response(_stream(status))

    async def reset(self, request: Request) -> Response:
        """Fence an emitter, forget its cursor and let any incarnation in."""
        await self._run(True, _known, self._service.reset, path_instance_id(request))
        return Response(status_code=204)


def _stream(status: StreamStatus) -> dict[str, object]:
    return {name: getattr(status, name) for name in answers.Stream.__struct_fields__}


def _known(call: Callable[..., Result], instance_id: str, *arguments: Any) -> Result:
    try:
        return call(instance_id, *arguments)
    except UnknownStream:
        raise RequestError(404, f"unknown instance {instance_id!r}") from None
