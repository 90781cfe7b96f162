"""The interface as an OpenAPI 3.1 document: every route, form of body and answer that a client can meet.

Answers that a client reads are described by their types in `api.answers`. What is sent is described by hand,
since the routes decode by hand. A test lets schemathesis hold all of it against the running server.
"""

from __future__ import annotations

from functools import cache
from importlib.metadata import version
from typing import Any, Final

import msgspec

from api import answers
from api.bodies import MAX_KEYS, MAX_PORT, MAX_TOKEN_IDS
from api.http import MAX_BODY_BYTES, MAX_INT, OPEN

Schema = dict[str, Any]

STRING: Final[Schema] = {"type": "string"}
FLAG: Final[Schema] = {"type": "boolean"}
TIER: Final[Schema] = {"enum": ["l1", "l2"]}
WORLD_SIZE: Final[Schema] = {"type": "integer", "minimum": 1, "maximum": 255, "default": 1}
HEX: Final[Schema] = {"type": "string", "pattern": "^([0-9a-fA-F]{2}){1,32}$"}
MODEL_NAME: Final[Schema] = {"type": "string", "pattern": "^[^@]*$"}
CACHE_SALT: Final[Schema] = {
    "type": "string",
    "maxLength": 128,
    "pattern": r"^[^@/\\\u0000]*$",
    "default": "",
}
TOKEN_ID: Final[Schema] = {"type": "integer", "minimum": 0, "maximum": 2**32 - 1}
BOUNDED: Final[Schema] = {"type": "integer", "minimum": 0, "maximum": MAX_INT}


def _ref(name: str) -> Schema:
    return {"$ref": f"#/components/schemas/{name}"}


def _list(items: Schema, **more: Any) -> Schema:
    return {"type": "array", "items": items, **more}


def _object(properties: dict[str, Schema], required: list[str] | None = None, **more: Any) -> Schema:
    """An object whose properties are all there, unless `required` names those that must be."""
    needed = list(properties) if required is None else required
    return {"type": "object", "properties": properties, "required": needed, **more}


_KEY: Final = {
    "chunk_hash_hex": HEX,
    "model_name": MODEL_NAME,
    "kv_rank": {"type": "integer", "minimum": 0, "maximum": 2**64 - 1},
    "object_group_id": {"type": "integer", "minimum": 0, "maximum": 2**32 - 1, "default": 0},
    "cache_salt": CACHE_SALT,
}

_RANGE: Final = {"incarnation": BOUNDED, "first": BOUNDED, "last": BOUNDED}

_READ_BY_CLIENTS: Final = (
    answers.BlendMatches,
    answers.Checkpoint,
    answers.FleetUsage,
    answers.Instances,
    answers.InstanceUsage,
    answers.KeyPage,
    answers.Lookup,
    answers.Pushed,
    answers.Registered,
    answers.Stats,
    answers.Stream,
    answers.Streams,
)
SCHEMAS: Final[dict[str, Schema]] = {
    **msgspec.json.schema_components(_READ_BY_CLIENTS, ref_template="#/components/schemas/{name}")[1],
    "Key": _object(_KEY, ["chunk_hash_hex", "model_name", "kv_rank"]),
    "Entry": _object(
        {
            "key": _ref("Key"),
            "size_bytes": {**BOUNDED, "default": 0},
            "token_ids": _list({"type": "integer"}, default=[]),
            "token_offset": {"type": "integer", "minimum": -1, "maximum": MAX_INT, "default": -1},
        },
        ["key"],
    ),
    "Batch": _object(
        {
            "instance_id": {"type": "string", "minLength": 1},
            "incarnation": BOUNDED,
            "seq": {"type": "integer", "minimum": 1, "maximum": MAX_INT},
            "event_type": {"enum": ["store", "delete", "access", "config"]},
            "tier": TIER,
            "backend": STRING,
            "entries": {
                "type": ["array", "null"],
                "items": _ref("Entry"),
                "description": "The changes as rows; null where `columns` has them.",
            },
            "columns": {"type": "object", "description": "The changes as columns; see docs/events.md."},
            "shared": {**FLAG, "default": False},
            "ts": {"type": "number", "minimum": 0, "default": 0},
            "capacity_bytes": {**BOUNDED, "default": 0},
            "capacity_revision": {**BOUNDED, "default": 0},
        },
        ["instance_id", "incarnation", "seq", "event_type", "tier", "backend"],
    ),
    "Envelope": _object({"batches": _list(_ref("Batch"), default=[])}, []),
    "LookupByKeys": _object({"keys": _list(_ref("Key"), minItems=1, maxItems=MAX_KEYS)}),
    "LookupByTokens": _object(
        {
            "token_ids": _list(TOKEN_ID, minItems=1, maxItems=MAX_TOKEN_IDS),
            "model_name": {**MODEL_NAME, "minLength": 1},
            "world_size": WORLD_SIZE,
            "cache_salt": CACHE_SALT,
        },
        ["token_ids", "model_name"],
    ),
    "BlendQuery": _object(
        {
            "tokens_b64": {
                **STRING,
                "contentEncoding": "base64",
                "default": "",
                "description": "Base64 of the tokens as little-endian uint32.",
            },
            "model_name": {**STRING, "default": "", "description": "Required with tokens."},
            "world_size": WORLD_SIZE,
            "cache_salt": {**STRING, "default": ""},
        },
        [],
    ),
    "Registration": _object(
        {
            "instance_id": {**STRING, "default": "", "description": "Empty to be given one."},
            "ip": {"type": "string", "pattern": "\\S"},
            "http_port": {"type": "integer", "minimum": 1, "maximum": MAX_PORT},
            "metadata": {"type": "object", "additionalProperties": STRING, "default": {}},
            "p2p_advertised_url": {**STRING, "default": ""},
            "mq_port": {"type": "integer", "minimum": 0, "maximum": MAX_PORT, "default": 0},
        },
        ["ip", "http_port"],
    ),
    "Heard": _object({"instance_id": STRING}),
    "NotRegistered": _object({"error": STRING}),
    "Range": _object(_RANGE, []),
    "Health": _object({"status": {"const": "healthy"}}),
    "Readiness": _object(
        {"status": {"enum": ["ready", "not ready"]}, "reasons": _list(STRING), "warnings": _list(STRING)}
    ),
    "Error": _object({"detail": STRING}),
    "Invalid": _object(
        {
            "detail": _list(
                _object(
                    {
                        "type": STRING,
                        "loc": _list({"type": ["string", "integer"]}),
                        "msg": STRING,
                        "input": {},
                    }
                ),
                minItems=1,
            )
        }
    ),
}

_REASONS: Final = {
    "400": "Well-formed, but more than one request may ask for, or a name that no key can have.",
    "404": "Not known, or not open here.",
    "408": "A large body was not there in time.",
    "409": "This server was not told where to: it has no log to search, or no folder for checkpoints.",
    "413": f"The body is larger than {MAX_BODY_BYTES} bytes.",
    "422": "Malformed; `loc` names the field.",
    "503": "Not ready; `reasons` says why.",
}

STARTING: Final[Schema] = {
    "description": "The server is starting, and `detail` says what it is at; or this one it cannot do now.",
    "headers": {
        "Retry-After": {
            "description": "Of a server that is starting: seconds after which to ask again.",
            "schema": {"type": "string", "pattern": "^[0-9]+$"},
        }
    },
    "content": {"application/json": {"schema": {"$ref": "#/components/schemas/Error"}}},
}
"""What every route may answer that needs the state."""


def _json(schema: Schema) -> Schema:
    return {"application/json": {"schema": schema}}


def _answers(schema: str, *errors: str) -> Schema:
    answers: Schema = {"200": {"description": "The answer.", "content": _json(_ref(schema))}}
    for status in errors:
        answers[status] = _error(status)
    return answers


def _error(status: str) -> Schema:
    schema = {"422": "Invalid", "503": "Readiness"}.get(status, "Error")
    return {"description": _REASONS[status], "content": _json(_ref(schema))}


def _query(name: str, schema: Schema, description: str) -> Schema:
    return {"name": name, "in": "query", "required": False, "schema": schema, "description": description}


def _body(content: Schema, *, required: bool = True) -> Schema:
    return {"required": required, "content": content}


INSTANCE_ID: Final[Schema] = {
    "name": "instance_id",
    "in": "path",
    "required": True,
    "schema": {"type": "string", "minLength": 1},
    "description": "Percent-encoded; slashes may stay as they are.",
}

_NAMESPACE: Final = [
    _query("model_name", STRING, "Of a raw body: the model; required with tokens."),
    _query("world_size", WORLD_SIZE, "Of a raw body: the number of workers."),
    _query("cache_salt", STRING, "Of a raw body: the tenant's salt."),
]

_LISTING: Final = [
    _query("tier", {"enum": ["l1", "l2", "all"], "default": "all"}, "Placements of this tier."),
    _query("instance_id", STRING, "Placements that this instance reported; empty for all."),
    _query("backend", STRING, "Placements on this backend; empty for all."),
    _query("offset", {"type": "integer", "minimum": 0, "default": 0}, "Keys to skip."),
    _query("limit", {"type": "integer", "minimum": 1, "maximum": 10_000, "default": 1_000}, "Keys to list."),
]

_RAW: Final[Schema] = {
    "application/octet-stream": {
        "schema": {
            "type": "string",
            "format": "binary",
            "description": "The tokens as little-endian uint32.",
        }
    }
}

_NOTHING: Final[Schema] = {"204": {"description": "Done."}}


def _operation(summary: str, responses: Schema, **more: Any) -> Schema:
    return {"summary": summary, "responses": responses, **more}


def _paths() -> Schema:
    either = {"oneOf": [_ref("LookupByKeys"), _ref("LookupByTokens")]}
    text = {"200": {"description": "The metrics.", "content": {"text/plain": {"schema": STRING}}}}
    text["404"] = _error("404")
    return {
        "/events": {
            "post": _operation(
                "Offer batches of cache events.",
                _answers("Pushed", "404", "408", "413", "422"),
                requestBody=_body(_json(_ref("Envelope"))),
            )
        },
        "/directory/lookup": {
            "post": _operation(
                "Where keys, or the complete chunks of a token sequence, are held.",
                _answers("Lookup", "400", "408", "413", "422"),
                requestBody=_body(_json(either)),
            )
        },
        "/directory/blend-lookup": {
            "post": _operation(
                "Cached chunks that a query contains, at any offset.",
                _answers("BlendMatches", "408", "413", "422"),
                parameters=_NAMESPACE,
                requestBody=_body({**_json(_ref("BlendQuery")), **_RAW}),
            )
        },
        "/directory/keys": {
            "get": _operation("One page of the keys.", _answers("KeyPage", "422"), parameters=_LISTING)
        },
        "/directory/stats": {"get": _operation("Counts.", _answers("Stats"))},
        "/streams": {
            "get": _operation(
                "Every emitter's stream.",
                _answers("Streams", "422"),
                parameters=[_query("gap", FLAG, "Only streams that have a gap, or that have none.")],
            )
        },
        "/streams/{instance_id}": {
            "parameters": [INSTANCE_ID],
            "get": _operation("One emitter's stream.", _answers("Stream", "404")),
        },
        "/streams/{instance_id}/replay": {
            "parameters": [INSTANCE_ID],
            "post": _operation(
                "Search the log for missing batches; without a body, for all of them.",
                _answers("Stream", "404", "408", "409", "413", "422"),
                requestBody=_body(_json(_ref("Range")), required=False),
            ),
        },
        "/streams/{instance_id}/accept-loss": {
            "parameters": [INSTANCE_ID],
            "post": _operation(
                "Give up on missing batches; without a body, on all of them.",
                _answers("Stream", "404", "408", "413", "422"),
                requestBody=_body(_json(_ref("Range")), required=False),
            ),
        },
        "/streams/{instance_id}/reset": {
            "parameters": [INSTANCE_ID],
            "post": _operation(
                "Forget the emitter's cursor and memory, and let any incarnation in.",
                {**_NOTHING, "404": _error("404")},
            ),
        },
        "/instances": {
            "get": _operation("Every registered cache server.", _answers("Instances")),
            "post": _operation(
                "Register a cache server, which has to send heartbeats from then on.",
                _answers("Registered", "408", "413", "422"),
                requestBody=_body(_json(_ref("Registration"))),
            ),
        },
        "/instances/usage": {
            "get": _operation("How full every server and shared pool is.", _answers("FleetUsage"))
        },
        "/instances/{instance_id}": {
            "parameters": [INSTANCE_ID],
            "delete": _operation("Fence the instance and forget it.", _NOTHING),
        },
        "/instances/{instance_id}/heartbeat": {
            "parameters": [INSTANCE_ID],
            "put": _operation(
                "Say that a registered cache server lives.",
                {
                    **_answers("Heard"),
                    "404": {
                        "description": "Not registered, or given up: register again.",
                        "content": _json(_ref("NotRegistered")),
                    },
                },
            ),
        },
        "/instances/{instance_id}/usage": {
            "parameters": [INSTANCE_ID],
            "get": _operation("How full a server is.", _answers("InstanceUsage", "404")),
        },
        "/checkpoint": {
            "post": _operation(
                "Write a checkpoint; the answer comes when it is on disk.",
                _answers("Checkpoint", "409"),
            )
        },
        "/healthz": {"get": _operation("Whether the process lives.", _answers("Health"))},
        "/readyz": {
            "get": _operation("Whether it has caught up with the stream.", _answers("Readiness", "503"))
        },
        "/metrics": {"get": _operation("Prometheus metrics.", text)},
        "/openapi.json": {
            "get": _operation(
                "This document.",
                {"200": {"description": "The document.", "content": _json({"type": "object"})}},
            )
        },
    }


@cache
def document() -> Schema:
    """The whole document."""
    paths = _paths()
    for path in paths.keys() - OPEN:
        for method in paths[path].keys() - {"parameters"}:
            paths[path][method]["responses"]["503"] = STARTING
    return {
        "openapi": "3.1.0",
        "info": {"title": "Blendstream", "version": version("blendstream")},
        "paths": paths,
        "components": {"schemas": SCHEMAS},
    }
