"""The routes about the fleet's servers: registering, heartbeats, departures, and how full each one is."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from api import bodies
from api.http import BodyReader, RequestError, Run, json_response, path_instance_id
from processor.service import Service


class InstanceRoutes:
    """The handlers of `/instances`, bound to one service."""

    def __init__(self, service: Service, reader: BodyReader, run: Run) -> None:
        self._service = service
        self._bodies = reader
        self._run = run

    def table(self) -> list[Route]:
        """Every route. An instance id may contain slashes, so what ends in a word of ours comes first."""
        return [
            Route("/instances", self.collection, methods=["GET", "POST"]),
            Route("/instances/usage", self.fleet_usage, methods=["GET"]),
            Route("/instances/{instance_id:anything}/usage", self.usage, methods=["GET"]),
            Route("/instances/{instance_id:anything}/heartbeat", self.heartbeat, methods=["PUT"]),
            Route("/instances/{instance_id:anything}", self.depart, methods=["DELETE"]),
        ]

    async def collection(self, request: Request) -> Response:
        """Every registered server; or one more."""
        if request.method == "POST":
            return await self.register(request)
        return json_response({"instances": self._service.instances()})

    async def register(self, request: Request) -> Response:
        """Enter a server; one without an id is given one."""
        async with self._bodies.read(request) as raw:
            asked = bodies.registration_of(raw)

        def enter() -> tuple[str, bool]:
            return self._service.register(
                asked.instance_id,
                asked.ip,
                asked.http_port,
                metadata=asked.metadata,
                p2p_advertised_url=asked.p2p_advertised_url,
                mq_port=asked.mq_port,
            )

        # In a thread, for it waits until the batch under way at the gate is through.
        instance_id, again = await self._run(True, enter)
        return json_response({"instance_id": instance_id, "re_registered": again})

    async def heartbeat(self, request: Request) -> Response:
        """Note that a server lives; one that is not known has to register again."""
        instance_id = path_instance_id(request)
        if self._service.heartbeat(instance_id):
            return json_response({"instance_id": instance_id})
        return json_response({"error": f"unknown instance {instance_id}; re-register"}, 404)

    async def depart(self, request: Request) -> Response:
        """Fence a server and forget it; done again, it does nothing."""
        await self._run(True, self._service.drop_instance, path_instance_id(request))
        return Response(status_code=204)

    async def fleet_usage(self, request: Request) -> Response:
        """How full every server's compartments and the shared pools are."""
        return json_response(await self._run(True, self._service.fleet_usage))

    async def usage(self, request: Request) -> Response:
        """How full one server's compartments are."""
        instance_id = path_instance_id(request)
        usage = await self._run(True, self._service.instance_usage, instance_id)
        if usage is None:
            raise RequestError(404, f"unknown instance {instance_id!r}")
        return json_response(usage)
