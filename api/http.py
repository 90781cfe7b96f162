"""What every route shares: reading a body within bounds, telling a client what was wrong, answering in JSON.

Error bodies have the shape that LMCache's coordinator (FastAPI) gives them: `{"detail": "text"}`, or for a
malformed request `{"detail": [{"type", "loc", "msg", "input"}]}` with status 422. Handlers raise
`RequestError`; nothing a client sends may surface as anything else.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from typing import Any, Final

import orjson
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

MAX_BODY_BYTES: Final = 64 * 1024 * 1024
JSON_OPTIONS: Final = orjson.OPT_SERIALIZE_NUMPY | orjson.OPT_NON_STR_KEYS
MAX_INT: Final = 2**63 - 1
SHOWN_INPUT_CHARS: Final = 200
BODIES_BYTES: Final = 1024 * 1024 * 1024
"""What all bodies that are being read or worked on may take together."""
READ_TIMEOUT: Final = 30.0
"""Seconds in which a body must have come."""
CLOSE: Final = {"connection": "close"}
OPEN: Final = frozenset({"/healthz", "/readyz", "/metrics", "/openapi.json"})
"""Paths that need no state: they answer while the server still starts."""

Loc = Sequence[str | int]
Run = Callable[..., Awaitable[Any]]
"""Runs a call with its arguments, in a thread if its first argument says that it may take long."""


class RequestError(Exception):
    """The request cannot be answered; carries the status and the `detail` of the answer."""

    def __init__(self, status: int, detail: object, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(f"{status}: {detail}")
        self.status = status
        self.detail = detail
        self.headers = headers


def invalid(loc: Loc, message: str, kind: str = "value_error", given: object = None) -> RequestError:
    """A 422 that points at the field `loc`, beginning with `body`, `query` or `path`."""
    if isinstance(given, str):
        given = given[:SHOWN_INPUT_CHARS]
    return RequestError(422, [{"type": kind, "loc": list(loc), "msg": message, "input": given}])


def json_bytes(content: object) -> bytes:
    """Encode an answer; NumPy arrays and dataclasses as they are."""
    return orjson.dumps(content, option=JSON_OPTIONS)


def json_response(content: object, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    """An answer in JSON."""
    return Response(json_bytes(content), status, headers, media_type="application/json")


def error_response(error: RequestError) -> Response:
    """The answer that tells a client of its error."""
    return json_response({"detail": error.detail}, error.status, error.headers)


class BodyReader:
    """Reads request bodies within bounds: of size, of time, and of what all of them take together.

    So what clients send takes a bounded part of memory, however many they are, and one that stops half-way
    keeps no more than it sent, and not for long. Used on the event loop alone.
    """

    def __init__(self) -> None:
        self._held = 0

    @contextlib.asynccontextmanager
    async def read(self, request: Request) -> AsyncIterator[bytes]:
        """The whole body, whether its length was announced or not, for as long as it is worked on.

        Raises:
            RequestError: 413 for a body over `MAX_BODY_BYTES`, as soon as that shows; 408 for one that is not
                there in time; 503 while the others leave no room for it; 400 if the client left.
        """
        announced = request.headers.get("content-length", "")
        if announced.isdecimal() and int(announced[:20]) > MAX_BODY_BYTES:
            raise _too_large()
        pieces: list[bytes] = []
        taken = 0

        def take(piece: bytes) -> None:
            nonlocal taken
            taken += len(piece)
            self._held += len(piece)
            if taken > MAX_BODY_BYTES:
                raise _too_large()
            if self._held > BODIES_BYTES:
                raise RequestError(503, "too many large bodies at once; try again", CLOSE)
            pieces.append(piece)

        try:
            await _stream(request, take)
            yield pieces[0] if len(pieces) == 1 else b"".join(pieces)
        finally:
            self._held -= taken


async def _stream(request: Request, take: Callable[[bytes], None]) -> None:
    try:
        async with asyncio.timeout(READ_TIMEOUT):
            async for piece in request.stream():
                take(piece)
    except TimeoutError:
        raise RequestError(408, f"the body did not come within {READ_TIMEOUT:g} s", CLOSE) from None
    except ClientDisconnect:
        raise RequestError(400, "the client went away before its body was read") from None


def _too_large() -> RequestError:
    # What is left of the body is not worth reading: close the connection once the answer is out.
    return RequestError(413, f"body is larger than {MAX_BODY_BYTES} bytes", CLOSE)


_INTEGER = re.compile(r"[+-]?[0-9]+")


def query_int(query: Mapping[str, str], name: str, default: int, low: int, high: int = MAX_INT) -> int:
    """An integer of the query string within bounds."""
    text = query.get(name)
    if text is None:
        return default
    loc = ("query", name)
    if not _INTEGER.fullmatch(text.strip()):
        raise invalid(
            loc, "Input should be a valid integer, unable to parse string as an integer", "int_parsing", text
        )
    # A number of thousands of digits is only ever compared, and Python refuses to convert it.
    value = int(text) if len(text) <= 20 else (-1 if text.strip().startswith("-") else 1) * (MAX_INT + 1)
    if value < low:
        raise invalid(loc, f"Input should be greater than or equal to {low}", "greater_than_equal", text)
    if value > high:
        raise invalid(loc, f"Input should be less than or equal to {high}", "less_than_equal", text)
    return value


_FLAGS: Final = {"true": True, "1": True, "yes": True, "on": True} | dict.fromkeys(
    ("false", "0", "no", "off"), False
)


def query_flag(query: Mapping[str, str], name: str) -> bool | None:
    """A flag of the query string, `None` if it is not there."""
    text = query.get(name)
    if text is None:
        return None
    flag = _FLAGS.get(text.lower())
    if flag is None:
        raise invalid(("query", name), "Input should be a valid boolean", "bool_parsing", text)
    return flag


def query_choice(query: Mapping[str, str], name: str, choices: Sequence[str], default: str) -> str:
    """One of a few words of the query string."""
    text = query.get(name, default)
    if text not in choices:
        listed = ", ".join(f"'{choice}'" for choice in choices[:-1]) + f" or '{choices[-1]}'"
        raise invalid(("query", name), f"Input should be {listed}", "enum", text)
    return text


def path_instance_id(request: Request) -> str:
    """The instance that the path names."""
    instance_id: str = request.path_params["instance_id"]
    return instance_id


def content_type(request: Request) -> str:
    """The media type of the body, without its parameters, in lower case."""
    return request.headers.get("content-type", "").partition(";")[0].strip().lower()


def route_errors() -> dict[Any, Any]:
    """Starlette's exception handlers: every error is answered in JSON."""
    from starlette.exceptions import HTTPException

    async def refused(request: Request, error: Exception) -> Response:
        assert isinstance(error, RequestError)
        return error_response(error)

    async def not_routed(request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        return json_response({"detail": error.detail}, error.status_code, error.headers)

    async def failed(request: Request, error: Exception) -> Response:
        return json_response({"detail": "Internal Server Error"}, 500)

    return {RequestError: refused, HTTPException: not_routed, Exception: failed}
