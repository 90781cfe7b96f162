"""A client of the server, light enough to live inside a cache server: no processor, no compiled code.

One `Client` keeps its connections open and may be shared between threads. Answers are typed; a refusal is a
`ServerError` with the server's own words, a server that cannot be reached a `ServerUnavailable`.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Any, Final, Self, TypeVar
from urllib.parse import quote

import httpx
import msgspec
import numpy as np
from numpy.typing import NDArray

from api.answers import (
    BlendMatch,
    BlendMatches,
    Checkpoint,
    FleetUsage,
    Instance,
    Instances,
    InstanceUsage,
    KeyPage,
    LookedUp,
    Lookup,
    Pushed,
    Registered,
    Stats,
    Stream,
    Streams,
)
from producer.errors import OperatorError
from producer.events import ObjectKey

DEFAULT_URL: Final = "http://127.0.0.1:9300"
DEFAULT_TIMEOUT: Final = 10.0
"""Seconds for one answer."""
POLL_INTERVAL: Final = 0.1
"""Seconds from one question to the next while waiting for a server."""

Tokens = Sequence[int] | NDArray[Any]
Answer = TypeVar("Answer")


class ServerUnavailable(OperatorError, ConnectionError):
    """Nobody answers at the address."""


class ServerError(OperatorError):
    """The server refused the request.

    Attributes:
        status: the HTTP status.
        detail: what the server says about it.
    """

    def __init__(self, status: int, detail: str) -> None:
        super().__init__(f"the server answered {status}: {detail}")
        self.status = status
        self.detail = detail


class Client:
    """A connection to one server; also a context manager.

    Args:
        url: the server's address, `http://host:port`, or `unix:/path` for a Unix socket.
        timeout: seconds to wait for one answer.
    """

    def __init__(self, url: str = DEFAULT_URL, *, timeout: float = DEFAULT_TIMEOUT) -> None:
        self.url = url.rstrip("/")
        path = self.url.removeprefix("unix:")
        on_socket = path != self.url
        self._http = httpx.Client(
            base_url="http://localhost" if on_socket else self.url,
            transport=httpx.HTTPTransport(uds=path) if on_socket else None,
            timeout=timeout,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections."""
        self._http.close()

    def blend_lookup(
        self, tokens: Tokens, model_name: str, *, world_size: int = 1, cache_salt: str = ""
    ) -> list[BlendMatch]:
        """The cached chunks that `tokens` contain at any offset, ascending by their place in the query."""
        answer = self._send(
            "POST",
            "/directory/blend-lookup",
            content=np.ascontiguousarray(tokens, dtype="<u4").tobytes(),
            headers={"content-type": "application/octet-stream"},
            params={"model_name": model_name, "world_size": world_size, "cache_salt": cache_salt},
        )
        return self._read(answer, BlendMatches).matches

    def lookup(self, keys: Sequence[ObjectKey]) -> list[LookedUp]:
        """What is known of each key, in order."""
        if not keys:
            return []
        encoded = [
            {
                "chunk_hash_hex": key.chunk_hash.hex(),
                "model_name": key.model_name,
                "kv_rank": key.kv_rank,
                "object_group_id": key.object_group_id,
                "cache_salt": key.cache_salt,
            }
            for key in keys
        ]
        return self._post("/directory/lookup", {"keys": encoded}, Lookup).results

    def lookup_tokens(
        self, tokens: Tokens, model_name: str, *, world_size: int = 1, cache_salt: str = ""
    ) -> Lookup:
        """What is known of the complete chunks of a sequence, which must begin at its start."""
        body = {
            "token_ids": np.asarray(tokens).tolist(),
            "model_name": model_name,
            "world_size": world_size,
            "cache_salt": cache_salt,
        }
        return self._post("/directory/lookup", body, Lookup)

    def keys(
        self,
        *,
        tier: str = "all",
        instance_id: str = "",
        backend: str = "",
        offset: int = 0,
        limit: int = 1_000,
    ) -> KeyPage:
        """One page of the directory's keys."""
        params = {
            "tier": tier,
            "instance_id": instance_id,
            "backend": backend,
            "offset": offset,
            "limit": limit,
        }
        return self._read(self._send("GET", "/directory/keys", params=params), KeyPage)

    def stats(self) -> Stats:
        """Counts of the directory."""
        return self._read(self._send("GET", "/directory/stats"), Stats)

    def streams(self, *, gap: bool | None = None) -> list[Stream]:
        """Every emitter's stream; with `gap`, only those that have one, or have none."""
        params = {} if gap is None else {"gap": str(gap).lower()}
        return self._read(self._send("GET", "/streams", params=params), Streams).streams

    def stream(self, instance_id: str) -> Stream:
        """One emitter's stream; a `ServerError` of status 404 if it is not known."""
        return self._read(self._send("GET", f"/streams/{_quoted(instance_id)}"), Stream)

    def replay(
        self,
        instance_id: str,
        *,
        incarnation: int | None = None,
        first: int | None = None,
        last: int | None = None,
    ) -> Stream:
        """Search the log for missing batches, by default for all of them; a closed range must be named."""
        body = _range(incarnation, first, last)
        return self._post(f"/streams/{_quoted(instance_id)}/replay", body, Stream)

    def accept_loss(
        self,
        instance_id: str,
        *,
        incarnation: int | None = None,
        first: int | None = None,
        last: int | None = None,
    ) -> Stream:
        """Give up on missing batches, by default on all of them."""
        body = _range(incarnation, first, last)
        return self._post(f"/streams/{_quoted(instance_id)}/accept-loss", body, Stream)

    def reset(self, instance_id: str) -> None:
        """Fence an emitter and forget its cursor, so that any incarnation may go on."""
        self._send("POST", f"/streams/{_quoted(instance_id)}/reset")

    def checkpoint(self) -> Checkpoint:
        """Have the server write a checkpoint; returns when it is on disk."""
        return self._post("/checkpoint", {}, Checkpoint)

    def register(
        self,
        ip: str,
        http_port: int,
        *,
        instance_id: str = "",
        metadata: Mapping[str, str] | None = None,
        p2p_advertised_url: str = "",
        mq_port: int = 0,
    ) -> Registered:
        """Enter a cache server, which has to send heartbeats from then on; without an id it is given one."""
        body = {
            "instance_id": instance_id,
            "ip": ip,
            "http_port": http_port,
            "metadata": dict(metadata or {}),
            "p2p_advertised_url": p2p_advertised_url,
            "mq_port": mq_port,
        }
        return self._post("/instances", body, Registered)

    def heartbeat(self, instance_id: str) -> bool:
        """Say that a cache server lives; if the answer is False, it has to register (again)."""
        try:
            self._send("PUT", f"/instances/{_quoted(instance_id)}/heartbeat")
        except ServerError as error:
            if error.status == 404:
                return False
            raise
        return True

    def instances(self) -> list[Instance]:
        """Every registered cache server."""
        return self._read(self._send("GET", "/instances"), Instances).instances

    def fleet_usage(self) -> FleetUsage:
        """How full every server's compartments and the shared pools are."""
        return self._read(self._send("GET", "/instances/usage"), FleetUsage)

    def usage(self, instance_id: str) -> InstanceUsage:
        """How full a server's compartments are; a `ServerError` of status 404 if it is not known."""
        return self._read(self._send("GET", f"/instances/{_quoted(instance_id)}/usage"), InstanceUsage)

    def depart(self, instance_id: str) -> None:
        """Fence an instance and forget it."""
        self._send("DELETE", f"/instances/{_quoted(instance_id)}")

    def push(self, envelope: bytes) -> Pushed:
        """Offer batches over HTTP; `envelope` is what `producer.wire` encodes."""
        headers = {"content-type": "application/json"}
        return self._read(self._send("POST", "/events", content=envelope, headers=headers), Pushed)

    def healthy(self) -> bool:
        """Whether the server lives and answers, ready or not."""
        try:
            self._send("GET", "/healthz")
        except (ServerError, ServerUnavailable):
            return False
        return True

    def not_ready(self) -> list[str]:
        """Why the server is not ready; empty if it is."""
        try:
            self._send("GET", "/readyz")
        except ServerError as error:
            if error.status == 503:
                return error.detail.split("; ")
            raise
        return []

    def wait_until_ready(self, timeout: float) -> None:
        """Return once the server answers and has caught up with the stream.

        Raises:
            TimeoutError: it has not come to that within `timeout` seconds; says what it still lacks.
        """
        deadline = time.monotonic() + timeout
        while lacking := self._lacking():
            if time.monotonic() > deadline:
                raise TimeoutError(f"{self.url} is not ready after {timeout:g} s: {lacking}")
            time.sleep(POLL_INTERVAL)

    def metrics(self) -> str:
        """The metrics, in Prometheus's text format."""
        return self._send("GET", "/metrics").text

    def _lacking(self) -> str:
        try:
            return "; ".join(self.not_ready())
        except ServerUnavailable as error:
            return str(error)

    def _post(self, path: str, body: dict[str, Any], kind: type[Answer]) -> Answer:
        headers = {"content-type": "application/json"}
        return self._read(self._send("POST", path, content=msgspec.json.encode(body), headers=headers), kind)

    def _read(self, response: httpx.Response, kind: type[Answer]) -> Answer:
        try:
            return msgspec.json.decode(response.content, type=kind)
        except msgspec.DecodeError as error:
            raise ServerError(response.status_code, f"not the answer of Blendstream: {error}") from None

    def _send(self, method: str, path: str, **arguments: Any) -> httpx.Response:
        try:
            response = self._http.request(method, path, **arguments)
        except httpx.TimeoutException:
            raise ServerUnavailable(f"no answer from {self.url} in time") from None
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            raise ServerUnavailable(f"no server answers at {self.url}: {error}") from None
        if response.is_error:
            raise ServerError(response.status_code, _reason(response))
        return response


def _range(incarnation: int | None, first: int | None, last: int | None) -> dict[str, int]:
    asked = {"incarnation": incarnation, "first": first, "last": last}
    return {name: value for name, value in asked.items() if value is not None}


def _quoted(instance_id: str) -> str:
    return quote(instance_id, safe="")


def _reason(response: httpx.Response) -> str:
    """What the body of a refusal says, on one line."""
    try:
        body = response.json()
    except ValueError:
        return response.text[:200]
    if not isinstance(body, dict):
        return str(body)[:200]
    if "reasons" in body:
        return "; ".join(body["reasons"])
    detail = body.get("detail", body)
    if isinstance(detail, list):
        return "; ".join(f"{'.'.join(map(str, item['loc']))}: {item['msg']}" for item in detail)
    return str(detail)
